//! Exit statuses, environment and names.

use crate::running::*;
use crate::stores::*;
use crate::support::*;

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

on_stores! {
    [served, unix, zookeeper, etcd]
    fn the_status_of_the_command_is_passed_on(store: StoreAt) {
        for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
            let output = store.output(&["a", "--", "sh", "-c", script]);
            assert_eq!(output.status.code(), Some(status), "{output:?}");
            assert!(
                output.stderr.is_empty() && output.stdout.is_empty(),
                "{output:?}"
            );
        }
    }
}

#[test]
fn a_command_that_cannot_be_executed_has_a_shells_status() {
    let store = StoreAt::served();
    let output = store.output(&["a", "--", "./missing"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(stderr(&output).starts_with("lockkeeper: ./missing cannot be executed: "));
    std::fs::write(store.folder.at("plain"), "text").unwrap();
    let output = store.output(&["a", "--", "./plain"]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
}

on_stores! {
    [served, zookeeper, etcd]
    fn a_lock_that_is_held_is_not_acquired(store: StoreAt) {
        let holder = store.start_script(&["a"], "echo held; exec sleep 1000");
        let output = store.output(&["--try", "a", "--", "echo", "never"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert_eq!(stderr(&output), "lockkeeper: /locks/a is not free\n");
        let output = store.output(&["--timeout", "50ms", "a", "--", "echo", "never"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(stderr(&output).contains("1 ahead") && output.stdout.is_empty());
        let output = store.output(&["--timeout", "0s", "a", "--", "echo", "never"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert_eq!(stderr(&output), "lockkeeper: /locks/a is not free\n");
        success(&store.output(&["--timeout", "0s", "b", "--", "true"]));
        let output = store.output(&["--try", "--all", "b,a", "--", "echo", "never"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert_eq!(
            store.output(&["--try", "b", "--", "true"]).status.code(),
            Some(0)
        );
        drop(holder);
        let output = store.output(&["a", "--", "echo", "now"]);
        assert_eq!(out(&output), "now\n");
    }
}

#[test]
fn another_number_of_permits_is_refused_and_the_right_option_is_named() {
    let store = StoreAt::served();
    success(&store.output(&["--permits", "1/3", "a", "--", "true"]));
    let output = store.output(&["--permits", "2/4", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(
        stderr(&output),
        "lockkeeper: /locks/a has 3 permits, not 4: write --permits N/3, or change the number with `lockkeeper permits a \
         4`\n"
    );
}

#[test]
fn a_store_that_is_not_reachable_is_said_so() {
    let mut store = StoreAt::served();
    store.kill();
    let output = store.output(&["--connect-timeout", "100ms", "a", "--", "echo"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(stderr(&output).starts_with("lockkeeper: cannot connect to lockkeeper://"));
}

#[test]
fn wrong_usage_has_its_status() {
    let store = StoreAt::served();
    for arguments in [
        &["a"][..],
        &["--", "true"],
        &["", "--", "true"],
        &["/a//b", "--", "true"],
        &["--permits", "3/2", "a", "--", "true"],
        &["--shared", "--exclusive", "a", "--", "true"],
        &["--all", "a,b", "c", "--", "true"],
        &["--all", "a,", "--", "true"],
        &["--all", "a,b,a", "--", "true"],
        &["--try", "--timeout", "1s", "a", "--", "true"],
        &["--once-per", "1h", "--shared", "a", "--", "true"],
        &["--once-per", "1h", "--exclusive", "a", "--", "true"],
        &["--once-per", "1h", "--permits", "1/2", "a", "--", "true"],
        &["--once-per", "1h", "--all", "a,b", "--", "true"],
        &["--once-per", "0s", "a", "--", "true"],
        &["--once-per", "a", "--", "true"],
    ] {
        let output = store.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// For example, stderr may be a log file on a full disk.
#[test]
fn a_reason_that_cannot_be_written_changes_no_status() {
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    let mut store = StoreAt::served();
    let status =
        |command: &mut std::process::Command| command.stderr(full()).status().unwrap().code();
    assert_eq!(status(&mut store.under_lock(&["", "--", "true"])), Some(2));
    store.kill();
    let mut locks = store.command(&["locks", "--connect-timeout", "100ms"]);
    assert_eq!(status(&mut locks), Some(69));
}

/// ZooKeeper stores the limits of its quotas below this path. Our server does not enforce quotas.
#[test]
fn a_lock_among_the_quotas_is_refused_with_the_reason() {
    let store = StoreAt::served();
    for arguments in [
        &["/zookeeper/quota/a"][..],
        &["--all", "/zookeeper/quota/a,b"],
        &["--permits", "1/2", "/zookeeper/quota/a"],
    ] {
        let output = store.output(&[arguments, &["--", "echo", "never"]].concat());
        let said = stderr(&output);
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
        assert!(
            said.contains("/zookeeper/quota") && !said.contains("implement"),
            "{said}"
        );
    }
}

on_stores! {
    [served, zookeeper, etcd]
    fn the_command_knows_its_lock(store: StoreAt) {
        let script = r#"echo "$LOCKKEEPER_LOCK|$LOCKKEEPER_TOKEN|$LOCKKEEPER_HELD_UNTIL_MS""#;
        let before = unix_ms();
        let mut tokens = Vec::new();
        for _ in 0..2 {
            let text = out(&store.output(&["a", "--", "sh", "-c", script]));
            let fields: Vec<_> = text.trim_end().split('|').collect();
            assert_eq!(fields[0], "/locks/a");
            tokens.push(fields[1].parse::<i64>().unwrap());
            let until: i64 = fields[2].parse().unwrap();
            // The lease lasts nine tenths of the timeout of 4 s. It starts after `before`.
            assert!(before < until && until < unix_ms() + 3_700, "{until}");
        }
        assert!(tokens[0] < tokens[1], "{tokens:?}");
        let text = out(&store.output(&["--all", "x,y", "--", "sh", "-c", script]));
        assert!(text.starts_with("/locks/x,/locks/y|"), "{text}");
    }
}

fn unix_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_millis() as i64
}

on_stores! {
    [served, zookeeper, etcd]
    fn any_text_is_a_name(store: StoreAt) {
        for name in [
            "with blanks",
            "a/b",
            "Größe",
            "two\nlines",
            "..",
            "lock-0000000001",
        ] {
            let script = r#""$0" run --try "$1" -- true; echo $?; printf %s "$LOCKKEEPER_LOCK""#;
            let program = env!("CARGO_BIN_EXE_lockkeeper");
            let output = store.output(&[name, "--", "sh", "-c", script, program, name]);
            let text = out(&output);
            let (status, path) = text.split_once('\n').unwrap();
            assert_eq!(status, "75", "{name:?} is held: {output:?}");
            assert!(
                path.starts_with("/locks/") && path[7..].is_ascii(),
                "{path}"
            );
        }
    }
}

#[test]
fn stdin_and_stdout_are_the_commands() {
    let store = StoreAt::served();
    let mut command = store.under_lock(&["a", "--", "cat"]);
    command.stdin(std::fs::File::open(MANIFEST).unwrap());
    let output = command.output().unwrap();
    let expected = std::fs::read(MANIFEST).unwrap();
    assert_eq!((output.stdout, output.stderr), (expected, Vec::new()));
    let sh = |redirect: &str| {
        let script = format!("exec \"$0\" run a -- echo text {redirect}");
        store.shell(&script).output().unwrap().status.code()
    };
    assert_eq!(sh("<&-"), Some(0));
    // `echo` fails, or it writes to a file that is not read.
    assert!(sh(">&-").is_some_and(|status| status <= 1));
}

on_stores! {
    [served, zookeeper, etcd]
    fn readers_share_and_permits_are_counted(store: StoreAt) {
        let script = "echo held; exec sleep 1000";
        let reader = store.start_script(&["--shared", "a"], script);
        let status = |arguments: &[&str]| store.status(arguments);
        assert_eq!(status(&["--try", "--shared", "a", "--", "true"]), Some(0));
        assert_eq!(
            status(&["--try", "--exclusive", "a", "--", "true"]),
            Some(75)
        );
        // Without either option, we ask for another kind of lock, and the error says which option to use.
        let output = store.output(&["--try", "a", "--", "echo", "never"]);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{output:?}");
        let told = "lockkeeper: /locks/a is in use as a read-write lock: take it with --exclusive, or with --shared\n";
        assert_eq!(stderr(&output), told);
        // These commands have no options for the kind of lock.
        for (name, options) in [("run", &["--once-per", "1h", "a"][..]), ("run", &["--all", "a,b"]), ("elect", &["a"])] {
            let arguments = [options, &["--", "echo", "never"]].concat();
            let output = store.subcommand(name, &arguments).output().unwrap();
            let told = "lockkeeper: /locks/a is in use as a read-write lock: choose another name\n";
            assert_eq!((output.status.code(), &*stderr(&output)), (Some(1), told), "{output:?}");
        }
        drop(reader);
        assert_eq!(status(&["--exclusive", "a", "--", "true"]), Some(0));

        let _mutex = store.start_script(&["m"], script);
        for options in [&["--shared"][..], &["--exclusive"], &["--permits", "1/2"]] {
            let output = store.output(&[options, &["m", "--", "echo", "never"]].concat());
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{output:?}");
            assert!(stderr(&output).contains("in use as a mutex: "), "{output:?}");
            assert!(stderr(&output).ends_with("every caller must use --shared or --exclusive\n"), "{output:?}");
        }

        let permits = store.start_script(&["--permits", "2/3", "p"], script);
        assert_eq!(
            status(&["--try", "--permits", "2/3", "p", "--", "true"]),
            Some(75)
        );
        assert_eq!(
            status(&["--try", "--permits", "1/3", "p", "--", "true"]),
            Some(0)
        );
        let output = store.output(&["--shared", "p", "--", "echo", "never"]);
        assert!(stderr(&output).contains("in use as a semaphore: take it with --permits N/M"), "{output:?}");
        drop(permits);
        assert_eq!(status(&["--permits", "3/3", "p", "--", "true"]), Some(0));
    }

    [served, zookeeper, etcd]
    fn others_see_the_holder(store: StoreAt) {
        let options = ["--label", "nightly", "--expect", "5m", "a"];
        let holder = store.start_script(&options, "echo held; exec sleep 1000");
        let _other = store.start_script(&["b"], "echo held; exec sleep 1000");
        block_on(async {
            let client = store.connect().await;
            let queue = lockkeeper::queue(&client, "/locks/a").await.unwrap();
            let metadata = queue[0].metadata.as_ref().unwrap();
            assert_eq!(metadata.label.as_deref(), Some("nightly"));
            assert_eq!(metadata.expected_hold_ms, Some(300_000));
            // The pid is the pid of the front, which a user can signal, and not of the guardian.
            let front = holder.front().as_raw_pid();
            assert_eq!(metadata.pid, u32::try_from(front).ok());
            let queue = lockkeeper::queue(&client, "/locks/b").await.unwrap();
            let metadata = queue[0].metadata.as_ref().unwrap();
            assert_eq!(metadata.label.as_deref(), Some("sh"));
        });
    }
}

on_stores! {
    [served, unix, zookeeper, etcd]
    fn a_command_that_would_wait_for_its_own_lock_is_told(store: StoreAt) {
        let nested = |script: &str| {
            let output = store.shell(script).output().unwrap();
            let told = String::from_utf8(output.stderr).unwrap();
            (output.status.code(), told)
        };
        let chains = [
            r#""$0" run a -- "$0" run a -- true"#,
            r#""$0" run a -- "$0" run b -- "$0" run a -- true"#,
            r#""$0" run --exclusive rw -- "$0" run --shared rw -- true"#,
            r#""$0" run --all a,b -- "$0" run --timeout 1h b -- true"#,
        ];
        for chain in chains {
            let (status, told) = nested(chain);
            assert_eq!(status, Some(2), "{chain}: {told}");
            assert!(told.contains("would wait for this one"), "{told}");
        }
        let others = [
            r#""$0" run a -- "$0" run b -- true"#,
            r#""$0" run --shared rw -- "$0" run --shared rw -- true"#,
            r#""$0" run --permits 1/2 quota -- "$0" run --permits 1/2 quota -- true"#,
            // The lock of the earlier run has been released.
            r#"held=$("$0" run a -- sh -c 'echo "$LOCKKEEPER_HELD"'); LOCKKEEPER_HELD=$held "$0" run a -- true"#,
        ];
        for chain in others {
            assert_eq!(nested(chain), (Some(0), String::new()), "{chain}");
        }
    }
}

/// The locks have the same name, but they are in different stores.
#[test]
fn locks_of_two_stores_nest() {
    let (outer, inner) = (StoreAt::served(), StoreAt::served());
    let script = format!(r#""$0" run a -- "$0" run a --url {} -- true"#, inner.url);
    assert!(outer.shell(&script).status().unwrap().success());
}

#[test]
fn its_processes_are_listed_by_what_they_are() {
    let store = StoreAt::served();
    let name = |pid: rustix::process::Pid| {
        std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap()
    };
    for subcommand in ["run", "elect"] {
        let mut command = store.subcommand(subcommand, &["a", "--", "sh", "-c", "echo; cat"]);
        let mut running = Running::spawn(command.stdin(std::process::Stdio::piped()));
        running.line();
        assert_eq!(name(running.front()), "lockkeeper\n");
        assert_eq!(name(running.guardian().pid), "lk-guardian\n");
        assert_eq!(name(running.reaper().pid), "lk-reaper\n");
    }
}
