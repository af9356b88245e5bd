//! `lockkeeper admin`: lists or ends the sessions of a running server, drains it or reloads it. Uses the server's Unix
//! socket.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::exit::Failure;
use crate::locks::table::Table;
use crate::serve::Request;
use crate::values;

#[derive(Args)]
pub(crate) struct Admin {
    /// Path of the server's --admin-socket
    #[arg(
        long,
        value_name = "PATH",
        env = "LOCKKEEPER_ADMIN_SOCKET",
        global = true
    )]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the sessions of the server.
    Sessions {
        /// Prints one JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Ends a session, so that its locks pass to the next waiters.
    Kick {
        /// Session id, as shown by `sessions`.
        session: String,
    },
    /// Closes the connection of a session. The client may reconnect.
    Disconnect {
        /// Session id, as shown by `sessions`.
        session: String,
    },
    /// Refuses new sessions, and stops the server when all sessions have ended.
    ///
    /// Clients without a session try the next server in their list. Holders and waiters can finish.
    Drain {
        /// Stops the server after this time even if sessions are left [default: the server's --drain-timeout].
        #[arg(long, value_name = "DURATION", value_parser = values::duration)]
        timeout: Option<Duration>,
        /// Waits until the server has stopped.
        #[arg(long)]
        wait: bool,
    },
    /// Cancels a drain, so that the server opens sessions again.
    Undrain,
    /// Reloads users, super user, four-letter words, certificates and metrics token, like SIGHUP.
    Reload,
    /// Prints the response to a four-letter word, even one that clients may not send.
    Word {
        /// The word, such as mntr.
        word: String,
    },
}

impl Admin {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let socket = self.socket.ok_or_else(|| {
            Failure::Usage(
                "which server? Give the path of its --admin-socket with --socket, or in LOCKKEEPER_ADMIN_SOCKET".into(),
            )
        })?;
        let request = self.command.request();
        let unreachable =
            |error: std::io::Error| Failure::Unreachable(format!("{}: {error}", socket.display()));
        let mut stream = UnixStream::connect(&socket).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Failure::Unreachable(format!(
                "no server has its --admin-socket at {}: {error}",
                socket.display()
            )),
            _ => unreachable(error),
        })?;
        let line =
            serde_json::to_string(&request).map_err(|error| Failure::Other(error.to_string()))?;
        writeln!(stream, "{line}").map_err(unreachable)?;
        let mut replies = BufReader::new(stream).lines();
        let mut next = || -> Result<Option<Value>, Failure> {
            let Some(line) = replies.next() else {
                return Ok(None);
            };
            let line = line.map_err(unreachable)?;
            let reply: Value = serde_json::from_str(&line).map_err(|error| {
                Failure::Other(format!("the server's reply cannot be read: {error}"))
            })?;
            match reply.get("error").and_then(Value::as_str) {
                Some(error) => Err(Failure::Other(error.into())),
                None => Ok(Some(reply)),
            }
        };
        if let Command::Sessions { json } = self.command {
            let mut sessions = Vec::new();
            while let Some(session) = next()? {
                sessions.push(session);
            }
            crate::output::print(&match json {
                true => sessions.iter().map(|it| format!("{it}\n")).collect(),
                false => table(&sessions).to_string(),
            })?;
            return Ok(());
        }
        let reply = next()?.ok_or_else(|| {
            Failure::Unreachable("the server has closed the connection without a reply".into())
        })?;
        crate::output::print(&self.command.told(&reply))?;
        if let Command::Drain { wait: true, .. } = self.command {
            // The server closes the stream after it has stopped.
            while next()?.is_some() {}
            crate::output::print("the server has stopped\n")?;
        }
        Ok(())
    }
}

impl Command {
    fn request(&self) -> Request {
        match self {
            Self::Sessions { .. } => Request::Sessions,
            Self::Kick { session } => Request::Kick {
                session: session.clone(),
            },
            Self::Disconnect { session } => Request::Disconnect {
                session: session.clone(),
            },
            Self::Drain { timeout, wait } => Request::Drain {
                timeout_ms: timeout.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
                wait: *wait,
            },
            Self::Undrain => Request::Undrain,
            Self::Reload => Request::Reload,
            Self::Word { word } => Request::Word { word: word.clone() },
        }
    }

    fn told(&self, reply: &Value) -> String {
        let text = |name: &str| reply[name].as_str().unwrap_or_default().to_owned();
        let sessions = &reply["sessions"];
        match self {
            Self::Kick { .. } if reply["ended"] == true => {
                format!("session {} has ended\n", text("session"))
            }
            Self::Kick { .. } => {
                format!(
                    "session {} accepts no more requests, and ends shortly\n",
                    text("session")
                )
            }
            Self::Disconnect { .. } => format!("the connection of {} is closed\n", text("session")),
            Self::Drain { .. } => format!("draining: {sessions} sessions are left\n"),
            Self::Undrain => "sessions are opened again\n".into(),
            Self::Reload => format!("reloaded: {}\n", text("changes")),
            Self::Word { .. } => {
                let text = text("text");
                match text.ends_with('\n') {
                    true => text,
                    false => format!("{text}\n"),
                }
            }
            Self::Sessions { .. } => String::new(),
        }
    }
}

fn table(sessions: &[Value]) -> Table<7> {
    let mut table = Table::new([
        "SESSION",
        "PEER",
        "CONNECTED",
        "TIMEOUT",
        "ZNODES",
        "WATCHES",
        "IDENTITIES",
    ]);
    for of in sessions {
        let text = |name: &str| of[name].as_str().unwrap_or_default().to_owned();
        let seconds = |name: &str| match of[name].as_u64() {
            Some(ms) => format!("{}s", ms / 1_000),
            None => String::new(),
        };
        let identities = of["identities"].as_array().into_iter().flatten();
        let identities: Vec<_> = identities.filter_map(Value::as_str).collect();
        let peer = match of["local"] == true {
            true => "the server itself".into(),
            false => text("peer"),
        };
        table.push([
            text("session"),
            peer,
            seconds("connected_ms"),
            seconds("timeout_ms"),
            of["ephemerals"].to_string(),
            of["watches"].to_string(),
            identities.join(" "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_identity_hides_no_other_session() {
        let session = |id: &str, identity: String| {
            json!({
                "session": id, "peer": "127.0.0.1:4", "connected_ms": 5_000, "timeout_ms": 30_000, "ephemerals": 1,
                "watches": 2, "identities": [identity],
            })
        };
        let long = session("0x1", "日".repeat(40_000));
        let other = session("0x2", "digest:\u{202e}ann".into());
        let table = table(&[long, other]).to_string();
        let lines: Vec<_> = table.lines().collect();
        assert!(
            lines[1].starts_with("0x1  ") && lines[1].ends_with('…'),
            "{table}"
        );
        assert!(lines[2].ends_with(r"digest:\u{202e}ann"), "{table}");
    }
}
