//! Authentication and access control with the options of `lockkeeper serve`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use lockkeeper_store::{Acl, Client, ConnectOptions, CreateMode, Error, ZnodePath, connect_with};
use rustix::process::Signal;

use super::server::*;
use super::support::*;

/// Returns the output of `lockkeeper digest` for a name and a password.
pub(crate) fn digest(user: &str, password: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command
        .args(["digest", user])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(password.as_bytes())
        .unwrap();
    success(&child.wait_with_output().unwrap())
        .trim_end()
        .to_owned()
}

async fn connect(server: &Server, options: ConnectOptions) -> Result<Client, Error> {
    let url = format!("lockkeeper://{}", server.address());
    connect_with(
        &url,
        options.connect_timeout(std::time::Duration::from_secs(2)),
    )
    .await
}

async fn create(client: &Client, path: &str) -> Result<(), Error> {
    let path: ZnodePath = path.parse().unwrap();
    let session = client.session().await?;
    session
        .create(&path, "x", CreateMode::Persistent)
        .await
        .map(drop)
}

async fn delete(client: &Client, path: &str) -> Result<(), Error> {
    let path: ZnodePath = path.parse().unwrap();
    client.session().await?.delete(&path, None).await
}

#[test]
fn only_those_named_get_in_where_that_is_asked_for() {
    let mut command = serve();
    command.args([
        "--data",
        "memory",
        "--require-auth",
        "--user",
        &digest("jane", "secret"),
    ]);
    let server = Server::start(&mut command);
    block_on(async {
        let options = |secret: &str| ConnectOptions::new().auth("digest", secret);
        let jane = connect(&server, options("jane:secret")).await.unwrap();
        create(&jane, "/a").await.unwrap();
        for wrong in [
            options("jane:wrong"),
            options("joe:secret"),
            ConnectOptions::new(),
        ] {
            let refused = async { create(&connect(&server, wrong).await?, "/b").await }.await;
            assert!(refused.is_err());
        }
        // The requests of the refused clients had no effect, so the name is still free.
        create(&jane, "/b").await.unwrap();
    });
    let ended = server.end(Signal::TERM);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(
        !ended.log.contains("secret") && !ended.log.contains("wrong"),
        "{ended:?}"
    );
}

#[test]
fn the_super_user_passes_all_lists() {
    let mut command = serve();
    command.args([
        "--data",
        "memory",
        "--super-digest",
        &digest("root", "master"),
    ]);
    let server = Server::start(&mut command);
    block_on(async {
        let owner = ConnectOptions::new().auth("digest", "jane:secret");
        let owner = connect(&server, owner.acl(Acl::creator_all()))
            .await
            .unwrap();
        create(&owner, "/hers").await.unwrap();
        create(&owner, "/hers/too").await.unwrap();
        let anybody = connect(&server, ConnectOptions::new()).await.unwrap();
        let refused = delete(&anybody, "/hers/too").await;
        assert!(matches!(refused, Err(Error::NoAuth { .. })), "{refused:?}");
        let root = ConnectOptions::new().auth("digest", "root:master");
        delete(&connect(&server, root).await.unwrap(), "/hers/too")
            .await
            .unwrap();
    });
}

fn word(server: &Server, word: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(word.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_admin_words_that_are_allowed_are_answered() {
    let mut command = serve();
    let server = Server::start(command.args([
        "--data",
        "memory",
        "--four-letter-words",
        "ruok,mntr,conf",
        "--tick",
        "3s",
    ]));
    assert_eq!(word(&server, "ruok"), "imok");
    assert!(word(&server, "srvr").contains("Mode: standalone"));
    assert!(word(&server, "wchs").contains("not in the whitelist"));
    let settings = word(&server, "conf");
    for expected in [
        "tickTime=3000\n",
        "minSessionTimeout=6000\n",
        "maxSessionTimeout=60000\n",
    ] {
        assert!(settings.contains(expected), "{settings}");
    }
}

#[test]
fn the_figures_of_the_guide_are_those_of_mntr() {
    let folder = TempFolder::short();
    let mut command = serve_in(&folder.at("data"));
    let server = Server::start(command.args(["--four-letter-words", "mntr"]));
    let told = word(&server, "mntr");
    let names: Vec<_> = told
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    let guide = include_str!("../../../docs/server-reference.md");
    let figures = guide.split('`').filter(|word| word.starts_with("zk_"));
    let figures: Vec<_> = figures.collect();
    assert!(figures.len() > 10, "{figures:?}");
    for figure in figures {
        assert!(names.contains(&figure), "{figure}: {told}");
    }
}
