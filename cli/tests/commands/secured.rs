//! The commands with servers that require a client certificate, configured by flags, environment and profile.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Etcd, ZooKeeper};

use super::server::{Server, bare};
use super::support::*;
use super::tls::{Files, tls_address};
use super::top::screen::Top;

/// Variables that configure the store. We remove them from the environment of the test.
const VARIABLES: [&str; 7] = [
    "LOCKKEEPER_URL",
    "LOCKKEEPER_AUTH",
    "LOCKKEEPER_CA",
    "LOCKKEEPER_CERT",
    "LOCKKEEPER_KEY",
    "LOCKKEEPER_SERVER_NAME",
    "LOCKKEEPER_PROFILE",
];

#[derive(Clone, Copy, Debug)]
enum Given {
    Flags,
    Environment,
    Profile,
}

const ALL: [Given; 3] = [Given::Flags, Given::Environment, Given::Profile];

struct User(TempFolder);

impl User {
    fn new() -> Self {
        let user = Self(TempFolder::short());
        fs::create_dir_all(user.file().parent().unwrap()).unwrap();
        user
    }

    fn file(&self) -> PathBuf {
        self.0.at("config/lockkeeper/config.toml")
    }

    /// Writes a configuration file that only its owner can read.
    fn configure(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
        self.mode(0o600);
    }

    fn mode(&self, mode: u32) {
        fs::set_permissions(self.file(), Permissions::from_mode(mode)).unwrap();
    }

