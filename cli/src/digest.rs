//! `lockkeeper digest`: computes the digest that servers and access control lists expect for a user name and password.

use std::io::{self, BufRead, IsTerminal, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use sha1::{Digest, Sha1};

pub(crate) fn of(user: &str, password: &str) -> Result<String, &'static str> {
    if user.is_empty() || user.contains(':') {
        return Err("invalid user name: it must not be empty nor have a colon");
    }
    let hash = Sha1::digest(format!("{user}:{password}"));
    Ok(format!("{user}:{}", BASE64_STANDARD.encode(hash)))
}

pub(crate) fn read_password() -> io::Result<String> {
    if !io::stdin().is_terminal() {
        return read_line();
    }
    let silent = Silence::begin()?;
    eprint!("Password: ");
    io::stderr().flush()?;
    let password = read_line();
    drop(silent);
    eprintln!();
    password
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let line = line.strip_suffix('\n').unwrap_or(&line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        let reason = "no password on the standard input";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(line.to_owned())
}

/// A guard that switches off the terminal's echo until it is dropped.
struct Silence(Termios);

impl Silence {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    /// Output of `DigestAuthenticationProvider super:test` in ZooKeeper 3.8.
    #[test]
    fn a_digest_is_zookeepers() {
        let digest = super::of("super", "test").unwrap();
        assert_eq!(digest, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
        assert!(super::of("", "test").is_err() && super::of("a:b", "test").is_err());
    }
}
