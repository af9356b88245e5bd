//! Draws the [`TopState`]. Texts are escaped and cut to the width of their column, so a name or label cannot overwrite
//! other columns.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Widget};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::rows::Row;
use super::state::{Connectivity, QueueView, Revocation, TopState};
use crate::live::Sort;
use crate::locks::names::{escaped, lock_name};
use crate::locks::table::{NONE, duration, fitted};
use crate::locks::{TITLES, described, row};
use crate::revoke::RISK;

#[derive(Debug)]
pub(super) struct Look {
    pub(super) store: String,
    pub(super) prefix: Option<String>,
    pub(super) has_color: bool,
}

const WIDTHS: [usize; 11] = [14, 9, 19, 8, 8, 8, 8, 18, 10, 7, 10];

/// The columns, most important first. A narrow terminal shows only the first columns.
const BY_WORTH: [usize; 11] = [LOCK, HELD, OVERDUE, 6, LABEL, HOST, 9, 2, 4, 1, 7];

const LOCK: usize = 0;
const HELD: usize = 3;
const OVERDUE: usize = 5;
const HOST: usize = 8;
const LABEL: usize = 10;

const GAP: usize = 2;

const KEYS: [(&str, &str); 15] = [
    ("Up Down j k", "select a lock, or scroll"),
    (
        "PgUp PgDn Space",
        "a screen up or down (^B ^F, half: ^U ^D)",
    ),
    ("Home End g G", "to the first, or the last"),
    ("Enter", "the lock's queue in full"),
    ("Left Right", "there: scroll sideways"),
    ("Esc", "back; in the list: no filter"),
    ("/", "filter by name, label, host, pid, token"),
    ("n t o w", "sort by name, time held, overdue, waiters"),
    ("  again, or i", "reverses the order"),
    ("s S", "the next order, or the one before"),
    ("r", "ask the holder to release the lock"),
    ("R", "take the lock away from the holder"),
    ("^L", "draw the screen again"),
    ("^Z", "suspend"),
    ("q ^C", "quit"),
];

const HINTS: &str = "? help  q quit  Enter queue  / filter  s sort  i reverse  r ask  R take away";
const HINTS_OF_QUEUE: &str = "Esc back  q quit  arrows scroll  r ask  R take away";

