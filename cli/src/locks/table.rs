//! Human-readable tables and durations.

use std::fmt::Write;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::names::escaped;

pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

pub(crate) const NONE: &str = "-";

/// Maximum width of a client's text in a table or sentence, in columns. A longer text could hide the text after it.
pub(crate) const MAX_TEXT: usize = 200;

pub(crate) const MAX_LINE: usize = 1_000;

impl<const N: usize> Table<N> {
    pub(crate) fn new(titles: [&str; N]) -> Self {
        let titles = titles.map(str::to_owned);
        Self { rows: vec![titles] }
    }

    pub(crate) fn push(&mut self, row: [String; N]) {
        self.rows.push(row.map(|cell| match &*cell {
            "" => NONE.to_owned(),
            cell => fitted(cell, MAX_TEXT),
        }));
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].width());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        self.rows.iter().map(move |row| {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                // Pad by hand, because a format width counts characters, and wide characters occupy two columns.
                let filling = width - cell.width() + 2;
                let _ = write!(line, "{cell}{:filling$}", "");
            }
            line.truncate(line.trim_end().len());
            line
        })
    }
}

impl<const N: usize> std::fmt::Display for Table<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lines().try_for_each(|line| writeln!(f, "{line}"))
    }
}

pub(crate) fn fitted(text: &str, columns: usize) -> String {
    // Escape only as many characters as can fill the columns, because the text may be long.
    let text = escaped(&text.chars().take(4 * columns + 1).collect::<String>());
    if text.width() <= columns {
        return text;
    }
    let mut width = 0;
    let room = columns.saturating_sub(1);
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width <= room
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        cut.push('…');
    }
    cut
}

pub(crate) fn duration(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{s}s"),
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d {}h", s / 86_400, s / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_its_two_largest_units() {
        let shown = |ms| duration(Duration::from_millis(ms));
        assert_eq!(shown(0), "0ms");
        assert_eq!(shown(999), "999ms");
        assert_eq!(shown(59_999), "59s");
        assert_eq!(shown(65_000), "1m 5s");
        assert_eq!(shown(7_260_000), "2h 1m");
        assert_eq!(shown(90_000_000), "1d 1h");
    }

    #[test]
    fn each_row_is_one_line_of_aligned_cells() {
        let mut table = Table::new(["A", "B", "C"]);
        table.push(["x\ny".into(), String::new(), "z".into()]);
        table.push(["ä".into(), "long".into(), String::new()]);
        assert_eq!(
            table.to_string(),
            "A     B     C\nx\\ny  -     z\nä     long  -\n"
        );
    }

    #[test]
    fn a_text_that_does_not_fit_is_cut() {
        assert_eq!(fitted("abcd", 4), "abcd");
        assert_eq!(fitted("abcde", 4), "abc…");
        assert_eq!(fitted("日本語", 6), "日本語");
        assert_eq!(fitted("日本語", 5), "日本…");
        assert_eq!(fitted("日本語", 4), "日…");
        assert_eq!(fitted("a\u{1b}[2J", 7), r"a\u{1b…");
        assert_eq!(
            (fitted("ab", 1), fitted("ab", 0)),
            ("…".into(), String::new())
        );
        assert_eq!(fitted(&"e\u{301}".repeat(9), 9), "e\u{301}".repeat(9));
    }

    #[test]
    fn wide_characters_fill_two_columns() {
        let mut table = Table::new(["A", "B"]);
        table.push(["日本".into(), "x".into()]);
        table.push(["e\u{301}".into(), "y".into()]);
        assert_eq!(table.to_string(), "A     B\n日本  x\ne\u{301}     y\n");
    }
}
