//! Commands whose processes end all the time, and a front that is signalled all the time.

use std::time::Duration;

use rustix::process::Signal;

use crate::running::*;
use crate::stores::*;

/// Starts orphans that end in quick succession, for longer than a lease. Then prints `done`.
const ORPHANS: &str =
    "n=0; while [ $n -lt 60 ]; do (sleep 0.01 &); sleep 0.1; n=$((n + 1)); done; echo done";

/// Like [`ORPHANS`], but with a chain of processes. Each process starts the next one and ends.
const CHAINS: &str = r#"
    chain='
import os, time
end = time.monotonic() + 6
while time.monotonic() < end:
    if os.fork():
        os._exit(0)'
    python3 -c "$chain"
    sleep 7
    echo done"#;

on_stores! {
    [served, unix, zookeeper, etcd]
    fn a_healthy_command_whose_orphans_end_keeps_its_lock(store: StoreAt) {
        let commands = [ORPHANS, CHAINS].map(|script| {
            let arguments = ["--", "sh", "-c", script];
            let names = [&["a"], &["b"]][usize::from(script == CHAINS)];
            Running::spawn(&mut store.under_lock(&[names, &arguments[..]].concat()))
        });
        for command in commands {
            assert_eq!(command.end(), (Some(0), "done\n".into(), String::new()));
        }
    }
}

on_stores! {
    [served, unix, zookeeper, etcd]
    fn a_daemon_does_not_outlive_the_lock(store: StoreAt) {
        daemons_end_before_the_release(&store.folder, |arguments| store.under_lock(arguments));
    }
}

/// The socket to the guardian has room for only some of the signals.
#[test]
fn a_signal_behind_thousands_of_others_arrives() {
    let store = StoreAt::patient();
    let arguments = ["--session-timeout", "10m", "a", "--", "sh", "-c"];
    let script = "trap 'exit 5' TERM; echo held; while :; do sleep 1000 & wait $!; done";
    let mut command = store.command(&["run"]);
    let mut running = Running::spawn(command.args(arguments).arg(script));
    assert_eq!(running.line(), "held");
    let guardian = running.guardian();
    guardian.signal(Signal::STOP);
    for _ in 0..1_000 {
        running.signal(Signal::CONT);
        // Sleep, because two pending signals of the same kind would be merged.
        std::thread::sleep(Duration::from_millis(1));
    }
    running.signal(Signal::TERM);
    guardian.signal(Signal::CONT);
    assert_eq!(running.end().0, Some(5));
}