pub(super) fn draw(frame: &mut Frame, state: &mut TopState, look: &Look) {
    let area = frame.area();
    let line = |y| Rect::new(area.x, y, area.width, 1).intersection(area);
    let (first, last) = (area.top(), area.bottom().saturating_sub(1));
    // On a small terminal, leave out the lines above and below the list first.
    let above = if state.queue.is_some() { 1 } else { 3 };
    let body = Rect::new(
        area.x,
        area.y + above,
        area.width,
        area.height.saturating_sub(above + 1),
    );
    let body = body.intersection(area);
    state.height = usize::from(body.height);

    let buffer = frame.buffer_mut();
    if state.queue.is_some() {
        draw_link(buffer, line(first), state, look);
        draw_queue(buffer, body, state);
    } else {
        put(buffer, line(first), &summary(state, look), bold());
        if area.height > 3 {
            draw_link(buffer, line(first + 1), state, look);
            draw_list(buffer, line(first + 2), body, state, look);
        }
    }
    if area.height > 1 {
        draw_foot(buffer, line(last), state);
    }
    if state.has_help {
        draw_help(buffer, area);
    }
    if let Some(dialog) = &state.dialog {
        draw_dialog(buffer, area, state, dialog);
    }
    if state.is_typing && state.dialog.is_none() && !state.has_help && area.height > 1 {
        let (typed, _) = prompt(state, area.width);
        let x = typed.width().min(usize::from(area.width).saturating_sub(1));
        frame.set_cursor_position((area.x + x as u16, last));
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn put(buffer: &mut Buffer, line: Rect, text: &str, style: Style) {
    if !line.is_empty() {
        let width = usize::from(line.width);
        buffer.set_stringn(line.x, line.y, fitted(text, width), width, style);
    }
}

fn summary(state: &TopState, look: &Look) -> String {
    let rows = &state.rows;
    let (sort, _) = rows.order();
    let by = match sort {
        Sort::Name => "name",
        Sort::Held => "time held",
        Sort::Waiters => "waiters",
        Sort::Overdue => "overdue",
    };
    let mut text = format!(
        "{} locks, {} waiting, by {by}",
        rows.locks(),
        rows.waiters()
    );
    if !state.filter.is_empty() {
        text.push_str(&format!(", {} rows with “{}”", rows.len(), state.filter));
    }
    if let Some(prefix) = &look.prefix {
        text.push_str(&format!(", below {prefix}"));
    }
    text
}

/// Writes the state of the connection, so that outdated data never looks current.
fn draw_link(buffer: &mut Buffer, line: Rect, state: &TopState, look: &Look) {
    let ago = |at| duration(state.at.saturating_sub(at));
    let (text, is_bad) = match (&state.link, state.silent_for()) {
        (Connectivity::Lost { at, why }, _) => {
            let why = why.as_ref().map(|why| format!(" ({why})"));
            let since = ago(*at);
            let text = format!("DISCONNECTED for {since}: this is how it was then");
            (text + &why.unwrap_or_default(), true)
        }
        (Connectivity::Live, Some(silent)) => {
            let silent = duration(silent);
            (
                format!("NO ANSWER for {silent}: this is how it was then"),
                true,
            )
        }
        (Connectivity::Reading, _) => (format!("reading the locks of {} …", look.store), false),
        (Connectivity::Live, None) => match &state.unreadable {
            Some((count, why)) => (
                format!("{count} znodes cannot be read, such as {why}"),
                true,
            ),
            None => (look.store.clone(), false),
        },
    };
    let style = match is_bad {
        true => bold().add_modifier(Modifier::REVERSED),
        false => Style::new(),
    };
    put(buffer, line, &text, style);
}

const QUEUED_WIDTH: usize = "queued 99d 23h".len();

/// Returns position and width of the columns that fit. `held` is the width of the hold times on the screen.
fn columns(width: usize, held: usize) -> Vec<(usize, usize, usize)> {
    let mut widths = WIDTHS;
    widths[HELD] = held.clamp(WIDTHS[HELD], QUEUED_WIDTH);
    let mut chosen = Vec::new();
    let mut used = 0;
    for column in BY_WORTH {
        let more = widths[column] + if chosen.is_empty() { 0 } else { GAP };
        if used + more > width && !chosen.is_empty() {
            break;
        }
        used += more;
        chosen.push(column);
    }
    chosen.sort_unstable();
    let mut spare = width.saturating_sub(used);
    for (column, eighths) in [(LABEL, 3), (HOST, 1)] {
        if chosen.contains(&column) {
            widths[column] += width.saturating_sub(used) * eighths / 8;
            spare -= width.saturating_sub(used) * eighths / 8;
        }
    }
    widths[LOCK] = (widths[LOCK] + spare).min(width);
    let mut x = 0;
    let placed = chosen.into_iter().map(|column| {
        let at = x;
        x += widths[column] + GAP;
        (column, at, widths[column])
    });
    placed.collect()
}

fn title(column: usize, (sort, reversed): (Sort, bool)) -> String {
    let sorted = match sort {
        Sort::Name => LOCK,
        Sort::Held => HELD,
        Sort::Overdue => OVERDUE,
        Sort::Waiters => 6,
    };
    let is_ascending = (sort == Sort::Name) != reversed;
    match (column == sorted, is_ascending) {
        (false, _) => TITLES[column].into(),
        (true, true) => format!("{}▲", TITLES[column]),
        (true, false) => format!("{}▼", TITLES[column]),
    }
}

fn draw_list(buffer: &mut Buffer, heading: Rect, body: Rect, state: &mut TopState, look: &Look) {
    let (rows, selected) = state.rows.window(body.height.into());
    let cells_of = |shown: &Row| {
        let lock = state.rows.lock(&shown.lock)?;
        let holder = shown
            .token
            .and_then(|it| state.rows.holder(&shown.lock, it));
        Some(row(lock, holder, state.now_ms))
    };
    let rows: Vec<_> = rows.iter().map(cells_of).collect();
    let held = rows.iter().flatten().map(|cells| cells[HELD].width());
    let columns = columns(body.width.into(), held.max().unwrap_or(0));
    let cell = |line: Rect, x: usize, width: usize| {
        Rect::new(line.x + x as u16, line.y, width as u16, 1).intersection(line)
    };
    for &(column, x, width) in &columns {
        let title = title(column, state.rows.order());
        put(buffer, cell(heading, x, width), &title, bold());
    }
    let old = match state.is_current() {
        true => Style::new(),
        false => Style::new().add_modifier(Modifier::DIM),
    };
    for (index, cells) in rows.iter().enumerate() {
        let line = Rect::new(body.x, body.y + index as u16, body.width, 1);
        let Some(cells) = cells else { continue };
        for &(column, x, width) in &columns {
            let style = match column == OVERDUE && !cells[column].is_empty() {
                true if look.has_color => old.fg(Color::Red).add_modifier(Modifier::BOLD),
                true => old.add_modifier(Modifier::BOLD),
                false => old,
            };
            let text = if cells[column].is_empty() {
                NONE
            } else {
                &cells[column]
            };
            put(buffer, cell(line, x, width), text, style);
        }
        if index == selected {
            buffer.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    if rows.is_empty() && state.link != Connectivity::Reading {
        let text = match state.filter.is_empty() {
            true => "no locks",
            false => "no lock has this text: Esc shows all",
        };
        put(
            buffer,
            Rect {
                height: body.height.min(1),
                ..body
            },
            text,
            old,
        );
    }
}

fn draw_queue(buffer: &mut Buffer, body: Rect, state: &mut TopState) {
    let old = match state.is_current() {
        true => Style::new(),
        false => Style::new().add_modifier(Modifier::DIM),
    };
    let Some(view) = &mut state.queue else { return };
    view.bound(body.height.into());
    let QueueView { lines, scroll, .. } = view;
    let (from, column) = *scroll;
    let shown = lines.iter().skip(from).take(body.height.into());
    for (line, text) in body.rows().zip(shown) {
        put(buffer, line, &behind(text, column), old);
    }
}

/// Returns a text without its first `columns` columns. If this cuts a wide character, a blank replaces the character's
/// second half.
fn behind(text: &str, columns: usize) -> String {
    let mut at = 0;
    let mut kept = String::new();
    for c in text.chars() {
        let next = at + c.width().unwrap_or(0);
        if at >= columns && next > columns {
            kept.push(c);
        } else if at < columns && next > columns {
            kept.push(' ');
        } else if !kept.is_empty() {
            // A character without width belongs to the character before it.
            kept.push(c);
        }
        at = next;
    }
    kept
}

fn draw_foot(buffer: &mut Buffer, line: Rect, state: &TopState) {
    if state.is_typing {
        let (typed, hint) = prompt(state, line.width);
        put(buffer, line, &format!("{typed}{hint}"), bold());
    } else if let Some(message) = &state.message {
        put(buffer, line, message, bold());
    } else {
        let hints = match state.queue {
            Some(_) => HINTS_OF_QUEUE,
            None => HINTS,
        };
        put(buffer, line, hints, Style::new());
    }
}

fn prompt(state: &TopState, width: u16) -> (String, &'static str) {
    let text = escaped(&state.filter);
    let room = usize::from(width).saturating_sub(2);
    let text = behind(&text, text.width().saturating_sub(room));
    let hint = match state.filter.is_empty() {
        true => "  type a part of a name, label or host",
        false => "",
    };
    (format!("/{text}"), hint)
}

/// Draws a box in the middle of the screen. The question is in the last line, which is always visible.
fn draw_box(buffer: &mut Buffer, area: Rect, head: &str, lines: &[String], foot: &str) {
    let inner = lines.iter().map(|line| line.width()).max().unwrap_or(0);
    let width = inner.max(foot.width()) as u16 + 4;
    let (width, height) = (
        width.min(area.width),
        (lines.len() as u16 + 2).min(area.height),
    );
    let frame = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    Clear.render(frame, buffer);
    let block = Block::bordered()
        .title(Line::from(head))
        .title_bottom(Line::from(foot));
    let inside = block.inner(frame);
    block.render(frame, buffer);
    for (line, text) in inside.rows().zip(lines) {
        let line = Rect {
            x: line.x + 1,
            width: line.width.saturating_sub(1),
            ..line
        };
        put(buffer, line.intersection(inside), text, Style::new());
    }
}

fn draw_help(buffer: &mut Buffer, area: Rect) {
    let lines = KEYS.map(|(keys, what)| format!("{keys:16} {what}"));
    draw_box(buffer, area, " Keys ", &lines, " any key closes this ");
}

fn draw_dialog(buffer: &mut Buffer, area: Rect, state: &TopState, dialog: &Revocation) {
    let width = usize::from(area.width).saturating_sub(4).clamp(1, 66);
    let name = escaped(&lock_name(&dialog.lock));
    let mut lines = wrapped(&format!("lock {name}"), width, 2);
    // Write the token first, so that it is visible even on the smallest screen.
    lines.extend(wrapped(&described(&dialog.holder), width, 3));
    let (head, foot) = match dialog.force {
        true => (" Take the lock away? ", " y: take it away  n: no "),
        false => (" Ask for the lock? ", " y: ask the holder  n: no "),
    };
    if state.is_gone(dialog) {
        lines.extend(wrapped("This holder has already left.", width, 2));
        draw_box(buffer, area, head, &lines, " n: close ");
        return;
    }
    if !state.is_current() {
        lines.extend(wrapped("Not connected: it may have left.", width, 2));
    } else if dialog.force {
        lines.extend(wrapped(RISK, width, 4));
    } else {
        lines.extend(wrapped("It decides itself what to do.", width, 2));
    }
    draw_box(buffer, area, head, &lines, foot);
}

fn wrapped(text: &str, width: usize, limit: usize) -> Vec<String> {
    // Wrap only as many characters as we may need, because the text may be long.
    let text: String = text.chars().take(4 * width * limit).collect();
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one at least");
        if !line.is_empty() && line.width() + 1 + word.width() <= width {
            line.push(' ');
            line.push_str(word);
            continue;
        }
        if !line.is_empty() {
            lines.push(String::new());
        }
        for c in word.chars() {
            let line = lines.last_mut().expect("one at least");
            if line.width() + c.width().unwrap_or(0) > width && !line.is_empty() {
                lines.push(String::new());
            }
            lines.last_mut().expect("one at least").push(c);
        }
    }
    if lines.len() > limit {
        lines.truncate(limit);
        if let Some(last) = lines.last_mut() {
            *last = fitted(&format!("{last} …"), width);
        }
    }
    lines
}
