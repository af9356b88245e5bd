//! A minimal HTTP client for tests. It sends a request in several steps.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A request whose head has been sent. Dropping it closes the connection.
pub(crate) struct Request {
    stream: BufReader<TcpStream>,
}

impl Request {
    /// Sends the head of a request. `headers` contains additional header lines, each with its line end.
    pub(crate) async fn open(
        to: SocketAddr,
        method: &str,
        target: &str,
        length: usize,
        headers: &str,
    ) -> Self {
        let mut stream = TcpStream::connect(to).await.unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) async fn send(&mut self, body: &str) {
        let sent = self.stream.get_mut().write_all(body.as_bytes());
        sent.await.unwrap();
    }

    /// Waits for the status line that shows that the handler has requested the body.
    pub(crate) async fn until_wanted(&mut self) {
        assert_eq!(self.head().await[0], "HTTP/1.1 100 Continue");
    }

    pub(crate) async fn answer(mut self) -> Response {
        let head = self.head().await;
        let mut body = String::new();
        self.stream.read_to_string(&mut body).await.unwrap();
        let status = head[0].split(' ').nth(1).unwrap();
        Response {
            status: status.parse().unwrap(),
            headers: head[1..].to_vec(),
            body,
        }
    }

    async fn head(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line).await.unwrap();
            assert_ne!(read, 0, "hung up after {lines:?}");
            match line.trim_end() {
                "" => return lines,
                line => lines.push(line.to_owned()),
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<String>,
    body: String,
}

impl Response {
    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        let pairs = self.headers.iter().filter_map(|line| line.split_once(": "));
        pairs
            .into_iter()
            .find_map(|(name, value)| (name == wanted).then_some(value))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    pub(crate) fn token(&self) -> i64 {
        self.json()["token"].as_str().unwrap().parse().unwrap()
    }
}

pub(crate) async fn until_refused(address: SocketAddr) {
    // A closed listener sends no notice, so connect until a connection is refused. A connection that is accepted just
    // before the listener closes is dropped.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}
