//! `lockkeeper elect`: a command of the leader.

use rustix::process::Signal;

use crate::running::*;
use crate::stores::*;

on_stores! {
    [served, zookeeper]
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

    [served, zookeeper]
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
        let mut leader = Running::spawn(command.stdin(std::process::Stdio::piped()));
        let token = leader.line();
        assert_eq!(observer.line(), format!("{token} 10.0.0.1:80"));
        leader.write("\n");
        assert_eq!(leader.end(), (Some(4), String::new(), String::new()));
        assert_eq!(observer.line(), "-");
    }
}
