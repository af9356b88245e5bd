//! A job that runs once per period.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, Output, Stdio};

use lockkeeper_store::ZnodePath;
use rustix::process::Signal;
use serde_json::Value;

use crate::running::*;
use crate::stores::*;
use crate::support::*;

/// Waits for a line, and exits with the status that the line contains. Exits with 0 on SIGTERM.
const UNTIL_TOLD: &str = "trap 'exit 0' TERM; echo begun; read status; exit $status";

const NOT_DUE: &str = "has already run in this period: the run ended ";

/// Starts the job `a`, whose command is a script with a pipe as stdin. Returns when the script has started.
fn begin(store: &StoreAt, script: &str) -> Running {
    let mut command = once_per(store, "1h", &[], &["sh", "-c", script]);
    let mut running = Running::spawn(command.stdin(Stdio::piped()));
    assert_eq!(running.line(), "begun");
    running
}

fn once_per(store: &StoreAt, period: &str, options: &[&str], command: &[&str]) -> Command {
    let arguments = [&["--once-per", period], options, &["a", "--"], command];
    store.under_lock(&arguments.concat())
}

fn call(store: &StoreAt, options: &[&str], command: &[&str]) -> Output {
    once_per(store, "1h", options, command).output().unwrap()
}

#[track_caller]
fn is_skipped(output: &Output) {
    // A skipped call is silent, because otherwise cron would mail a line on all machines but one.
    assert_eq!(success(output), "");
}

#[track_caller]
fn has_run(output: &Output, text: &str) {
    assert_eq!(success(output), text);
}

/// Returns the start of the last recorded run, in milliseconds by the server's clock.
fn last_began(store: &StoreAt) -> i64 {
    block_on(async {
        let path: ZnodePath = "/locks/a/:last-run".parse().unwrap();
        let session = store.connect().await.session().await.unwrap();
        let (data, _) = session.get_data(&path).await.unwrap();
        let record: Value = serde_json::from_slice(&data).unwrap();
        record["began_ms"].as_i64().unwrap()
    })
}

