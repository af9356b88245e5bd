//! `lockkeeper health`: asks a server whether it is alive or ready. Health checks can use this command in a container
//! that has no other HTTP client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use clap::Args;

use crate::exit::Failure;
use crate::values;

#[derive(Args)]
pub(crate) struct Health {
    /// Address in --metrics-listen of the server or warden
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, default_value = "127.0.0.1:9141")]
    http: SocketAddr,
    /// Checks that the server is ready to open sessions, not only that it is alive
    #[arg(long)]
    ready: bool,
    /// Time limit for the response
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "5s")]
    timeout: Duration,
}

const MAX_ANSWER_BYTES: usize = 16 << 10;

impl Health {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let path = if self.ready { "/readyz" } else { "/healthz" };
        let answer = self.ask(path).map_err(|error| {
            let address = self.http;
            Failure::Other(format!("no answer to http://{address}{path}: {error}"))
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if !head.starts_with("HTTP/1.") {
            let address = self.http;
            let text =
                format!("{address} does not speak HTTP: is it the address in --metrics-listen?");
            return Err(Failure::Other(text));
        }
        match head.split(' ').nth(1) {
            Some("200") => Ok(crate::output::print(body)?),
            _ if body.trim().is_empty() => Err(Failure::Other(head.to_owned())),
            _ => Err(Failure::Other(body.trim_end().to_owned())),
        }
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        let deadline = Instant::now() + self.timeout;
        let mut stream = TcpStream::connect_timeout(&self.http, self.timeout)?;
        stream.set_write_timeout(Some(self.timeout))?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.http
        );
        stream.write_all(head.as_bytes())?;
        let (mut answer, mut buffer) = (Vec::new(), [0; 4_096]);
        // The deadline applies to the whole response, which may arrive in small pieces.
        while answer.len() < MAX_ANSWER_BYTES {
            let rest = deadline.saturating_duration_since(Instant::now());
            stream.set_read_timeout(Some(rest.max(Duration::from_millis(1))))?;
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) if rest.is_zero() => return Err(timed_out()),
                Ok(length) => answer.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err(timed_out());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn timed_out() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "timed out")
}
