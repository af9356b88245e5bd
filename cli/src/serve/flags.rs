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
    /// Reads options from this file, in TOML, under the same names; flags win
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Shows what would be served, or what is wrong, and exits; opens neither the store nor a port
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true)]
    pub(crate) check_config: bool,

    /// Address for plain connections, where port 0 takes any free port, or unix:PATH for a Unix socket; can be given
    /// once for each [default: 127.0.0.1:2181, unless there is --tls-listen or a Unix socket]
    #[arg(long, value_name = "ADDRESS|unix:PATH", help_heading = "Addresses")]
    pub(crate) listen: Vec<Listen>,
    /// Permissions of the Unix socket's file, in octal digits; to connect takes the permission to write
    #[arg(long, value_name = "MODE", value_parser = values::mode, default_value = "600", help_heading = "Addresses")]
    pub(crate) unix_mode: u32,
    /// Ends the session of a Unix socket's client when its process exits; false waits for its timeout
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true, help_heading = "Addresses")]
    pub(crate) watch_processes: bool,
    /// Address for metrics and health over HTTP: /metrics in the text format of Prometheus, and /healthz and
    /// /readyz for probes [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, help_heading = "Addresses")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Allows an address that other machines can reach without authentication
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Addresses")]
    pub(crate) insecure: bool,

    /// Address of a page for browsers that shows the locks as they change, those that a client without a name may see
    /// [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, help_heading = "Dashboard")]
    pub(crate) dashboard: Option<SocketAddr>,
    /// A name under which browsers reach the page, in addition to addresses and localhost; can be given several times
    #[arg(long, value_name = "NAME", value_parser = values::host, help_heading = "Dashboard")]
    pub(crate) dashboard_host: Vec<String>,
    /// Lets the page's users ask for locks and take them away, with the token
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Dashboard")]
    pub(crate) dashboard_allow_revoke: bool,
    /// File with the token, in its first line, which only its owner may read; needed to revoke, and to see anything at
    /// an address that other machines can reach
    #[arg(long, value_name = "FILE", help_heading = "Dashboard")]
    pub(crate) dashboard_token_file: Option<PathBuf>,

    /// Address for TLS connections; needs --tls-cert and --tls-key
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, help_heading = "TLS")]
    pub(crate) tls_listen: Option<SocketAddr>,
    /// The server's certificate chain, as PEM
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate, as PEM
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Requires client certificates signed by this authority; can be given several times
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_client_ca: Vec<PathBuf>,
    /// Identifies clients by the URIs of their certificates (SPIFFE) instead of the subjects
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "TLS")]
    pub(crate) tls_client_uri: bool,

    /// Directory of the store, created if it is missing; or `memory`, which keeps nothing
    #[arg(
        long,
        value_name = "DIR|memory",
        default_value = "./lockkeeper-data",
        help_heading = "Store"
    )]
    pub(crate) data: Data,
    /// Time to wait for a store that another process still has open, as a server that is ending [default: not at all]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Store")]
    pub(crate) open_timeout: Option<Duration>,
    /// Durability class: the moment at which a write is acknowledged
    #[arg(
        long,
        value_name = "fsync|delayed-restart|none",
        value_enum,
        default_value = "fsync",
        help_heading = "Store"
    )]
    pub(crate) durability: DurabilityClass,
    /// Unit of time: sessions expire up to one tick after their timeout
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "2s", help_heading = "Store")]
    pub(crate) tick: Duration,
    /// Shortest session timeout [default: 2 ticks]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Store")]
    pub(crate) min_session_timeout: Option<Duration>,
    /// Longest session timeout; at most 2147483647ms, 24.8 days [default: 20 ticks]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Store")]
    pub(crate) max_session_timeout: Option<Duration>,
    /// Interval of the search for empty containers and expired TTL znodes
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1m", help_heading = "Store")]
    pub(crate) reaper_interval: Duration,
    /// Allows znodes with a time to live (TTL), which ZooKeeper refuses by default, too
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Store")]
    pub(crate) allow_ttl: bool,

    /// Makes a backup whenever the last one is this old, from 1s; needs --backup-dir [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Backups")]
    pub(crate) backup_every: Option<Duration>,
    /// Folder of the backups, which must exist; stores may share one
    #[arg(long, value_name = "DIR", help_heading = "Backups")]
    pub(crate) backup_dir: Option<PathBuf>,
    /// Number of backups of this store to keep: after each one the oldest beyond that are removed
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "24", help_heading = "Backups")]
    pub(crate) keep: usize,

    /// Requires authentication of every client, by password or client certificate
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Access")]
    pub(crate) require_auth: bool,
    /// A user whose password is accepted, from `lockkeeper digest`; can be given several times
    #[arg(long, value_name = "USER:DIGEST", help_heading = "Access")]
    pub(crate) user: Vec<Digest>,
    /// The super user, who may do everything, from `lockkeeper digest`
    #[arg(long, value_name = "USER:DIGEST", help_heading = "Access")]
    pub(crate) super_digest: Option<Digest>,
    /// Four-letter words that are answered, as srvr,ruok,mntr; * for all
    #[arg(long, value_name = "WORDS", value_parser = words, default_value = "srvr", help_heading = "Access")]
    pub(crate) four_letter_words: String,
    /// Clients whose four-letter words are answered: addresses, networks as 10.0.0.0/8, unix for the Unix socket, or *
    /// for all
    #[arg(long, value_name = "CLIENTS", value_parser = word_clients, default_value = "*", help_heading = "Access")]
    pub(crate) four_letter_words_from: String,
    /// File with a token that /metrics asks for, as a bearer token or as the password of any user; /healthz and /readyz
    /// stay open
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub(crate) metrics_token_file: Option<PathBuf>,

    /// Writes who deleted, changed access control lists or failed to authenticate, one JSON object a line, to this file,
    /// or - for stdout; SIGHUP opens it anew
    #[arg(long, value_name = "FILE|-", help_heading = "Operators")]
    pub(crate) audit_log: Option<AuditPlace>,
    /// Unix socket for `lockkeeper admin`, for the server's own user and root
    #[arg(long, value_name = "PATH", help_heading = "Operators")]
    pub(crate) admin_socket: Option<PathBuf>,
    /// Longest time of a drain, which `lockkeeper admin drain` begins, until the server stops with sessions left
    /// [default: until all sessions have ended]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Operators")]
    pub(crate) drain_timeout: Option<Duration>,
    /// Reloads, as SIGHUP does, when the configuration file, a certificate or the token file has changed
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", hide_possible_values = true, hide_default_value = true, help_heading = "Operators")]
    pub(crate) watch_files: bool,

    /// Limit of connections, or fewer where --max-memory is small [default: 16384, or as many as the hard limit of open
    /// files allows]
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Limits")]
    pub(crate) max_connections: Option<usize>,
    /// Limit of connections from one IP address, of IPv6 from one /64 [default: three quarters of --max-connections]
    #[arg(long, value_name = "N", value_parser = values::count, help_heading = "Limits")]
    pub(crate) max_connections_per_address: Option<usize>,
    /// Limit of half-open connections: without a session, or without the authentication that is required; when
    /// another arrives, the oldest of the address that has most is closed
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1024", help_heading = "Limits")]
    pub(crate) max_half_open: usize,
    /// Time limit for a connection to open a session and, where required, to authenticate
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "10s", help_heading = "Limits")]
    pub(crate) handshake_timeout: Duration,
    /// Longest request, from 1K to 2M
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "1048575", help_heading = "Limits")]
    pub(crate) max_frame: usize,
    /// Limit of requests of one connection in flight
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1024", help_heading = "Limits")]
    pub(crate) max_in_flight: usize,
    /// Limit of a client's unread replies, at least 64K, or less where --max-memory is small; beyond it the
    /// connection is closed
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "16M", help_heading = "Limits")]
    pub(crate) max_outgoing: usize,
    /// Limit of incomplete requests, of all connections together, at least 32M, or less where --max-memory is small;
    /// beyond it the connection with the oldest one is closed
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, default_value = "256M", help_heading = "Limits")]
    pub(crate) max_unfinished: usize,
    /// Limit of sessions
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1048576", help_heading = "Limits")]
    pub(crate) max_sessions: usize,
    /// Limit of watches of one session
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1048576", help_heading = "Limits")]
    pub(crate) max_watches_per_session: usize,
    /// Limit of znodes
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "268435456", help_heading = "Limits")]
    pub(crate) max_znodes: usize,
    /// Limit of the memory of the process, in bytes [default: three quarters of its control group's limit, else half of
    /// the machine's; on macOS 1 GiB]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, help_heading = "Limits")]
    pub(crate) max_memory: Option<usize>,

    /// Number of threads that serve connections [default: half of the cores, at most 4]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Running")]
    pub(crate) threads: Option<usize>,
    /// Longest time for which a thread polls its connections before it sleeps, from 0 (never) to 10ms [default: 100us, or
    /// 0 on a single core]
    #[arg(long, value_name = "DURATION", value_parser = values::busy_poll, help_heading = "Running")]
    pub(crate) busy_poll: Option<Duration>,
    /// Ends in order after this time without a connection or session, or when the file of its Unix socket is gone: for a
    /// server that is started on demand [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Running")]
    pub(crate) idle_exit: Option<Duration>,
    /// Format of the log lines on stderr
    #[arg(
        long,
        value_name = "text|json",
        value_enum,
        default_value = "text",
        help_heading = "Running"
    )]
    pub(crate) log_format: logs::Format,
    /// Log level: error, warn, info, debug or trace, also as target=level; LOCKKEEPER_LOG sets it, too
    #[arg(long, value_name = "LEVEL", value_parser = logs::level, default_value = "info", help_heading = "Running")]
    pub(crate) log_level: String,
}

/// [`Durability`], as a value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityClass {
    /// Once it is on the disk
    Fsync,
    /// As fsync for persistent znodes; sessions and their ephemerals are not waited for, and a start after a crash
    /// waits until all clients must have given up
    DelayedRestart,
    /// At once: a power cut may take the last writes
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
