//! `lockkeeper digest`.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::support::*;

fn digest(user: &str, password: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["digest", user]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Ignore an error, because the command may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(password.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_digest_is_what_the_options_take() {
    let said = success(&digest("super", "test\n"));
    assert_eq!(said, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=\n");
    let digest = said.trim_end();
    for option in ["--user", "--super-digest"] {
        success(&lockkeeper(&[
            &"serve",
            &"--check-config",
            &option,
            &digest,
        ]));
    }
}

#[test]
fn a_password_is_one_line_with_all_its_blanks() {
    let plain = success(&digest("jane", " a b "));
    assert_eq!(plain, success(&digest("jane", " a b \r\nignored\n")));
    assert_ne!(plain, success(&digest("jane", "a b")));
}

#[test]
fn no_password_and_no_name_are_refused() {
    assert!(failure(&digest("jane", "")).contains("no password"));
    assert!(failure(&digest("jane", "\n")).contains("no password"));
    assert!(failure(&digest("", "x")).contains("name"));
    assert!(failure(&digest("a:b", "x")).contains("colon"));
}

#[test]
fn a_terminal_does_not_show_the_password() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new())
        .unwrap()
        .into_string()
        .unwrap();
    let side = File::options().read(true).write(true).open(name).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command
        .args(["digest", "super"])
        .stdin(side.try_clone().unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // When the whole prompt has arrived, the echo is already off.
    let mut asked = [0; 10];
    child
        .stderr
        .as_mut()
        .unwrap()
        .read_exact(&mut asked)
        .unwrap();
    assert_eq!(&asked, b"Password: ");
    let mut terminal = File::from(terminal);
    terminal.write_all(b"test\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(out(&output), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=\n");
    // The input is not echoed, so we read back only what this side writes.
    (&side).write_all(b"end").unwrap();
    let mut shown = [0; 3];
    terminal.read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"end");
}