on_stores! {
    [served, zookeeper, etcd]
    fn a_fleet_that_starts_at_once_runs_it_once(store: StoreAt) {
        let script = ["sh", "-c", "echo run >>runs; echo ran"];
        let fleet: Vec<_> = (0..20)
            .map(|number| {
                // Some callers use --try. They return immediately if another caller runs the job.
                let options: &[&str] = if number % 5 == 0 { &["--try"] } else { &[] };
                let mut command = once_per(&store, "1h", options, &script);
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                (options, command.spawn().unwrap())
            })
            .collect();
        let mut runs = 0;
        for (options, member) in fleet {
            let output = member.wait_with_output().unwrap();
            match output.status.code() {
                Some(0) if output.stdout == b"ran\n" => runs += 1,
                Some(75) if !options.is_empty() => assert!(output.stdout.is_empty(), "{output:?}"),
                _ => is_skipped(&output),
            }
        }
        assert_eq!(runs, 1);
        assert_eq!(fs::read_to_string(store.folder.at("runs")).unwrap(), "run\n");
        is_skipped(&call(&store, &[], &script));
        is_skipped(&call(&store, &["--try"], &script));
        is_skipped(&call(&store, &["--timeout", "1m"], &script));
        is_skipped(&call(&store, &["--quiet"], &script));
        for option in ["-v", "--verbose"] {
            let output = call(&store, &[option], &script);
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b""[..]), "{output:?}");
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(told.starts_with("lockkeeper: ") && told.contains(NOT_DUE), "{told}");
        }
    }

    [served, zookeeper]
    fn it_runs_again_when_the_period_of_the_caller_is_over(store: StoreAt) {
        has_run(&call(&store, &[], &["echo", "first"]), "first\n");
        let first = last_began(&store);
        is_skipped(&call(&store, &[], &["echo", "never"]));
        // The period of the current caller counts, not the period of the earlier run.
        let again = || once_per(&store, "1500ms", &[], &["echo", "again"]).output().unwrap();
        let output = loop {
            let output = again();
            if !output.stdout.is_empty() {
                break output;
            }
            is_skipped(&output);
        };
        has_run(&output, "again\n");
        assert!(last_began(&store) >= first + 1_500);
        is_skipped(&call(&store, &[], &["echo", "never"]));
    }

    [served, zookeeper, etcd]
    fn a_command_that_fails_does_not_count(store: StoreAt) {
        for (command, status) in [
            (&["sh", "-c", "exit 3"][..], 3),
            (&["sh", "-c", "kill -9 $$"], 137),
            (&["./missing"], 127),
        ] {
            assert_eq!(call(&store, &[], command).status.code(), Some(status));
        }
        has_run(&call(&store, &[], &["echo", "done"]), "done\n");
        is_skipped(&call(&store, &[], &["echo", "never"]));
    }

    [served, zookeeper, etcd]
    fn while_it_runs_a_try_fails_and_a_wait_has_the_next_turn(store: StoreAt) {
        for (status, next) in [("1", "granted\n"), ("0", "")] {
            let lock = if status == "1" { "once it failed" } else { "once it was done" };
            let mut running = begin(&store, UNTIL_TOLD);
            let output = call(&store, &["--try"], &["echo", "never"]);
            assert_eq!(output.status.code(), Some(75), "{output:?}");
            assert_eq!(output.stderr, b"lockkeeper: /locks/a is not free\n");
            let output = call(&store, &["--timeout", "50ms"], &["echo", "never"]);
            assert_eq!(output.status.code(), Some(75), "{output:?}");
            // The run fails, so the job is still due.
            let waiter = Running::spawn(&mut once_per(&store, "1h", &[], &["sh", "-c", "echo granted; exit 4"]));
            store.queue_has(2);
            running.write(&format!("{status}\n"));
            assert_eq!(running.end().0, status.parse().ok());
            let (status, text, told) = waiter.end();
            assert_eq!(text, next, "{lock}");
            assert_eq!(status, Some(if next.is_empty() { 0 } else { 4 }), "{lock}");
            assert_eq!(told, "", "{lock}");
        }
    }

    [served, zookeeper, etcd]
    fn a_run_that_lost_its_lock_does_not_count(store: StoreAt) {
        let running = begin(&store, UNTIL_TOLD);
        store.revoke();
        // The command succeeds, but only after the lock was lost.
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        has_run(&call(&store, &[], &["echo", "next"]), "next\n");
    }

    [served, zookeeper, etcd]
    fn a_run_whose_front_is_killed_does_not_count(store: StoreAt) {
        let running = begin(&store, UNTIL_TOLD);
        let waiter = Running::spawn(&mut once_per(&store, "1h", &[], &["echo", "next"]));
        store.queue_has(2);
        running.signal(Signal::KILL);
        assert_eq!(waiter.end(), (Some(0), "next\n".into(), String::new()));
        is_skipped(&call(&store, &[], &["echo", "never"]));
    }

    [served, zookeeper, etcd]
    fn a_run_whose_guardian_is_killed_does_not_count(store: StoreAt) {
        let running = begin(&store, UNTIL_TOLD);
        running.guardian().signal(Signal::KILL);
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        has_run(&call(&store, &[], &["echo", "next"]), "next\n");
    }

    [served, zookeeper, etcd]
    fn a_run_that_the_user_ends_does_not_count(store: StoreAt) {
        let running = begin(&store, "echo begun; exec sleep 1000");
        running.signal(Signal::TERM);
        assert_eq!(running.end().0, Some(143));
        has_run(&call(&store, &[], &["echo", "next"]), "next\n");
    }

    [served]
    fn a_run_whose_store_dies_is_said_to_be_unrecorded(store: StoreAt) {
        let mut store = store;
        let mut running = begin(&store, UNTIL_TOLD);
        store.kill();
        running.write("0\n");
        let (status, _, errors) = running.end();
        assert_eq!(status, Some(76), "{errors}");
        let told = "lockkeeper: the command has succeeded, but its run may not be recorded: ";
        assert!(errors.starts_with(told), "{errors}");
    }

    [unix]
    fn a_run_goes_through_a_restart_of_the_server(store: StoreAt) {
        let mut store = store;
        let mut running = begin(&store, UNTIL_TOLD);
        store.kill();
        running.write("0\n");
        store.start_again();
        assert_eq!(running.end(), (Some(0), String::new(), String::new()));
        store.kill();
        store.start_again();
        is_skipped(&call(&store, &[], &["echo", "never"]));
    }
}

#[test]
fn its_help_says_whose_calls_are_counted() {
    let help = success(&lockkeeper(&[&"run", &"--help"]));
    let (_, option) = help.split_once("--once-per <DURATION>").unwrap();
    let (option, _) = option.split_once("\n      --").unwrap();
    let words: Vec<_> = option.split_whitespace().collect();
    let text = words.join(" ");
    assert!(
        text.contains("Without a URL") && text.contains("this user on this machine"),
        "{text}"
    );
}

#[test]
fn without_a_url_it_runs_once_on_this_machine() {
    let folder = TempFolder::short();
    let home = folder.at("home");
    fs::DirBuilder::new().mode(0o700).create(&home).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        // Set this so that the store's server ends even if the test does not finish.
        command.args(arguments).env_clear().env("HOME", &home);
        command.env("LOCKKEEPER_LOCAL_IDLE", "10s");
        command.output().unwrap()
    };
    let call = || command(&["run", "--once-per", "1h", "a", "--", "/bin/echo", "ran"]);
    let calls: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..5).map(|_| scope.spawn(call)).collect();
        calls.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let (ran, skipped): (Vec<_>, Vec<_>) = calls.iter().partition(|it| !it.stdout.is_empty());
    assert_eq!(ran.len(), 1, "{calls:?}");
    skipped.into_iter().for_each(is_skipped);
    success(&command(&["local", "--stop"]));
    // The record of the run is on disk.
    is_skipped(&call());
    success(&command(&["local", "--stop"]));
}
