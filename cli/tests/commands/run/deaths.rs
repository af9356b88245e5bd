//! A process of `lockkeeper run` is killed or stopped.

use std::process::Stdio;

use rustix::process::Signal;

use crate::running::*;
use crate::stores::*;

/// A process tree that ends only by SIGKILL, as in [`super::losses`].
const STUBBORN: &str = r#"
    trap '' TERM INT HUP
    setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' &
    while :; do sleep 1000 & wait $!; done"#;

/// Starts a process that waits for the lock. When its command runs, it looks for the processes of the first holder.
fn next_holder(store: &StoreAt, first: &[Process]) -> Running {
    let script = r#"for pid; do kill -0 "$pid" && echo "$pid lives"; done; echo granted"#;
    let pids: Vec<_> = first
        .iter()
        .map(|it| it.pid.as_raw_pid().to_string())
        .collect();
    let mut arguments = vec!["a", "--", "sh", "-c", script, "sh"];
    arguments.extend(pids.iter().map(String::as_str));
    let waiter = Running::spawn(&mut store.under_lock(&arguments));
    store.queue_has(2);
    waiter
}

/// Checks that the next holder is granted the lock only when no process of the first holder is left.
fn the_next_is_granted_after(processes: &[Process], mut next: Running) {
    assert_eq!(next.line(), "granted");
    assert!(processes.iter().all(Process::has_ended));
    assert_eq!(next.end().0, Some(0));
}

on_stores! {
    [served, unix, zookeeper, etcd]
    fn the_front_is_killed(store: StoreAt) {
        let running = store.start_script(&["--grace", "100ms", "a"], STUBBORN);
        let processes = [running.command(), Process::new(&running.first)];
        let next = next_holder(&store, &processes);
        running.signal(Signal::KILL);
        the_next_is_granted_after(&processes, next);
    }

    [served, unix, zookeeper, etcd]
    fn the_guardian_is_killed(store: StoreAt) {
        let running = store.start_script(&["--grace", "100ms", "a"], STUBBORN);
        let processes = [running.command(), Process::new(&running.first)];
        let next = next_holder(&store, &processes);
        running.guardian().signal(Signal::KILL);
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        assert!(errors.contains("the guardian process has died"), "{errors}");
        assert!(
            processes.iter().all(Process::has_ended),
            "no orphan is left"
        );
        the_next_is_granted_after(&processes, next);
    }

    [served, zookeeper, etcd]
    fn the_guardian_is_stopped(store: StoreAt) {
        let running = store.start_script(&["a"], STUBBORN);
        let guardian = running.guardian();
        let processes = [running.command(), Process::new(&running.first)];
        let next = next_holder(&store, &processes);
        guardian.signal(Signal::STOP);
        the_next_is_granted_after(&processes, next);
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        assert!(errors.contains("did not renew it"), "{errors}");
        guardian.ended();
    }

    [served, unix, zookeeper, etcd]
    fn the_front_and_the_guardian_are_killed(store: StoreAt) {
        let running = store.start_script(&["--grace", "100ms", "a"], STUBBORN);
        let processes = [running.command(), Process::new(&running.first)];
        let next = next_holder(&store, &processes);
        let guardian = running.guardian();
        running.signal(Signal::STOP);
        guardian.signal(Signal::KILL);
        running.signal(Signal::KILL);
        the_next_is_granted_after(&processes, next);
    }

    [served, zookeeper, etcd]
    fn the_front_and_the_guardian_are_stopped(store: StoreAt) {
        let running = store.start_script(&["a"], STUBBORN);
        let processes = [running.command(), Process::new(&running.first)];
        let next = next_holder(&store, &processes);
        let guardian = running.guardian();
        running.signal(Signal::STOP);
        guardian.signal(Signal::STOP);
        the_next_is_granted_after(&processes, next);
        guardian.signal(Signal::CONT);
        running.signal(Signal::CONT);
        assert_eq!(running.end().0, Some(76));
    }

    [served, unix, zookeeper, etcd]
    fn the_reaper_is_killed_or_stopped(store: StoreAt) {
        let start = || {
            let running = store.start_script(&["--grace", "100ms", "a"], STUBBORN);
            let processes = [running.command(), Process::new(&running.first)];
            let next = next_holder(&store, &processes);
            (running, processes, next)
        };
        let (running, processes, next) = start();
        running.reaper().signal(Signal::KILL);
        the_next_is_granted_after(&processes, next);
        assert_eq!(running.end().0, Some(76));
        let (running, processes, next) = start();
        let (guardian, reaper) = (running.guardian(), running.reaper());
        guardian.signal(Signal::STOP);
        reaper.signal(Signal::KILL);
        guardian.signal(Signal::KILL);
        the_next_is_granted_after(&processes, next);
        assert_eq!(running.end().0, Some(76));
        let (running, processes, next) = start();
        running.reaper().signal(Signal::STOP);
        running.signal(Signal::KILL);
        the_next_is_granted_after(&processes, next);
        let (running, processes, next) = start();
        let (guardian, reaper) = (running.guardian(), running.reaper());
        reaper.signal(Signal::STOP);
        guardian.signal(Signal::STOP);
        the_next_is_granted_after(&processes, next);
        assert_eq!(running.end().0, Some(76));
    }

    [served]
    fn the_reaper_is_stopped_and_continued(store: StoreAt) {
        let script = "echo held; read line; echo $line";
        let mut command = store.under_lock(&["a", "--", "sh", "-c", script]);
        let mut running = Running::spawn(command.stdin(Stdio::piped()));
        assert_eq!(running.line(), "held");
        let reaper = running.reaper();
        reaper.signal(Signal::STOP);
        // Sleep beyond the end of the last lease that the reaper knows.
        std::thread::sleep(std::time::Duration::from_secs(5));
        reaper.signal(Signal::CONT);
        running.write("on\n");
        assert_eq!(running.end(), (Some(0), "on\n".into(), String::new()));
    }

    [served, unix, zookeeper, etcd]
    fn a_waiter_that_is_stopped_is_passed_over(store: StoreAt) {
        let mut holder = Running::spawn(store.under_lock(&["a", "--", "sh", "-c", "echo held; read line"]).stdin(Stdio::piped()));
        assert_eq!(holder.line(), "held");
        let stopped = Running::spawn(&mut store.under_lock(&["a", "--", "echo", "granted"]));
        store.queue_has(2);
        stopped.signal(Signal::STOP);
        let next = Running::spawn(&mut store.under_lock(&["--timeout", "20s", "a", "--", "true"]));
        store.queue_has(3);
        holder.write("\n");
        assert_eq!(next.end(), (Some(0), String::new(), String::new()));
        // When the stopped process continues, it is granted the lock.
        stopped.signal(Signal::CONT);
        assert_eq!(stopped.end(), (Some(0), "granted\n".into(), String::new()));
    }

    [served, zookeeper, etcd]
    fn the_front_is_stopped_and_continued(store: StoreAt) {
        let script = "echo held; read line; echo $line";
        let mut command = store.under_lock(&["a", "--", "sh", "-c", script]);
        let mut running = Running::spawn(command.stdin(Stdio::piped()));
        assert_eq!(running.line(), "held");
        running.signal(Signal::STOP);
        // The guardian does not need the front, so the command continues and ends.
        running.write("on\n");
        assert_eq!(running.line(), "on");
        let mut next = Running::spawn(&mut store.under_lock(&["a", "--", "echo", "granted"]));
        assert_eq!(next.line(), "granted");
        running.signal(Signal::CONT);
        assert_eq!(running.end(), (Some(0), String::new(), String::new()));
    }

    [served, zookeeper, etcd]
    fn the_command_is_killed(store: StoreAt) {
        let running = store.start_script(&["--grace", "100ms", "a"], STUBBORN);
        let (command, grandchild) = (running.command(), Process::new(&running.first));
        command.signal(Signal::KILL);
        let (status, ..) = running.end();
        assert_eq!(status, Some(137));
        assert!(grandchild.has_ended());
    }
}

