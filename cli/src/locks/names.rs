//! Names of locks on the command line and in the output.

use std::fmt::Write;

use lockkeeper::{LockPath, LockPrefix, ZnodePath};

use crate::exit::Failure;

const LOCKS: &str = "/locks";

/// Returns the locks that the prefix argument of a command selects. An argument with a leading slash selects a path and
/// everything below it. Any other argument selects the names that start with it.
pub(crate) fn lock_prefix(text: Option<&str>) -> Result<LockPrefix, Failure> {
    match text {
        None => Ok(ZnodePath::root().into()),
        Some("") => Err(Failure::Usage(
            "the prefix is empty: leave it out to select all locks, or give the start of a lock name"
                .into(),
        )),
        Some(path) if path.starts_with('/') => {
            let path = match path.trim_end_matches('/') {
                "" => "/",
                path => path,
            };
            Ok(LockPrefix::try_from(path)?)
        }
        Some(name) => Ok(LockPrefix::keys(LockPath::new(LOCKS)?, name)),
    }
}

/// Returns the name of a lock as given on the command line. This is the inverse of
/// [`lock_path`](crate::target::lock_path).
pub(crate) fn lock_name(path: &ZnodePath) -> String {
    let text = LockPath::new(LOCKS).ok().and_then(|it| it.key_text(path));
    // A lock whose key is empty or starts with a slash needs its full path on the command line.
    let text = text.filter(|text| !text.is_empty() && !text.starts_with('/'));
    text.unwrap_or_else(|| path.to_string())
}

/// Escapes control characters, invisible characters and characters that change the direction of text, because text from
/// other clients must not break a table or a terminal.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

pub(crate) fn escaped_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(escaped).collect();
    lines.join("\n")
}

fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::lock_path;

    #[test]
    fn a_name_is_shown_as_it_is_given() {
        for name in [
            "orders",
            "jobs/a",
            "a\nb",
            "ä %41",
            "/app/orders",
            "0000000000",
            "..",
            "%",
            "/locks/a b",
        ] {
            let path = lock_path(name).unwrap();
            assert_eq!(lock_name(path.as_znode()), name);
        }
        let path = |path: &str| path.parse::<ZnodePath>().unwrap();
        for other in ["/locks", "/locks/a/b", "/locks/%2Fa", "/locks/%", "/"] {
            assert_eq!(lock_name(&path(other)), other);
        }
        assert_eq!(lock_name(&path("/locks/a")), "a");
    }

    #[test]
    fn a_prefix_is_a_path_or_the_beginning_of_a_name() {
        let contains = |prefix: &str, name: &str| {
            let path = lock_path(name).unwrap();
            lock_prefix(Some(prefix)).unwrap().contains(path.as_znode())
        };
        assert!(contains("jobs/", "jobs/a") && !contains("jobs/", "jobs"));
        assert!(contains("/app/", "/app/a") && contains("/app", "/app") && !contains("/app", "x"));
        assert!(contains("/", "x") && contains("/", "/app/a") && contains("//", "x"));
        assert!(lock_prefix(Some("")).is_err() && lock_prefix(Some("/a//b")).is_err());
    }

    #[test]
    fn no_text_controls_the_terminal() {
        assert_eq!(escaped("a\u{1b}[2J\r\nb\t"), r"a\u{1b}[2J\r\nb\t");
        assert_eq!(
            escaped("\u{9b}31m\u{202e}x\u{200b}"),
            r"\u{9b}31m\u{202e}x\u{200b}"
        );
        assert_eq!(escaped("ä 日本 'x' \\"), "ä 日本 'x' \\");
    }
}
