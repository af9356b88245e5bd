//! Signals reach the whole process group of the command.

use rustix::process::Signal;

use crate::running::*;
use crate::stores::*;

on_stores! {
    [served, zookeeper, etcd]
    fn a_signal_reaches_the_whole_group(store: StoreAt) {
        let script = r#"
            trap 'wait $!; echo parent; exit 5' USR1
            sh -c 'trap "echo child; exit" USR1; echo ready; while :; do sleep 1000 & wait $!; done' &
            wait"#;
        let running = store.start_script(&["a"], script);
        assert_eq!(running.first, "ready");
        running.signal(Signal::USR1);
        let (status, text, errors) = running.end();
        assert_eq!(
            (status, text.as_str()),
            (Some(5), "child\nparent\n"),
            "{errors}"
        );
    }

    [served, zookeeper, etcd]
    fn a_command_that_dies_of_a_signal_has_its_status(store: StoreAt) {
        // The tests may run under `nohup`, where signals stay ignored. Restore their default handling.
        let script = r#"exec env --default-signal "$0" run a -- sh -c 'echo held; exec sleep 1000'"#;
        for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let mut running = Running::spawn(&mut store.shell(script));
            assert_eq!(running.line(), "held");
            running.signal(signal);
            assert_eq!(running.end(), (Some(status), String::new(), String::new()));
        }
    }

    [served, zookeeper, etcd]
    fn a_signal_ends_a_wait_and_leaves_nothing_in_the_queue(store: StoreAt) {
        let holder = store.start_script(&["a"], "echo held; exec sleep 1000");
        let waiter = Running::spawn(&mut store.under_lock(&["a", "--", "echo", "never"]));
        store.queue_has(2);
        waiter.signal(Signal::TERM);
        assert_eq!(waiter.end(), (Some(143), String::new(), String::new()));
        store.queue_has(1);
        drop(holder);
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let store = StoreAt::served();
    let script = r#"trap '' HUP; exec "$0" run a -- sh -c 'echo held; read line; echo "$line"'"#;
    let mut command = store.shell(script);
    command.stdin(std::process::Stdio::piped());
    let mut running = Running::spawn(&mut command);
    assert_eq!(running.line(), "held");
    running.signal(Signal::HUP);
    running.write("after\n");
    assert_eq!(running.end(), (Some(0), "after\n".into(), String::new()));
}

/// Some service managers start their services with SIGCHLD ignored.
#[test]
fn an_ignored_end_of_children_stays_ignored() {
    let store = StoreAt::served();
    let script = r#"exec env --ignore-signal=CHLD "$0" run a -- grep SigIgn /proc/self/status"#;
    let output = store.shell(script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let mask = text.trim().rsplit('\t').next().unwrap();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert!(mask >> (Signal::CHILD.as_raw() - 1) & 1 == 1, "{text}");
}

on_stores! {
    [served, zookeeper, etcd]
    fn what_the_command_leaves_behind_is_ended_before_the_release(store: StoreAt) {
        let script = "sleep 1001 & echo $!; setsid sleep 1002 & echo $!; read line; exit 3";
        let mut command = store.under_lock(&["a", "--", "sh", "-c", script]);
        let mut running = Running::spawn(command.stdin(std::process::Stdio::piped()));
        let left = [running.line(), running.line()].map(|pid| Process::new(&pid));
        running.write("\n");
        assert_eq!(running.end(), (Some(3), String::new(), String::new()));
        assert!(left.iter().all(Process::has_ended));
    }
}
