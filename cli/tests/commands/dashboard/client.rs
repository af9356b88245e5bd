//! A dashboard in a separate process, and a plain client of its pages and streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use testkit::ServerProcess;

use super::super::metrics::http::{Page, answer};
use super::super::stores::*;

/// Time without a line after which a stream counts as stuck. Even a stream without events has a line every 15 s.
const STUCK: Duration = Duration::from_secs(60);

/// A running `lockkeeper dashboard`. Dropping this kills it.
pub(crate) struct Dashboard {
    process: ServerProcess,
    pub(crate) url: String,
}

impl Dashboard {
    pub(crate) fn start(store: &StoreAt, arguments: &[&str]) -> Self {
        let mut all = vec!["dashboard", "--listen", "127.0.0.1:0"];
        all.extend(arguments);
        Self::start_as(&mut store.command(&all))
    }

    pub(crate) fn start_as(command: &mut Command) -> Self {
        let process = ServerProcess::start(command);
        let url = process.ready.strip_prefix("lockkeeper dashboard ");
        Self {
            url: url.expect("it says its URL").to_owned(),
            process,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    pub(crate) fn at(&self) -> &str {
        let rest = self.url.strip_prefix("http://").unwrap();
        rest.split_once('/').unwrap().0
    }

    pub(crate) fn token(&self) -> &str {
        self.url.split_once("#token=").expect("a token").1
    }

    /// Waits for a log line that contains this text.
    pub(crate) fn logs(&self, text: &str) -> String {
        self.process.logs(text)
    }

    pub(crate) fn end(self, signal: Signal) -> Option<i32> {
        self.process.end(signal).status.code()
    }
}

pub(crate) fn send(at: &str, first: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(STUCK)).unwrap();
    let mut text = format!("{first}\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str(&format!("Host: {at}\r\n"));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    stream
        .write_all(format!("{text}\r\n{body}").as_bytes())
        .unwrap();
    stream
}

pub(crate) fn get(at: &str, path: &str, headers: &[(&str, &str)]) -> Page {
    answer(send(at, &format!("GET {path} HTTP/1.1"), headers, ""))
}

pub(crate) fn post(at: &str, headers: &[(&str, &str)], body: &Value) -> Page {
    let mut all = vec![("Content-Type", "application/json")];
    all.extend(headers);
    let first = "POST /api/revoke HTTP/1.1";
    answer(send(at, first, &all, &body.to_string()))
}

pub(crate) fn parsed(page: &Page) -> Value {
    serde_json::from_str(&page.body).unwrap_or_else(|error| panic!("{error}: {page:?}"))
}

pub(crate) struct Events {
    pub(crate) head: String,
    lines: BufReader<TcpStream>,
}

impl Events {
    /// Opens a stream. If the dashboard refuses it, returns the refusal as the error.
    pub(crate) fn open(at: &str, path: &str, headers: &[(&str, &str)]) -> Result<Self, Page> {
        // Use HTTP/1.0, because the answer is then not chunked.
        let stream = send(at, &format!("GET {path} HTTP/1.0"), headers, "");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 200 {
            return Ok(Self { head, lines });
        }
        let mut body = String::new();
        lines.read_to_string(&mut body).unwrap();
        Err(Page { status, head, body })
    }

    #[track_caller]
    pub(crate) fn of(at: &str, path: &str) -> Self {
        let events = Self::open(at, path, &[]);
        events.unwrap_or_else(|page| panic!("{page:?}"))
    }

    /// Returns the next event, or `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let line = line.trim_end_matches('\n');
            if let Some(text) = line.strip_prefix("event: ") {
                name = text.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            } else {
                assert!(line.is_empty() || line.starts_with(':'), "{line}");
            }
        }
    }

    /// Waits for an event with this name whose data satisfies a condition.
    #[track_caller]
    pub(crate) fn until(&mut self, name: &str, mut is: impl FnMut(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        while let Some((it, data)) = self.next() {
            if it == name {
                if is(&data) {
                    return data;
                }
                last = data;
            }
        }
        panic!("the stream has ended; the last {name}: {last}");
    }
}
