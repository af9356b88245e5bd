//! The sources of the options of `lockkeeper serve`, and options that are refused. No test starts a server.

use std::fs;
use std::net::TcpListener;
use std::process::Output;

use super::server::serve;
use super::support::*;

const DIGEST: &str = "jane:D/InIHSb7yEEbrWz8b9l71RjZJU=";

/// Runs `serve --check-config` with these options, next to a configuration file `f` with this content.
fn checked(file: &str, options: &[&str]) -> Output {
    let folder = TempFolder::short();
    fs::write(folder.at("f"), file).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["serve", "--check-config"]).args(options);
    command
        .env_remove("LOCKKEEPER_LOG")
        .current_dir(folder.path());
    let output = command.output().unwrap();
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "it made something");
    output
}

/// Returns the error for invalid options. The command must print it only to stderr.
fn refused(file: &str, options: &[&str]) -> String {
    let output = checked(file, options);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the line of this option in the output of `--check-config`.
fn line(said: &str, option: &str) -> String {
    let start = format!("{option} = ");
    let line = said.lines().find(|line| line.starts_with(&start));
    let line = line.unwrap_or_else(|| panic!("no {option}: {said}"));
    let words: Vec<_> = line.split_whitespace().collect();
    words.join(" ")
}

#[test]
fn without_options_this_machine_alone_is_served_from_a_folder() {
    let said = success(&checked("", &[]));
    assert!(said.contains("# on 127.0.0.1:2181, without TLS"), "{said}");
    assert!(said.contains("# sessions of 4s to 40s,"), "{said}");
    for expected in [
        r#"data = "./lockkeeper-data" # default"#,
        r#"durability = "fsync" # default"#,
        "allow-ttl = false # default",
        r#"four-letter-words = "srvr" # default"#,
        "max-in-flight = 1024 # default",
    ] {
        let option = expected.split(' ').next().unwrap();
        assert_eq!(line(&said, option), expected);
    }
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn flags_win_over_the_variable_and_that_over_the_file() {
    let file = "tick = \"1s\"\nmax-sessions = 7\nallow-ttl = true\nlog-level = \"warn\"\n";
    let said = success(&checked(
        file,
        &["--config", "f", "--tick", "3s", "--allow-ttl=false"],
    ));
    assert_eq!(line(&said, "tick"), r#"tick = "3s" # flag"#);
    assert_eq!(line(&said, "max-sessions"), "max-sessions = 7 # file");
    assert_eq!(line(&said, "allow-ttl"), "allow-ttl = false # flag");
    assert_eq!(line(&said, "log-level"), r#"log-level = "warn" # file"#);
    let folder = TempFolder::short();
    fs::write(folder.at("f"), file).unwrap();
    let mut command = serve();
    command
        .arg("--check-config")
        .arg("--config")
        .arg(folder.at("f"));
    command.env("LOCKKEEPER_LOG", "debug");
    let said = success(&command.output().unwrap());
    assert_eq!(
        line(&said, "log-level"),
        r#"log-level = "debug" # LOCKKEEPER_LOG"#
    );
    let said = success(&command.args(["--log-level", "error"]).output().unwrap());
    assert_eq!(line(&said, "log-level"), r#"log-level = "error" # flag"#);
    command.env("LOCKKEEPER_LOG", "loud");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("LOCKKEEPER_LOG") && said.contains("loud"),
        "{said}"
    );
}

#[test]
fn what_would_be_served_is_a_configuration_file_itself() {
    let options = [
        "--data",
        "memory",
        "--max-frame=2M",
        "--four-letter-words",
        "ruok,mntr",
        "--threads=3",
        "--busy-poll=0",
    ];
    let said = success(&checked("", &options));
    let again = success(&checked(&said, &["--config", "f"]));
    let plain = |said: &str| {
        let lines = said
            .lines()
            .map(|line| line.rsplit_once('#').unwrap().0.trim());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(plain(&said), plain(&again));
}

#[test]
fn lists_may_be_written_as_lists() {
    let file = format!(
        "user = [\"{DIGEST}\", \"joe:{}\"]\nfour-letter-words = [\"ruok\", \"mntr\"]\n",
        &DIGEST[5..]
    );
    let said = success(&checked(&file, &["--config", "f", "--require-auth"]));
    assert_eq!(line(&said, "user"), r#"user = ["jane:…", "joe:…"] # file"#);
    assert_eq!(
        line(&said, "four-letter-words"),
        r#"four-letter-words = "ruok,mntr" # file"#
    );
    assert!(!said.contains("D/In"), "{said}");
    // A flag replaces the whole list in the file.
    let user = format!("--user=ann:{}", &DIGEST[5..]);
    let said = success(&checked(&file, &["--config", "f", &user]));
    assert_eq!(line(&said, "user"), r#"user = ["ann:…"] # flag"#);
    let said = refused("tick = [\"1s\", \"2s\"]", &["--config", "f"]);
    assert!(said.contains("f:1: tick: one value is expected"), "{said}");
}

#[test]
fn an_error_in_the_file_has_its_line_number() {
    for (file, expected) in [
        (
            "tick = \"1s\"\n\nlissten = \"127.0.0.1:1\"\n",
            "f:3: there is no option \"lissten\"",
        ),
        (
            "[limits]\nmax-sessions = 1\n",
            "f:1: there is no option \"limits\"",
        ),
        ("config = \"g\"\n", "f:1: there is no option \"config\""),
        (
            "check-config = true\n",
            "f:1: there is no option \"check-config\"",
        ),
        ("tick = \"1s\"\ntick = \"2s\"\n", "f:2: duplicate key"),
        ("tick = \"1s\"\nmax-sessions = many\n", "f:2: "),
        ("\ntick = \"2\"\n", "f:2: tick: a duration is"),
        ("tick = 2\n", "f:1: tick: a duration is"),
        ("tick = 2.5\n", "f:1: tick: a text, a whole number"),
        (
            "max-sessions = 0\n",
            "f:1: max-sessions: a whole number above 0",
        ),
        (
            "max-sessions = -1\n",
            "f:1: max-sessions: a whole number above 0",
        ),
        ("allow-ttl = \"perhaps\"\n", "f:1: allow-ttl: "),
        ("durability = \"maybe\"\n", "f:1: durability: "),
        ("log-format = \"xml\"\n", "f:1: log-format: "),
        (
            "log-level = \"loud\"\n",
            "f:1: log-level: \"loud\" is not a log level",
        ),
        ("max-frame = \"1MB\"\n", "f:1: max-frame: a size is"),
        ("listen = \"keeper\"\n", "f:1: listen: an address is"),
        (
            "four-letter-words = [\"srvr\", \"nope\"]\n",
            "f:1: four-letter-words: ",
        ),
        ("user = \"jane:secret\"\n", "f:1: user: a digest is"),
        ("data = \"\"\n", "f:1: data: a directory is expected"),
    ] {
        let said = refused(file, &["--config", "f"]);
        assert!(said.starts_with("lockkeeper: "), "{said}");
        assert!(said.contains(expected), "{file:?}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let said = refused("", &["--config", "missing"]);
    assert!(said.contains("missing cannot be read"), "{said}");
}

#[test]
fn flags_that_cannot_be_meant_are_named() {
    for (flag, expected) in [
        ("--tick=2", "a duration is"),
        ("--handshake-timeout=0s", "a duration is from"),
        ("--max-outgoing=16MB", "a size is"),
        (
            "--max-outgoing=1K",
            "--max-outgoing is too small: expected at least 64K",
        ),
        (
            "--max-unfinished=1M",
            "--max-unfinished is too small: expected at least 32M",
        ),
        (
            "--max-frame=3M",
            "--max-frame is out of range: expected 1K to 2M",
        ),
        ("--max-half-open=0", "a whole number above 0"),
        (
            "--max-znodes=2147483649",
            "--max-znodes is out of range: a store numbers at most 2147483648",
        ),
        ("--threads=0", "expected 1 to 1,024 threads"),
        ("--busy-poll=100", "expected 0, or a number with its unit"),
        ("--busy-poll=11ms", "at most 10ms"),
        ("--busy-poll=18446744073709551615ms", "at most 10ms"),
        ("--listen=2181", "an address is"),
        ("--listen=127.0.0.1:70000", "an address is"),
        ("--four-letter-words=kill", "kill"),
        ("--durability=sometimes", "sometimes"),
        ("--super-digest=super:secret", "lockkeeper digest"),
        ("--user=secret", "lockkeeper digest"),
        (
            "--min-session-timeout=1m",
            "--min-session-timeout is 1m, which is more than --max-session-timeout, 40s",
        ),
        (
            "--max-session-timeout=1s",
            "--min-session-timeout is 4s, which is more",
        ),
        (
            "--max-session-timeout=597h",
            "--max-session-timeout is 35820m, and at most 2147483647ms",
        ),
        (
            "--tick=30h",
            "--max-session-timeout is 36000m, and at most 2147483647ms",
        ),
        ("--data=f", "--data: f is not a directory"),
        ("--nonsense", "--nonsense"),
        ("nonsense", "nonsense"),
    ] {
        let said = refused("", &[flag]);
        assert!(said.contains(expected), "{flag}: {said}");
    }
}

#[test]
fn an_address_for_other_machines_needs_authentication_or_insecure() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:2181"] {
        let said = refused("", &["--listen", address]);
        for way in ["--require-auth", "--tls-client-ca", "--insecure", address] {
            assert!(said.contains(way), "{said}");
        }
        success(&checked("", &["--listen", address, "--insecure"]));
        success(&checked(
            "",
            &["--listen", address, "--require-auth", "--user", DIGEST],
        ));
    }
    success(&checked("", &["--listen", "[::1]:0"]));
    success(&checked("", &["--listen", "localhost:0"]));
}

#[test]
fn valid_but_unusual_options_cause_a_warning() {
    for (options, expected) in [
        (
            &["--require-auth"][..],
            "# warning: --require-auth without --user",
        ),
        (
            &["--user", DIGEST],
            "# warning: --user without --require-auth",
        ),
        (&["--data", "memory"], "# warning: --data memory"),
        (
            &["--require-auth", "--listen", "0.0.0.0:0"],
            "# warning: --listen 0.0.0.0:0 receives passwords in plain text",
        ),
        (
            &["--insecure", "--user", DIGEST, "--listen", "192.0.2.1:2181"],
            "# warning: --listen 192.0.2.1:2181 receives passwords in plain text",
        ),
    ] {
        let said = success(&checked("", options));
        assert!(said.contains(expected), "{said}");
    }
    for options in [
        &["--require-auth", "--listen", "127.0.0.1:0"][..],
        &["--insecure", "--listen", "0.0.0.0:0"],
    ] {
        let said = success(&checked("", options));
        assert!(!said.contains("plain text"), "{said}");
    }
}

#[test]
fn a_check_opens_no_port() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = success(&checked("", &["--listen", &address]));
    assert!(said.contains(&address), "{said}");
}

#[test]
fn scheduled_backups_have_a_folder_a_sensible_interval_and_a_store_that_lasts() {
    let options = ["--backup-every=1h", "--backup-dir=/backups"];
    let said = success(&checked("", &options));
    assert!(
        said.contains("# a backup each 60m in /backups, of which 24 are kept"),
        "{said}"
    );
    let file = "backup-every = \"90s\"\nbackup-dir = \"b\"\nkeep = 3\n";
    let said = success(&checked(file, &["--config", "f"]));
    assert!(
        said.contains("# a backup each 90s in b, of which 3 are kept"),
        "{said}"
    );
    for (options, reason) in [
        (&["--backup-every=1h"][..], "needs --backup-dir"),
        (&["--backup-dir=b"], "needs --backup-every"),
        (
            &["--backup-every=999ms", "--backup-dir=b"],
            "expected at least 1s",
        ),
        (
            &["--backup-every=1h", "--backup-dir=b", "--data=memory"],
            "a store in a directory",
        ),
        (
            &["--backup-every=1h", "--backup-dir=d/e", "--data=./d"],
            "inside the store's own directory",
        ),
        (
            &["--backup-every=1h", "--backup-dir=b", "--keep=0"],
            "above 0",
        ),
    ] {
        let said = refused("", options);
        assert!(said.contains(reason), "{options:?}: {said}");
    }
}
