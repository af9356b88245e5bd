//! The options of `lockkeeper serve`. The configuration file accepts each option under the same name.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper_store::{Durability, ServerOptions};

use super::logs;
use crate::values::{self, AuditPlace, Data, Digest, Listen};

#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Reads options from this TOML file, under the same names. Flags override the file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Prints the configuration, or the mistakes in it, and exits without opening the store or a port
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true)]
    pub(crate) check_config: bool,

    /// Address for connections without TLS, or unix:PATH for a Unix socket. Port 0 takes any free port. At most one of
    /// each kind [default: 127.0.0.1:2181, unless --tls-listen or a Unix socket is given]
    #[arg(long, value_name = "ADDRESS|unix:PATH", help_heading = "Addresses")]
    pub(crate) listen: Vec<Listen>,
    /// Permissions of the Unix socket's file, as octal digits. Clients need write permission to connect
    #[arg(long, value_name = "MODE", value_parser = values::mode, default_value = "600", help_heading = "Addresses")]
    pub(crate) unix_mode: u32,
    /// Ends the session of a client on the Unix socket when its process exits, without waiting for the timeout
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true, help_heading = "Addresses")]
    pub(crate) watch_processes: bool,
    /// Address that serves /metrics (in Prometheus text format) and the probes /healthz and /readyz over HTTP [default:
    /// none]
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, help_heading = "Addresses")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Allows clients of other machines to connect without authentication
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Addresses")]
    pub(crate) insecure: bool,

    /// Address of a web page that shows locks live. It shows only locks that unauthenticated clients may see [default:
    /// none]
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, help_heading = "Dashboard")]
    pub(crate) dashboard: Option<SocketAddr>,
    /// Host name allowed in the page's URL, in addition to IP addresses and localhost. Can be repeated
    #[arg(long, value_name = "NAME", value_parser = values::host, help_heading = "Dashboard")]
    pub(crate) dashboard_host: Vec<String>,
    /// Lets users with the token ask holders for locks and take locks away
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Dashboard")]
    pub(crate) dashboard_allow_revoke: bool,
    /// File with the token in its first line, readable only by its owner. Users need the token to revoke locks, and to
    /// see anything at an address that other machines can reach
    #[arg(long, value_name = "FILE", help_heading = "Dashboard")]
    pub(crate) dashboard_token_file: Option<PathBuf>,

    /// Address for TLS connections. Needs --tls-cert and --tls-key
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, help_heading = "TLS")]
    pub(crate) tls_listen: Option<SocketAddr>,
    /// Certificate chain of the server, as PEM
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Requires client certificates signed by this authority. Can be repeated
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_client_ca: Vec<PathBuf>,
    /// Identifies clients by the URIs (SPIFFE) in their certificates instead of the subjects
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "TLS")]
    pub(crate) tls_client_uri: bool,

    /// Directory of the store, created if missing, or `memory` for a store that ends with the server
    #[arg(
        long,
        value_name = "DIR|memory",
        default_value = "./lockkeeper-data",
        help_heading = "Store"
    )]
    pub(crate) data: Data,
    /// Time to wait while another process has the store open, such as a server that is stopping [default: not at all]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Store")]
    pub(crate) open_timeout: Option<Duration>,
    /// Durability class, which decides when a write is acknowledged
    #[arg(
        long,
        value_name = "fsync|delayed-restart|none",
        value_enum,
        default_value = "fsync",
        help_heading = "Store"
    )]
    pub(crate) durability: DurabilityClass,
    /// Unit of time. Sessions expire at most one tick after their timeout
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "2s", help_heading = "Store")]
    pub(crate) tick: Duration,
    /// Shortest session timeout that clients can get [default: 2 ticks]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Store")]
    pub(crate) min_session_timeout: Option<Duration>,
    /// Longest session timeout that clients can get, at most 2147483647ms (24.8 days) [default: 20 ticks]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Store")]
    pub(crate) max_session_timeout: Option<Duration>,
    /// Interval between searches for empty containers and expired TTL znodes
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1m", help_heading = "Store")]
    pub(crate) reaper_interval: Duration,
    /// Allows znodes with a time to live (TTL). By default they are refused, as in ZooKeeper
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Store")]
    pub(crate) allow_ttl: bool,

    /// Makes a backup when the newest is this old, at least 1s. Needs --backup-dir [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Backups")]
    pub(crate) backup_every: Option<Duration>,
    /// Folder for the backups, which must exist. Several stores may share a folder
    #[arg(long, value_name = "DIR", help_heading = "Backups")]
    pub(crate) backup_dir: Option<PathBuf>,
    /// Number of backups of this store to keep. Each new backup removes older ones, except much larger ones
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "24", help_heading = "Backups")]
    pub(crate) keep: usize,

    /// Requires every client to authenticate by password, client certificate or Unix user
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Access")]
    pub(crate) require_auth: bool,
    /// User whose password is accepted, as printed by `lockkeeper digest`. Can be repeated
    #[arg(long, value_name = "USER:DIGEST", help_heading = "Access")]
    pub(crate) user: Vec<Digest>,
    /// Super user, who may do everything, as printed by `lockkeeper digest`
    #[arg(long, value_name = "USER:DIGEST", help_heading = "Access")]
    pub(crate) super_digest: Option<Digest>,
    /// Four-letter words to answer, such as srvr,ruok,mntr, or * for all
    #[arg(long, value_name = "WORDS", value_parser = words, default_value = "srvr", help_heading = "Access")]
    pub(crate) four_letter_words: String,
    /// Clients that may use four-letter words: addresses, networks such as 10.0.0.0/8, unix for the Unix socket, or *
    /// for all
    #[arg(long, value_name = "CLIENTS", value_parser = word_clients, default_value = "*", help_heading = "Access")]
    pub(crate) four_letter_words_from: String,
    /// File with the token for /metrics. Requests present it as a bearer token or as any user's password. /healthz and
    /// /readyz need no token
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub(crate) metrics_token_file: Option<PathBuf>,

    /// Records deletes, changes of access control lists and authentications in this file, or on stdout for -. Each line
    /// is a JSON object. SIGHUP reopens the file
    #[arg(long, value_name = "FILE|-", help_heading = "Operators")]
    pub(crate) audit_log: Option<AuditPlace>,
    /// Unix socket for `lockkeeper admin`, which only the server's own user and root may use
    #[arg(long, value_name = "PATH", help_heading = "Operators")]
    pub(crate) admin_socket: Option<PathBuf>,
    /// Maximum duration of a drain (`lockkeeper admin drain`). The server then stops even if sessions are left
    /// [default: until all sessions have ended]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Operators")]
    pub(crate) drain_timeout: Option<Duration>,
    /// Reloads, like SIGHUP, when the configuration file, a TLS file or the metrics token file changes
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Operators")]
    pub(crate) watch_files: bool,

    /// Maximum number of connections. A small --max-memory reduces it [default: 16384, or as many as the hard limit of
    /// open files allows]
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Limits")]
    pub(crate) max_connections: Option<usize>,
    /// Maximum number of connections from one IPv4 address or IPv6 /64 network [default: three quarters of
    /// --max-connections]
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Limits")]
    pub(crate) max_connections_per_address: Option<usize>,
    /// Maximum number of half-open connections, which lack a session or required authentication. Above this limit, the
    /// server closes the oldest half-open connection from the address with the most
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1024", help_heading = "Limits")]
    pub(crate) max_half_open: usize,
    /// Time limit for a connection to open a session and, if required, to authenticate
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "10s", help_heading = "Limits")]
    pub(crate) handshake_timeout: Duration,
    /// Maximum size of a request, from 1K to 2M
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "1048575", help_heading = "Limits")]
    pub(crate) max_frame: usize,
    /// Maximum number of unanswered requests of one connection
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1024", help_heading = "Limits")]
    pub(crate) max_in_flight: usize,
    /// Maximum size of a client's unread replies, at least 64K. A small --max-memory reduces this limit. If it is
    /// exceeded, the server closes the connection
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "16M", help_heading = "Limits")]
    pub(crate) max_outgoing: usize,
    /// Maximum total size of incomplete requests, at least 32M. A small --max-memory reduces this limit. If it is
    /// exceeded, the server closes the connection with the oldest incomplete request
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "256M", help_heading = "Limits")]
    pub(crate) max_unfinished: usize,
    /// Maximum number of sessions
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1048576", help_heading = "Limits")]
    pub(crate) max_sessions: usize,
    /// Maximum number of watches of one session
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1048576", help_heading = "Limits")]
    pub(crate) max_watches_per_session: usize,
    /// Maximum number of znodes
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "268435456", help_heading = "Limits")]
    pub(crate) max_znodes: usize,
    /// Maximum memory of the process [default: three quarters of its control group's limit, or else half of the
    /// machine's memory; on macOS 1 GiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, help_heading = "Limits")]
    pub(crate) max_memory: Option<usize>,

    /// Number of threads that serve connections [default: half of the cores, at most 4]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Running")]
    pub(crate) threads: Option<usize>,
    /// Maximum time that a thread polls its connections before it sleeps, from 0 (never) to 10ms [default: 100us, or 0
    /// on a single core]
    #[arg(long, value_name = "DURATION", value_parser = values::busy_poll, help_heading = "Running")]
    pub(crate) busy_poll: Option<Duration>,
    /// Shuts down after this time without connections and sessions, or when the Unix socket's file is removed. For
    /// servers that are started on demand [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Running")]
    pub(crate) idle_exit: Option<Duration>,
    /// Format of the log on stderr
    #[arg(
        long,
        value_name = "text|json",
        value_enum,
        default_value = "text",
        help_heading = "Running"
    )]
    pub(crate) log_format: logs::Format,
    /// Log level (off, error, warn, info, debug or trace), or a list of TARGET=LEVEL. LOCKKEEPER_LOG sets it, too
    #[arg(long, value_name = "LEVEL", value_parser = logs::level, default_value = "info", help_heading = "Running")]
    pub(crate) log_level: String,
}

