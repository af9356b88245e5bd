//! The lock is lost while the command runs.

use rustix::process::Signal;

use super::arena::*;

/// Prints its pid and that of a grandchild in a session of its own, and ends by SIGKILL only.
const STUBBORN: &str = r#"
    trap '' TERM INT HUP
    setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' &
    while :; do sleep 1000 & wait $!; done"#;

#[test]
fn a_server_that_dies_ends_the_command_before_the_lease() {
    for arena in [Arena::tcp(), Arena::unix(), Arena::zookeeper()] {
        let running = arena.start_script(&["--grace", "1s", "a"], "echo $$; exec sleep 1000");
        let command = Process::new(&running.first);
        let Arena { server, folder, .. } = arena;
        let _ = server.end(Signal::KILL);
        command.ended();
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        let expected = "lockkeeper: the lock was lost: the store was not heard of for too long; ending the command\n";
        assert!(errors.starts_with(expected), "{errors}");
        drop(folder);
    }
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_with_its_grandchildren() {
    let arena = Arena::tcp();
    let running = arena.start_script(&["--grace", "100ms", "a"], STUBBORN);
    let (command, grandchild) = (running.command(), Process::new(&running.first));
    arena.revoke();
    command.ended();
    grandchild.ended();
    let (status, _, errors) = running.end();
    assert_eq!(status, Some(76), "{errors}");
    assert!(errors.contains("taken away"), "{errors}");
}

#[test]
fn a_revoked_command_may_end_by_itself() {
    let arena = Arena::tcp();
    let script =
        "trap 'echo cleaned; exit 0' TERM; echo held; while :; do sleep 1000 & wait $!; done";
    let running = arena.start_script(&["a"], script);
    arena.revoke();
    let (status, text, errors) = running.end();
    // The lock was lost all the same.
    assert_eq!((status, text.as_str()), (Some(76), "cleaned\n"), "{errors}");
}

#[test]
fn a_server_that_stops_is_a_loss_only_when_the_lease_runs_out() {
    let arena = Arena::tcp();
    let running = arena.start_script(&["a"], "echo $$; exec sleep 1000");
    let command = Process::new(&running.first);
    arena.server.signal(Signal::STOP);
    command.ended();
    let (status, ..) = running.end();
    arena.server.signal(Signal::CONT);
    assert_eq!(status, Some(76));
}
