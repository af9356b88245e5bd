//! `lockkeeper elect`: a command that runs on the leader.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::running::*;
use crate::stores::*;
use crate::support::TempFolder;

on_stores! {
    [served, zookeeper, etcd]
    fn a_loss_ends_the_command_and_the_next_term_starts_it_again(store: StoreAt) {
        let script = "echo $LOCKKEEPER_TOKEN; exec sleep 1000";
        let elect = ["--label", "first", "a", "--", "sh", "-c", script];
        let mut leader = Running::spawn(&mut store.subcommand("elect", &elect));
        let first: i64 = leader.line().parse().unwrap();
        store.revoke();
        let second: i64 = leader.line().parse().unwrap();
        assert!(first < second);
        leader.signal(Signal::TERM);
        let (status, text, errors) = leader.end();
        assert_eq!((status, text.as_str()), (Some(143), ""), "{errors}");
        assert_eq!(errors.matches("the lock was lost").count(), 1, "{errors}");
    }

    [served, zookeeper, etcd]
    fn the_leaders_are_printed_as_they_change(store: StoreAt) {
        let mut observer = Running::spawn(&mut store.subcommand("elect", &["--observe", "a"]));
        assert_eq!(observer.line(), "-");
        let script = [
            "--label",
            "10.0.0.1:80",
            "a",
            "--",
            "sh",
            "-c",
            "echo $LOCKKEEPER_TOKEN; read line; exit 4",
        ];
        let mut command = store.subcommand("elect", &script);
        let mut leader = Running::spawn(command.stdin(Stdio::piped()));
        let token = leader.line();
        assert_eq!(observer.line(), format!("{token} 10.0.0.1:80"));
        leader.write("\n");
        assert_eq!(leader.end(), (Some(4), String::new(), String::new()));
        assert_eq!(observer.line(), "-");
    }

    [unix, mortal_zookeeper]
    fn a_store_that_comes_back_has_a_leader_again(store: StoreAt) {
        let mut store = store;
        let candidate = |label: &str| {
            let script = "echo $$; exec sleep 1000";
            let elect = ["--label", label, "a", "--", "sh", "-c", script];
            Running::spawn(&mut store.subcommand("elect", &elect))
        };
        let mut observer = Running::spawn(&mut store.subcommand("elect", &["--observe", "a"]));
        assert_eq!(observer.line(), "-");
        let mut first = candidate("first");
        let command = Process::new(&first.line());
        let second = candidate("second");
        store.queue_has(2);
        let before = next_leader(&mut observer);
        assert_eq!(before.1, "first");

        store.go_away();
        command.ended();
        store.come_back();
        // First, either candidate leads for another term. Then the other candidate leads.
        let one = next_leader(&mut observer);
        assert!(one.0 > before.0, "{one:?} after {before:?}");
        let (leader, other) = match &*one.1 {
            "first" => (first, second),
            _ => (second, first),
        };
        leader.signal(Signal::TERM);
        assert_eq!(leader.end().0, Some(143));
        let last = next_leader(&mut observer);
        assert!(last.0 > one.0 && last.1 != one.1, "{last:?} after {one:?}");
        other.signal(Signal::TERM);
        assert_eq!(other.end().0, Some(143));
        assert_eq!(observer.line(), "-");
    }

    [unix]
    fn a_candidate_whose_guardian_says_late_that_its_command_has_ended_campaigns_again(store: StoreAt) {
        let mut store = store;
        let folder = TempFolder::short();
        // The first command that is asked to end stops its guardian, so that the guardian cannot report the end.
        let script = r#"guardian=$(sed -n 's/PPid://p' /proc/$PPID/status)
            trap '[ -e "$0" ] || { : >"$0"; kill -STOP $guardian; }; exit 3' TERM
            echo $$; while :; do sleep 0.1; done"#;
        let has_stopped = folder.at("stopped").display().to_string();
        let elect = ["a", "--", "sh", "-c", script, &has_stopped];
        let mut candidate = Running::spawn(&mut store.subcommand("elect", &elect));
        let command = Process::new(&candidate.line());
        let guardian = candidate.guardian();
        store.go_away();
        command.ended();
        // Sleep until after the time at which the front kills the remaining processes, which is before the end of the
        // lease.
        std::thread::sleep(Duration::from_secs(2));
        guardian.signal(Signal::CONT);
        store.come_back();
        let next = candidate.line();
        assert!(!next.is_empty(), "{:?}", candidate.end());
        candidate.signal(Signal::TERM);
        assert_eq!(candidate.end().0, Some(3));
    }

    [served, zookeeper, etcd]
    fn a_candidate_that_is_stopped_is_passed_over(store: StoreAt) {
        let held = ["a", "--", "sh", "-c", "echo held; read line"];
        let mut leader = Running::spawn(store.subcommand("elect", &held).stdin(Stdio::piped()));
        assert_eq!(leader.line(), "held");
        let stopped = Running::spawn(&mut store.subcommand("elect", &["a", "--", "echo", "leads"]));
        store.queue_has(2);
        stopped.signal(Signal::STOP);
        let next = Running::spawn(&mut store.subcommand("elect", &["a", "--", "echo", "next"]));
        store.queue_has(3);
        leader.write("\n");
        assert_eq!(next.end(), (Some(0), "next\n".into(), String::new()));
        stopped.signal(Signal::CONT);
        assert_eq!(stopped.end(), (Some(0), "leads\n".into(), String::new()));
    }

    [served, zookeeper, etcd]
    fn a_candidate_that_was_removed_from_the_queue_joins_it_again(store: StoreAt) {
        let held = ["a", "--", "sh", "-c", "echo held; exec sleep 1000"];
        let mut leader = Running::spawn(&mut store.subcommand("elect", &held));
        assert_eq!(leader.line(), "held");
        let mut waiter = Running::spawn(&mut store.subcommand("elect", &["a", "--", "echo", "granted"]));
        store.queue_has(2);
        // The waiter watches only the entry ahead. Therefore it notices that its own entry is missing only when the
        // entry ahead is deleted.
        store.remove(1);
        leader.signal(Signal::TERM);
        assert_eq!(waiter.line(), "granted");
        assert_eq!(waiter.end().0, Some(0));
    }

    [served]
    fn a_candidate_that_is_told_to_end_while_it_loses_its_term_campaigns_no_more(store: StoreAt) {
        let script = "trap 'asked=$asked.; echo $asked; [ $asked != .. ] || exit 3' TERM
            echo started; while :; do sleep 1; done";
        let elect = ["--grace", "1m", "a", "--", "sh", "-c", script];
        let mut leader = Running::spawn(&mut store.subcommand("elect", &elect));
        assert_eq!(leader.line(), "started");
        store.revoke();
        assert_eq!(leader.line(), ".");
        leader.signal(Signal::TERM);
        assert_eq!(leader.line(), "..");
        // An empty line is the end of the output. There was no other term.
        assert_eq!(leader.line(), "");
        assert_eq!(leader.end().0, Some(76));
    }

    [served, zookeeper, etcd]
    fn an_observer_that_nobody_reads_ends(store: StoreAt) {
        let mut command = store.subcommand("elect", &["--observe", "a"]);
        let mut observer = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(observer.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "-\n");
        drop(stdout);
        let mut term = store.subcommand("elect", &["a", "--", "true"]);
        assert!(term.status().unwrap().success());
        assert!(observer.wait().unwrap().success());
    }
}

fn next_leader(observer: &mut Running) -> (i64, String) {
    loop {
        let line = observer.line();
        if let Some((epoch, label)) = line.split_once(' ') {
            return (epoch.parse().unwrap(), label.to_owned());
        }
        assert_eq!(line, "-", "the observer goes on");
    }
}
