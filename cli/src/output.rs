//! Output that tolerates a reader that has closed the pipe.

use std::fmt::Display;
use std::io::{self, Write};

use crate::locks::names::escaped_lines;

/// Prints to stdout. Ignores a closed pipe, where `println!` would panic.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_to(io::stdout().lock(), text)
}

/// Prints a line of a long-running command, such as a server. A failure is only logged, because a full disk must not
/// end the command.
pub(crate) fn announce(line: &str) {
    if let Err(error) = print(line) {
        tracing::warn!(%error, "stdout cannot be written");
    }
}

pub(crate) fn print_to(mut out: impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints to stderr. Ignores a closed pipe, where `eprintln!` would panic.
pub(crate) fn print_error(error: impl Display) {
    // Escape the message, because it may contain a name that another client chose.
    let error = escaped_lines(&error.to_string());
    let _ = writeln!(io::stderr(), "lockkeeper: {error}");
}

pub(crate) fn has_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|it| it == "dumb")
}