/// A process whose main thread has ended. It ignores SIGTERM, and ps shows it as a zombie.
const WITHOUT_MAIN_THREAD: &str = r#"
import ctypes, os, platform, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=[1000]).start()
exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
print(os.getpid(), flush=True)
ctypes.CDLL(None).syscall(exit_thread, 0)"#;

on_stores! {
    [served, unix, zookeeper, etcd]
    fn a_process_without_its_main_thread_is_ended(store: StoreAt) {
        let start = || {
            let arguments = ["--grace", "100ms", "a", "--", "python3", "-c", WITHOUT_MAIN_THREAD];
            let mut running = Running::spawn(&mut store.under_lock(&arguments));
            let process = Process::new(&running.line());
            (running, process)
        };
        let (running, process) = start();
        running.signal(Signal::KILL);
        process.ended();
        let (running, process) = start();
        store.revoke();
        process.ended();
        assert_eq!(running.end().0, Some(76));
        let (running, process) = start();
        running.guardian().signal(Signal::STOP);
        process.ended();
        assert_eq!(running.end().0, Some(76));
    }
}

/// The system first reports the guardian's end to the tracer, and this test does not collect that report.
#[test]
fn the_guardian_is_stopped_by_a_debugger() {
    let store = StoreAt::served();
    let running = store.start_script(&["a"], STUBBORN);
    let processes = [running.command(), Process::new(&running.first)];
    let guardian = nix::unistd::Pid::from_raw(running.guardian().pid.as_raw_pid());
    nix::sys::ptrace::attach(guardian).unwrap();
    for process in &processes {
        process.ended();
    }
    let (status, _, errors) = running.end();
    assert_eq!(status, Some(76), "{errors}");
}

/// This is like a chroot or container with its own pids whose /proc shows other processes or none.
#[test]
fn a_command_whose_processes_cannot_be_seen_is_not_started() {
    let store = StoreAt::served();
    let no_cgroups = "mount -t tmpfs none /sys/fs/cgroup && ";
    for no_proc in ["", "mount -t tmpfs none /proc && "] {
        let apart = "unshare --user --map-root-user --mount --pid --fork --kill-child";
        let script =
            format!(r#"{apart} sh -c '{no_cgroups}{no_proc}exec "$0" run a -- echo started' "$0""#);
        let output = store.shell(&script).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.starts_with("lockkeeper: /proc "), "{told}");
    }
}
