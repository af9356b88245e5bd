//! `--metrics-listen`: metrics and health over HTTP.

mod contrib;
mod health;
mod hostile;
pub(crate) mod http;
mod probe;
mod values;

use std::net::TcpListener;
use std::process::{Command, Output};

use http::*;

use super::server::*;
use super::support::*;

fn serve_metrics(data: &str) -> Command {
    let mut command = serve();
    command.args(["--metrics-listen", "127.0.0.1:0", "--data", data]);
    command
}

fn metrics_of(server: &Server) -> String {
    let (_, rest) = server.ready.rsplit_once(" metrics ").unwrap();
    rest.split(' ').next().unwrap().to_owned()
}

#[test]
fn an_occupied_port_is_named_and_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = TempFolder::short();
    let mut command = serve();
    command.args(["--log-level=warn", "--metrics-listen", &address]);
    let Output {
        status,
        stdout,
        stderr,
    } = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(stdout.is_empty());
    let expected = "is in use by another program: choose another address with --metrics-listen";
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(said, format!("lockkeeper: {address} {expected}\n"));
    // The server fails before it opens the store.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn without_the_option_there_is_no_port() {
    let server = Server::start(serve().args(["--data", "memory"]));
    assert!(!server.ready.contains("metrics"), "{}", server.ready);
}

#[test]
fn the_paths_are_three_for_two_methods() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    for (path, body) in [("/healthz", "alive\n"), ("/readyz", "ready\n")] {
        let page = request(&at, "GET", path);
        assert_eq!((page.status, &*page.body), (200, body));
    }
    let metrics = request(&at, "GET", "/metrics?any=query");
    assert_eq!(metrics.status, 200);
    let format = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(metrics.head.contains(format), "{}", metrics.head);
    let head = request(&at, "HEAD", "/metrics");
    assert_eq!((head.status, &*head.body), (200, ""));
    for path in ["/", "/metrics/", "/admin", "*"] {
        let page = request(&at, "GET", path);
        let expected = "not found: there are /metrics, /healthz and /readyz\n";
        assert_eq!((page.status, &*page.body), (404, expected), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "NONSENSE"] {
        let page = request(&at, method, "/metrics");
        assert_eq!(page.status, 405, "{method}");
        assert!(page.head.contains("allow: GET, HEAD"), "{}", page.head);
    }
}
