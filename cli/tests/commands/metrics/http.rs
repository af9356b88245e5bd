//! A plain HTTP client, and a parser of Prometheus' text format.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends a request, and reads until the server closes the connection.
pub(crate) fn request(at: &str, method: &str, path: &str) -> Page {
    let mut stream = TcpStream::connect(at).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    answer(stream)
}

pub(crate) fn answer(mut stream: TcpStream) -> Page {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    Page {
        status: status.parse().unwrap(),
        head: head.into(),
        body: body.into(),
    }
}

/// The samples of a metrics page. The keys are their names with labels.
#[derive(Debug)]
pub(crate) struct Samples(BTreeMap<String, f64>);

impl Samples {
    pub(crate) fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let samples = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Self(samples.collect())
    }

    pub(crate) fn read(at: &str) -> Self {
        let page = request(at, "GET", "/metrics");
        assert_eq!(page.status, 200, "{page:?}");
        Self::of(&page.body)
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Returns the value of a sample, which must exist.
    #[track_caller]
    pub(crate) fn at(&self, name: &str) -> f64 {
        let value = self.get(name);
        value.unwrap_or_else(|| panic!("no {name}: {self:#?}"))
    }
}

/// Checks a page with Prometheus' parser and linter.
#[track_caller]
pub(crate) fn promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the Debian package `prometheus`");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    // The linter reports problems on stderr, with its own exit status.
    assert!(output.status.success(), "{output:?}\n{text}");
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
}