/// [`Durability`], as a value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityClass {
    /// When the write is on disk
    Fsync,
    /// Like fsync for persistent znodes. Does not wait for sessions and ephemeral znodes, so after a crash the next
    /// start waits until all clients must have given up their locks
    DelayedRestart,
    /// Immediately. A kill or power cut may lose the last writes
    None,
}

impl From<DurabilityClass> for Durability {
    fn from(class: DurabilityClass) -> Self {
        match class {
            DurabilityClass::Fsync => Self::Fsync,
            DurabilityClass::DelayedRestart => Self::DelayedRestart,
            DurabilityClass::None => Self::None,
        }
    }
}

fn words(text: &str) -> Result<String, lockkeeper_store::Error> {
    ServerOptions::new().four_letter_words(text)?;
    Ok(text.into())
}

fn word_clients(text: &str) -> Result<String, lockkeeper_store::Error> {
    ServerOptions::new().four_letter_words_from(text)?;
    Ok(text.into())
}

fn threads(text: &str) -> Result<usize, String> {
    let count = values::count(text).ok().filter(|count| *count <= 1_024);
    count.ok_or_else(|| "expected 1 to 1,024 threads".into())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::super::config::command;

    fn tables() -> String {
        let mut text = String::new();
        let mut heading = None;
        for argument in command().get_arguments() {
            let of = argument
                .get_help_heading()
                .unwrap_or("Where options come from");
            if heading != Some(of) {
                heading = Some(of);
                let head = "| option | default | |\n|---|---|---|";
                writeln!(text, "\n### {of}\n\n{head}").unwrap();
            }
            let help = argument.get_help().unwrap().to_string();
            let (help, said) = match help.split_once(" [default: ") {
                Some((help, default)) => {
                    (help.to_owned(), default.trim_end_matches(']').to_owned())
                }
                None => (help, String::new()),
            };
            let defaults = argument.get_default_values().iter();
            let default = defaults
                .map(|it| format!("`{}`", it.to_str().unwrap()))
                .collect();
            let default = if said.is_empty() { default } else { said };
            let default = if default == "`false`" {
                String::new()
            } else {
                default
            };
            let name = argument.get_long().unwrap();
            let value = match &argument.get_value_names().unwrap()[0] {
                value if *value == "true|false" => String::new(),
                value => format!(" {}", value.replace('|', "\\|")),
            };
            writeln!(text, "| `--{name}{value}` | {default} | {help} |").unwrap();
        }
        text
    }

    #[test]
    fn the_guide_has_every_option() {
        let guide = include_str!("../../../docs/server-reference.md");
        let guide = guide
            .split("<!-- options -->")
            .nth(1)
            .expect("the mark of the options");
        assert!(
            guide == tables(),
            "docs/server-reference.md should have:\n{}",
            tables()
        );
    }
}
