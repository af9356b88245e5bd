//! `lockkeeper revoke`.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Stdio};

use lockkeeper::{LockOptions, LostReason, Mutex, RwLock};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::locks::named;
use super::stores::*;
use super::support::*;

/// A command whose stdin and stderr are a terminal.
struct AtTerminal {
    child: Child,
    terminal: File,
    /// Our own open file of the terminal. Without it, the terminal would be gone when the command ends.
    _side: File,
}

impl AtTerminal {
    fn start(store: &StoreAt, arguments: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let name = name.into_string().unwrap();
        let side = File::options().read(true).write(true).open(name).unwrap();
        let mut command = store.command(arguments);
        command.stdin(side.try_clone().unwrap());
        command.stderr(side.try_clone().unwrap());
        Self {
            child: command.stdout(Stdio::piped()).spawn().unwrap(),
            terminal: terminal.into(),
            _side: side,
        }
    }

    fn shows(&mut self, text: &str) -> String {
        let mut shown = Vec::new();
        while !String::from_utf8_lossy(&shown).contains(text) {
            let mut byte = [0];
            self.terminal.read_exact(&mut byte).unwrap();
            shown.extend(byte);
        }
        String::from_utf8(shown).unwrap()
    }

    fn answer(mut self, line: &str) -> (Option<i32>, String) {
        self.terminal.write_all(line.as_bytes()).unwrap();
        let status = self.child.wait().unwrap();
        let mut out = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut out).unwrap();
        (status.code(), out)
    }
}

const QUESTION: &str = "Take the lock away? [y/N] ";

on_each_store! {
    async fn a_holder_is_asked(store: StoreAt) {
        let client = store.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let options = LockOptions::new().label("night\u{1b}run");
        let guard = mutex.lock_with(options).await.unwrap();
        let said = success(&store.run(&["revoke", "a", "--by", "jane"]));
        let wanted = format!(r"a: asked token {}, night\u{{1b}}run, host ", guard.fencing_token());
        assert!(said.starts_with(&wanted), "{said}");
        assert_eq!(guard.revocation_requested().await.unwrap().by.as_deref(), Some("jane"));
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let nobody = store.run(&["revoke", "/locks/a"]);
        assert_eq!(failure(&nobody), "lockkeeper: nobody holds a\n");
        for more in [&["--force", "--yes"][..], &["--wait"]] {
            let arguments = [&["revoke", "a"], more].concat();
            assert!(failure(&store.run(&arguments)).contains("nobody holds a"));
        }
    }

    async fn it_waits_until_the_lock_is_released(store: StoreAt) {
        let client = store.connect().await;
        let guard = Mutex::new(&client, named("a")).unwrap().lock().await.unwrap();
        let late = store.run(&["revoke", "a", "--wait=50ms"]);
        assert_eq!(late.status.code(), Some(75), "{late:?}");
        let _ = guard.revocation_requested().await.unwrap();
        let mut child = store.command(&["revoke", "a", "--wait"]).stdout(Stdio::null()).spawn().unwrap();
        guard.revocation_requested().await.unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it is held");
        guard.release().await.unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    async fn no_lock_is_taken_away_without_a_word(store: StoreAt) {
        let client = store.connect().await;
        let shared = RwLock::new(&client, named("a")).unwrap();
        let readers = [shared.read().await.unwrap(), shared.read().await.unwrap()];
        for arguments in [&["revoke", "a", "--force"][..], &["revoke", "a", "--yes"]] {
            let refused = store.run(arguments);
            assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        }
        for answer in ["n\n", "\n", "what\n", "\u{4}"] {
            let mut command = AtTerminal::start(&store, &["revoke", "a", "--force"]);
            let shown = command.shows(QUESTION);
            assert_eq!(shown.matches("a is held by token ").count(), 2, "{shown}");
            assert_eq!(command.answer(answer), (Some(1), String::new()));
        }
        assert_eq!(lockkeeper::queue(&client, named("a")).await.unwrap().len(), 2);
        let said = success(&store.run(&["revoke", "a", "--force", "--yes"]));
        assert_eq!(said.matches("a: removed token ").count(), 2, "{said}");
        for reader in readers {
            assert_eq!(reader.lost().await, LostReason::Revoked);
        }
    }

    async fn the_holder_that_was_shown_is_taken_away_and_no_other(store: StoreAt) {
        let client = store.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let first = mutex.lock().await.unwrap();
        let mut command = AtTerminal::start(&store, &["revoke", "a", "--force"]);
        command.shows(QUESTION);
        // Another client is granted the lock before the user answers.
        first.release().await.unwrap();
        let second = mutex.lock().await.unwrap();
        assert_eq!(command.answer("y\n"), (Some(1), String::new()));
        let entries = lockkeeper::queue(&client, named("a")).await.unwrap();
        assert_eq!(entries[0].path, *second.path());
        let mut command = AtTerminal::start(&store, &["revoke", "a", "--force"]);
        command.shows(QUESTION);
        let (status, said) = command.answer("y\n");
        assert_eq!(status, Some(0));
        assert!(said.starts_with("a: removed token "), "{said}");
        assert_eq!(second.lost().await, LostReason::Revoked);
    }
}
