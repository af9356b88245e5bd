//! The lock is lost while the command runs.

use crate::running::*;
use crate::stores::*;

/// Prints its pid and the pid of a grandchild in another session. Ends only by SIGKILL.
const STUBBORN: &str = r#"
    trap '' TERM INT HUP
    setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' &
    while :; do sleep 1000 & wait $!; done"#;

on_stores! {
    [served, unix, mortal_zookeeper]
    fn a_server_that_dies_ends_the_command_before_the_lease(store: StoreAt) {
        let mut store = store;
        let running = store.start_script(&["--grace", "1s", "a"], "echo $$; exec sleep 1000");
        let command = Process::new(&running.first);
        store.kill();
        command.ended();
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        let expected = "lockkeeper: the lock was lost: the store was not heard from for too long; ending the command\n";
        assert!(errors.starts_with(expected), "{errors}");
    }

    [served, zookeeper, etcd]
    fn a_command_that_ignores_sigterm_is_killed_with_its_grandchildren(store: StoreAt) {
        let running = store.start_script(&["--grace", "100ms", "a"], STUBBORN);
        let (command, grandchild) = (running.command(), Process::new(&running.first));
        store.revoke();
        command.ended();
        grandchild.ended();
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        assert!(errors.contains("taken away"), "{errors}");
    }

    [served, zookeeper, etcd]
    fn a_revoked_command_may_end_by_itself(store: StoreAt) {
        let script =
            "trap 'echo cleaned; exit 0' TERM; echo held; while :; do sleep 1000 & wait $!; done";
        let running = store.start_script(&["a"], script);
        store.revoke();
        let (status, text, errors) = running.end();
        // The lock was lost, even though the command ended with status 0.
        assert_eq!((status, text.as_str()), (Some(76), "cleaned\n"), "{errors}");
    }

    [served, mortal_zookeeper]
    fn a_server_that_stops_is_a_loss_only_when_the_lease_runs_out(store: StoreAt) {
        let running = store.start_script(&["a"], "echo $$; exec sleep 1000");
        let command = Process::new(&running.first);
        store.stop();
        command.ended();
        let (status, ..) = running.end();
        store.resume();
        assert_eq!(status, Some(76));
    }

    [patient]
    fn the_status_of_a_command_does_not_wait_for_a_dead_store(store: StoreAt) {
        let mut store = store;
        // Use a timeout that is longer than a test may take. If the front waited for the release, it would wait until
        // the session has ended.
        let arguments = ["--session-timeout", "10m", "--connect-timeout", "10m", "a", "--", "sh", "-c", "echo held; read status; exit $status"];
        let mut command = store.command(&["run"]);
        let mut running = Running::spawn(command.args(arguments).stdin(std::process::Stdio::piped()));
        assert_eq!(running.line(), "held");
        store.kill();
        running.write("7\n");
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(7), "{errors}");
        assert!(errors.starts_with("lockkeeper: the release was not confirmed ("), "{errors}");
    }
}
