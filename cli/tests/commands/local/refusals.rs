//! Environments in which there is no store to trust, and servers that do not start.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use super::*;

impl Home {
    /// Runs a command that needs the store, with this environment, and returns its error.
    fn refusal(&self, variables: &[(&str, &str)]) -> String {
        let mut command = self.command(Shell::Cron, &["who", "a"]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let output = command.output().unwrap();
        // EX_UNAVAILABLE
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn mode(&self, folder: &str, mode: u32) {
        set_permissions(self.folder.at(folder), Permissions::from_mode(mode)).unwrap();
    }

    fn make(&self, folder: &str) {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.folder.at(folder)).unwrap();
    }
}

/// A user that this test is not.
const OTHER: u32 = 4_242;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_home_of_another_user_is_refused_and_left_as_it_is() {
    let home = Home::new();
    // As root, with the environment of another user; as another user, with root's.
    let of_other = match is_root() {
        true => {
            chown(home.folder.at("home"), Some(OTHER), None).unwrap();
            home.folder.at("home").to_str().unwrap().to_owned()
        }
        false => "/".to_owned(),
    };
    let said = home.refusal(&[("HOME", &of_other)]);
    assert!(said.contains("belongs to user"), "{said}");
    assert!(said.contains("sudo -E"), "{said}");
    assert!(!home.folder.at("home/.local").exists());
}

#[test]
fn a_data_folder_of_another_user_is_refused() {
    if !is_root() {
        // Only root can give a folder away; the test above has the other direction.
        return;
    }
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    for folder in [
        home.data().unwrap(),
        home.folder.at("home/.local/state/lockkeeper"),
    ] {
        chown(&folder, Some(OTHER), None).unwrap();
        let said = home.refusal(&[]);
        assert!(said.contains(&format!("belongs to user {OTHER}")), "{said}");
        chown(&folder, Some(0), None).unwrap();
    }
}

#[test]
fn folders_that_others_can_write_are_refused() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    let open = "home/.local/state/lockkeeper";
    for mode in [0o770, 0o755, 0o701] {
        home.mode(open, mode);
        let said = home.refusal(&[]);
        assert!(said.contains(&format!("(mode {mode:o})")), "{said}");
        assert!(said.contains("chmod 700"), "{said}");
    }
    home.mode(open, 0o700);
    home.mode("home", 0o777);
    let said = home.refusal(&[]);
    assert!(said.contains("can be written by every user"), "{said}");
    // As /tmp: nobody can replace what is another user's there.
    home.mode("home", 0o1777);
    success(&home.run(Shell::Cron, &["who", "a"]));
}

#[test]
fn a_runtime_folder_of_anybody_else_takes_no_socket() {
    for mode in [0o777, 0o750] {
        let home = Home::new();
        home.mode("run", mode);
        let holder = home.hold(Shell::Login, "a");
        let data = home.data().unwrap();
        assert_eq!(
            fs::read_link(data.join("socket")).unwrap(),
            data.join("server.sock")
        );
        assert_eq!(home.queued(Shell::Cron, "a"), [holder.token()]);
        holder.release();
    }
}

#[test]
fn a_socket_whose_path_is_too_long_is_refused() {
    let home = Home::new();
    let long = "long/".repeat(20);
    home.make(&format!("home/{long}"));
    let path = home.folder.at(&format!("home/{long}"));
    let said = home.refusal(&[("XDG_STATE_HOME", path.to_str().unwrap())]);
    assert!(
        said.contains("more than a socket's path can have"),
        "{said}"
    );
    // A path of the runtime folder that is too long is no reason to fail.
    let runtime = home.folder.at(&format!("run/{long}"));
    home.make(&format!("run/{long}"));
    let mut command = home.command(Shell::Cron, &["who", "a"]);
    success(&command.env("XDG_RUNTIME_DIR", runtime).output().unwrap());
}

#[test]
fn a_folder_that_cannot_be_created_is_named_with_the_reason() {
    let home = Home::new();
    // Longer than a file's name can be: refused to every user, unlike a read-only folder, which root may write.
    let long = home.folder.at("home").join("x".repeat(300));
    let said = home.refusal(&[("XDG_STATE_HOME", long.to_str().unwrap())]);
    assert!(said.contains("cannot be created"), "{said}");
    assert!(said.contains("--url"), "{said}");
    File::create(home.folder.at("home/.local")).unwrap();
    let said = home.refusal(&[]);
    assert!(said.contains("is no folder"), "{said}");
    let said = home.refusal(&[("HOME", "relative")]);
    assert!(said.contains("no absolute path"), "{said}");
    let odd = home.folder.at("home/what?");
    let said = home.refusal(&[("XDG_STATE_HOME", odd.to_str().unwrap())]);
    assert!(said.contains("cannot stand in a URL"), "{said}");
}

#[test]
fn a_server_that_does_not_start_is_reported_with_its_reason() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    let store = home.data().unwrap().join("store");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("STORE"), "damaged").unwrap();
    for _ in 0..2 {
        let said = home.refusal(&[]);
        assert!(said.contains("cannot be started"), "{said}");
        assert!(said.contains(store.to_str().unwrap()), "{said}");
        assert!(said.contains("server.log"), "{said}");
    }
    assert_eq!(home.processes(), []);
    // The reason is the present one's, not that of a former start.
    fs::remove_dir_all(&store).unwrap();
    success(&home.run(Shell::Cron, &["who", "a"]));
}

#[test]
fn a_store_that_another_server_serves_is_reported() {
    let home = Home::new();
    success(&home.run(Shell::Cron, &["local"]));
    let store = home.data().unwrap().join("store");
    let other = format!("--listen=unix:{}", home.folder.at("s").display());
    let mut serve = home.command(Shell::Cron, &["serve", &other, "--data"]);
    let _server = super::super::server::Server::start(serve.arg(&store));
    let command = &["who", "a", "--connect-timeout=300ms"];
    let output = home.run(Shell::Cron, command);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
}
