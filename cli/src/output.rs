//! Output of the commands, whose reader may have gone.

use std::fmt::Display;
use std::io::{self, Write};

use crate::locks::names::escaped_lines;

/// Prints to stdout, and ignores a reader that has gone, as `head`; `println!` panics then.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_to(io::stdout().lock(), text)
}

/// Prints the line of a command that serves others, and notes where it could not: a full disk must not end it.
pub(crate) fn announce(line: &str) {
    if let Err(error) = print(line) {
        tracing::warn!(%error, "stdout takes no more");
    }
}

pub(crate) fn print_to(mut out: impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints to stderr, and ignores a reader that has gone; `eprintln!` panics then.
pub(crate) fn print_error(error: impl Display) {
    // A name that others have chosen may be a part of it.
    let error = escaped_lines(&error.to_string());
    let _ = writeln!(io::stderr(), "lockkeeper: {error}");
}

/// Returns true on a terminal that only takes lines, without controls of the cursor.
pub(crate) fn has_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|it| it == "dumb")
}