    fn variables(&self) -> [(&'static str, String); 3] {
        let at = |name: &str| self.0.at(name).display().to_string();
        [
            ("XDG_CONFIG_HOME", at("config")),
            ("XDG_STATE_HOME", at("state")),
            ("LOCKKEEPER_LOCAL_IDLE", "1s".into()),
        ]
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command.args(arguments).envs(self.variables());
        command.stdin(Stdio::null()).current_dir(self.0.path());
        command
    }
}

/// A store that requires TLS and a client certificate, together with the settings of its clients.
struct Secured {
    user: User,
    values: [(&'static str, String); 4],
    _server: Host,
    _files: Files,
}

enum Host {
    Served { _server: Server },
    ZooKeeper { _server: ZooKeeper },
    Etcd { _server: Etcd },
}

impl Secured {
    fn served() -> Self {
        let files = Files::new();
        let mut command = bare();
        let command = files.tls(&mut command);
        let server = Server::start(command.arg("--tls-client-ca").arg(files.at("ca")));
        let url = format!("lockkeeper+tls://{}", tls_address(&server));
        Self::new(url, files, Host::Served { _server: server })
    }

    fn zookeeper() -> Self {
        let files = Files::new();
        let [key, certificate] =
            ["key", "cert"].map(|it| fs::read_to_string(files.at(it)).unwrap());
        fs::write(files.at("both.pem"), key + &certificate).unwrap();
        let server = ZooKeeper::start_secure(&files.at("both.pem"), &files.at("ca"));
        let url = format!("zookeeper+tls://{}", server.secure_hosts());
        Self::new(url, files, Host::ZooKeeper { _server: server })
    }

    fn etcd() -> Self {
        let files = Files::new();
        let server = Etcd::start_secure(&files.at("cert"), &files.at("key"), &files.at("ca"));
        let url = format!("etcd+tls://{}", server.address());
        Self::new(url, files, Host::Etcd { _server: server })
    }

    fn new(url: String, files: Files, server: Host) -> Self {
        let (certificate, key) = files.authority.sign();
        fs::write(files.at("client"), certificate).unwrap();
        fs::write(files.at("client-key"), key).unwrap();
        let at = |name: &str| files.at(name).display().to_string();
        let secured = Self {
            user: User::new(),
            values: [
                ("url", url),
                ("ca", at("ca")),
                ("cert", at("client")),
                ("key", at("client-key")),
            ],
            _server: server,
            _files: files,
        };
        let values = secured.values.iter();
        let lines: String = values
            .map(|(name, it)| format!("{name} = {it:?}\n"))
            .collect();
        secured.user.configure(&format!("[profile.prod]\n{lines}"));
        secured
    }

    fn flags(&self, given: Given) -> Vec<String> {
        let flag = |(name, value): &(&str, String)| format!("--{name}={value}");
        match given {
            Given::Flags => self.values.iter().map(flag).collect(),
            Given::Environment | Given::Profile => Vec::new(),
        }
    }

    fn variables(&self, given: Given) -> Vec<(String, String)> {
        match given {
            Given::Flags => Vec::new(),
            Given::Environment => {
                let values = self.values.iter();
                let variable = |name: &str| format!("LOCKKEEPER_{}", name.to_uppercase());
                values
                    .map(|(name, it)| (variable(name), it.clone()))
                    .collect()
            }
            Given::Profile => vec![("LOCKKEEPER_PROFILE".into(), "prod".into())],
        }
    }

    fn command(&self, given: Given, arguments: &[&str]) -> Command {
        let mut command = self.user.command(&arguments[..1]);
        command.args(self.flags(given)).args(&arguments[1..]);
        command.envs(self.variables(given));
        command
    }

    fn every_command_works(&self) {
        for given in ALL {
            for (arguments, status, says) in [
                (&["run", "a", "--", "echo", "ran"][..], 0, "ran\n"),
                (&["elect", "e", "--", "echo", "led"], 0, "led\n"),
                (&["locks", "--json"], 0, ""),
                (&["who", "a"], 0, ""),
                (&["permits", "a"], 1, ""),
                (&["revoke", "a"], 1, ""),
                (&["config"], 0, &*self.values[0].1),
                // This workload starts another process, which holds a lock.
                (
                    &[
                        "bench",
                        "expiry",
                        "--seconds=0.01",
                        "--warm-up=0.01",
                        "--clients=2",
                    ],
                    0,
                    "kill to grant",
                ),
            ] {
                let output = self.command(given, arguments).output().unwrap();
                assert_eq!(
                    output.status.code(),
                    Some(status),
                    "{given:?}: {arguments:?}: {output:?}"
                );
                assert!(out(&output).contains(says), "{given:?}: {output:?}");
            }
            for (arguments, says) in [
                (&["elect", "--observe", "e"][..], "-"),
                (
                    &["dashboard", "--listen", "127.0.0.1:0"],
                    "lockkeeper dashboard ",
                ),
                (&["warden", "--metrics-listen", "127.0.0.1:0"], " leads "),
            ] {
                until(self.command(given, arguments), says);
            }
            let flags = self.flags(given);
            let flags: Vec<_> = flags.iter().map(String::as_str).collect();
            let mut variables = self.variables(given);
            let own = self.user.variables();
            variables.extend(own.map(|(name, it)| (name.to_owned(), it)));
            let variables: Vec<_> = variables
                .iter()
                .map(|(name, it)| (&**name, &**it))
                .collect();
            let url = match given {
                Given::Environment => &self.values[0].1,
                Given::Flags | Given::Profile => "",
            };
            Top::start_with(url, &flags, &variables).shows("no locks");
        }
    }
}

/// Runs a command until it prints a line with this text to stdout or stderr. Then ends the command with SIGTERM, so
/// that the next command need not wait until its session expires.
fn until(mut command: Command, says: &str) {
    struct Running(Child);
    impl Drop for Running {
        fn drop(&mut self) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
    let (reader, writer) = std::io::pipe().unwrap();
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let _running = Running(command.spawn().unwrap());
    // Close our ends of the pipe, so that we notice the end of the command.
    drop(command);
    let mut seen = Vec::new();
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        if line.contains(says) {
            return;
        }
        seen.push(line);
    }
    panic!("it ended, and never printed {says:?}: {seen:?}");
}

#[test]
fn every_command_reaches_our_server() {
    Secured::served().every_command_works();
}

#[test]
fn every_command_reaches_a_zookeeper() {
    Secured::zookeeper().every_command_works();
}

#[test]
fn every_command_reaches_an_etcd() {
    Secured::etcd().every_command_works();
}

/// Runs a command that must be refused before it connects, and returns its error.
#[track_caller]
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn options_of_tls_that_cannot_be_meant_are_refused() {
    let user = User::new();
    let (plain, tls) = (
        "--url=lockkeeper://127.0.0.1:1",
        "--url=lockkeeper+tls://127.0.0.1:1",
    );
    for (arguments, says) in [
        (&[plain, "--ca=x"][..], "ca (--ca) is for a server with TLS"),
        (
            &[plain, "--server-name=x"],
            "server-name (--server-name) is for a server with TLS",
        ),
        (&["--ca=x"], "ca (--ca) is for a server with TLS"),
        (&[tls], "no certificate authority"),
        (&[tls, "--ca=x", "--cert=x"], "cert (--cert) needs key"),
        (&[tls, "--ca=x", "--key=x"], "key (--key) needs cert"),
    ] {
        for command in [&["locks"][..], &["run", "a"]] {
            let mut command = user.command(&[command, arguments].concat());
            if command.get_args().next() == Some("run".as_ref()) {
                command.args(["--", "echo", "never"]);
            }
            let said = refused(&mut command);
            assert!(said.contains(says), "{arguments:?}: {said}");
        }
    }
    let mut command = user.command(&["locks"]);
    command
        .env("LOCKKEEPER_URL", "lockkeeper://127.0.0.1:1")
        .env("LOCKKEEPER_CA", "x");
    assert!(refused(&mut command).contains("ca (LOCKKEEPER_CA)"));
    // The flag selects another server, which has no TLS.
    let mut command = user.command(&["config", plain]);
    let output = success(&command.env("LOCKKEEPER_CA", "x").output().unwrap());
    assert!(!output.contains("ca "), "{output}");
    success(&user.command(&["config", plain, "--ca="]).output().unwrap());
}

#[test]
fn a_server_may_have_another_name_than_the_host_of_the_url() {
    let store = Secured::served();
    let (_, port) = store.values[0].1.rsplit_once(':').unwrap();
    for scheme in ["lockkeeper", "zookeeper"] {
        let url = format!("--url={scheme}+tls://localhost:{port}");
        let output = |options: &[&str]| {
            let mut command =
                store.command(Given::Environment, &[&["locks", &url], options].concat());
            command.output().unwrap()
        };
        let refused = failure(&output(&[]));
        assert!(refused.contains("localhost"), "{refused}");
        let named = output(&["--server-name=127.0.0.1"]);
        assert_eq!(named.status.code(), Some(0), "{named:?}");
    }
}

fn rows(output: &Output) -> Vec<Vec<String>> {
    let text = success(output);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    text.lines().map(words).collect()
}

#[test]
fn each_value_comes_from_the_highest_source_that_has_it() {
    let user = User::new();
    user.configure(
        r#"
        [profile.prod]
        url = "lockkeeper+tls://profile:1"
        auth = "ann:secret"
        ca = "../ca.pem"
        cert = "/certs/ann"
        key = "/certs/ann.key"
        server-name = "locks.example"
        "#,
    );
    let mut command = user.command(&["config", "--profile=prod", "--url=lockkeeper+tls://flag:1"]);
    command.env("LOCKKEEPER_URL", "lockkeeper+tls://variable:1");
    command
        .env("LOCKKEEPER_PROFILE", "other")
        .env("LOCKKEEPER_CERT", "bob");
    // An empty variable counts as unset.
    command.env("LOCKKEEPER_SERVER_NAME", "");
    let output = command.output().unwrap();
    let rows = rows(&output);
    let file = user.file().display().to_string();
    let ca = user
        .0
        .at("config/lockkeeper/../ca.pem")
        .display()
        .to_string();
    for (name, value, source) in [
        ("profile", "prod", "--profile"),
        ("url", "lockkeeper+tls://flag:1", "--url"),
        ("auth", "ann:(hidden)", &*format!("profile prod in {file}")),
        ("ca", &ca, &format!("profile prod in {file}")),
        ("cert", "bob", "LOCKKEEPER_CERT"),
        (
            "server-name",
            "locks.example",
            &format!("profile prod in {file}"),
        ),
    ] {
        let row = rows.iter().find(|row| row[0] == name).unwrap();
        assert_eq!(
            (&*row[1], row[2..].join(" ")),
            (value, source.into()),
            "{output:?}"
        );
    }
    assert!(!out(&output).contains("secret"), "{output:?}");

    // With -v, other commands print the same values.
    let mut command = user.command(&["locks", "-v", "--url=lockkeeper://127.0.0.1:1"]);
    command.args(["--connect-timeout", "1ms", "--profile", "prod"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("lockkeeper: url") && said.contains("--url\n"),
        "{said}"
    );
    assert!(
        said.contains("ann:(hidden)") && !said.contains("secret"),
        "{said}"
    );
}

#[test]
fn a_password_in_a_url_is_not_shown() {
    let user = User::new();
    for command in [&["config"][..], &["locks", "-v"]] {
        let mut command = user.command(command);
        let said = refused(command.arg("--url=lockkeeper://ann:secret@h"));
        assert!(
            said.contains("credentials") && !said.contains("secret"),
            "{said}"
        );
    }
}

#[test]
fn the_default_profile_is_for_commands_without_a_url() {
    let user = User::new();
    user.configure("[profile.default]\nurl = \"lockkeeper://h:1\"\nauth = \"ann:secret\"\n");
    let shown = |flags: &[&str], url: Option<&str>| {
        let mut command = user.command(&[&["config"], flags].concat());
        command.envs(url.map(|url| ("LOCKKEEPER_URL", url)));
        success(&command.output().unwrap())
    };
    for shown in [shown(&[], None), shown(&[], Some(""))] {
        assert!(
            shown.contains("lockkeeper://h:1 ") && shown.contains("ann:"),
            "{shown}"
        );
    }
    // The password of a profile is not sent to other servers.
    for shown in [
        shown(&["--url=lockkeeper://other:1"], None),
        shown(&[], Some("lockkeeper://other:1")),
    ] {
        assert!(
            shown.contains("lockkeeper://other:1 ") && !shown.contains("ann:"),
            "{shown}"
        );
    }
    for shown in [shown(&["--profile="], None), shown(&["--url="], None)] {
        assert!(
            shown.contains("this user's own store") && !shown.contains("ann:"),
            "{shown}"
        );
    }
}

#[test]
fn a_configuration_that_cannot_be_meant_or_trusted_is_refused() {
    let user = User::new();
    let locks = || user.command(&["locks"]);
    let profile = |line: &str| format!("[profile.prod]\n{line}\n");
    for (text, says) in [
        (profile("usr = \"x\""), ":2: unknown key \"usr\""),
        ("[profiles.prod]".into(), ":1: unknown key \"profiles\""),
        ("url = \"memory:\"".into(), ":1: unknown key \"url\""),
        (profile("url = 1"), ":2: url: a text is expected"),
        (
            profile("ca = \"~/ca\""),
            ":2: ca: `~` is expanded by shells",
        ),
        (
            profile("url = \"file:data\""),
            ":2: url: the path of a folder is absolute",
        ),
        (profile("url"), "config.toml:2: "),
    ] {
        user.configure(&text);
        let said = refused(&mut locks());
        assert!(said.contains(says), "{text}: {said}");
        // If the file is not needed, an error in it does no harm.
        let mut other = locks();
        let other = other.args(["--url=lockkeeper://127.0.0.1:1", "--connect-timeout=1ms"]);
        assert_eq!(other.output().unwrap().status.code(), Some(69));
    }
    user.configure(&profile("url = \"lockkeeper://h:1\""));
    let said = refused(locks().env("LOCKKEEPER_PROFILE", "test"));
    assert!(
        said.contains("no profile \"test\"") && said.contains("there is prod"),
        "{said}"
    );
    // Other users may know the URL but not the password.
    user.mode(0o644);
    success(
        &user
            .command(&["config", "--profile=prod"])
            .output()
            .unwrap(),
    );
    user.mode(0o666);
    assert!(refused(&mut locks()).contains("can be written by every user"));
    user.configure(&profile("auth = \"ann:secret\""));
    user.mode(0o644);
    let said = refused(&mut locks());
    assert!(
        said.contains("can be read by other users") && !said.contains("secret"),
        "{said}"
    );
}
