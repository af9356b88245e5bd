//! [`Plan`]: the options of `serve`, checked against each other and converted to the options of the library.

use std::fmt::Write;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use lockkeeper_store::{AccessOptions, ServerOptions, StoreOptions, TlsError, TlsOptions};

use super::backups::{self, BackupPlan};
use super::config::{Config, Setting};
use super::dashboard::DashboardPlan;
use super::flags::{DurabilityClass, Flags};
use super::limits;
use super::memory::Memory;
use crate::dashboard::MAX_VIEWERS;
use crate::http::MAX_CONNECTIONS;
use crate::http::token::Token;
use crate::values::{AuditPlace, Data, Listen, shown};

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) data: Data,
    pub(crate) durability: DurabilityClass,
    pub(crate) memory: Memory,
    pub(crate) store: StoreOptions,
    pub(crate) server: ServerOptions,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) open_files: usize,
    pub(crate) threads: usize,
    pub(crate) open_timeout: Option<Duration>,
    pub(crate) idle_exit: Option<Duration>,
    pub(crate) metrics_address: Option<SocketAddr>,
    pub(crate) backups: Option<BackupPlan>,
    pub(crate) dashboard: Option<DashboardPlan>,
    pub(crate) metrics_token: Option<Token>,
    pub(crate) access: AccessOptions,
    pub(crate) audit: Option<AuditPlace>,
    pub(crate) admin_socket: Option<PathBuf>,
    pub(crate) drain_timeout: Option<Duration>,
    /// Files whose change triggers a reload. Empty unless `--watch-files` is set.
    pub(crate) watched: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Plan {
    pub(crate) fn of(flags: &Flags) -> Result<Self, String> {
        check_data(&flags.data)?;
        check_listeners(flags)?;
        check_exposure(flags)?;
        let tls = TlsFiles::of(flags)?;
        check_limits(flags)?;
        let memory = Memory::of(flags)?;
        Ok(Self {
            data: flags.data.clone(),
            durability: flags.durability,
            memory,
            store: store(flags, &memory)?,
            server: server(flags, &memory, tls.as_ref())?,
            tls,
            open_files: memory.connections * flags.files_of_client() + flags.files_of_pages(),
            threads: threads(flags),
            open_timeout: flags.open_timeout,
            idle_exit: flags.idle_exit,
            metrics_address: flags.metrics_listen,
            backups: backups(flags)?,
            dashboard: DashboardPlan::of(flags)?,
            metrics_token: metrics_token(flags)?,
            access: access(flags)?,
            audit: flags.audit_log.clone(),
            admin_socket: flags.admin_socket.clone(),
            drain_timeout: flags.drain_timeout,
            watched: watched(flags),
            warnings: warnings(flags),
        })
    }
}

impl Flags {
    pub(super) fn max_connections(&self) -> usize {
        let default = || limits::default_connections(self.files_of_client(), self.files_of_pages());
        self.max_connections.unwrap_or_else(default)
    }

    /// Returns `true` if the server observes its own locks, for which it uses a client. With `--idle-exit`, metrics are
    /// no reason to observe them, because this client would keep the server from becoming idle.
    pub(super) fn follows_locks(&self) -> bool {
        self.dashboard.is_some() || self.metrics_listen.is_some() && self.idle_exit.is_none()
    }

    /// Returns the number of files that the server opens per client. On the Unix socket, this includes a handle to the
    /// client's process.
    fn files_of_client(&self) -> usize {
        1 + usize::from(self.unix_socket().is_some() && self.watch_processes)
    }

    fn files_of_pages(&self) -> usize {
        let pages =
            usize::from(self.metrics_listen.is_some()) + usize::from(self.dashboard.is_some());
        pages * MAX_CONNECTIONS + self.dashboard.map_or(0, |_| MAX_VIEWERS)
    }
}

fn check_data(data: &Data) -> Result<(), String> {
    match data {
        Data::Folder(path) if path.exists() && !path.is_dir() => {
            Err(format!("--data: {} is not a directory", path.display()))
        }
        _ => Ok(()),
    }
}

fn backups(flags: &Flags) -> Result<Option<BackupPlan>, String> {
    let (every, folder) = match (flags.backup_every, &flags.backup_dir) {
        (None, None) => return Ok(None),
        (Some(every), Some(folder)) => (every, folder),
        (Some(_), None) => {
            return Err("--backup-every needs --backup-dir, the folder of the backups".into());
        }
        (None, Some(_)) => {
            return Err("--backup-dir needs --backup-every, the interval of the backups".into());
        }
    };
    if every < backups::SHORTEST_INTERVAL {
        return Err("--backup-every is too short: expected at least 1s".into());
    }
    let Data::Folder(data) = &flags.data else {
        return Err(
            "--backup-every needs a store in a directory: --data memory keeps nothing".into(),
        );
    };
    if resolved(folder).starts_with(resolved(data)) {
        return Err(format!(
            "--backup-dir: {} is inside the store's own directory, and would be lost with it",
            folder.display()
        ));
    }
    Ok(Some(BackupPlan {
        every,
        folder: folder.clone(),
        keep: flags.keep,
    }))
}

fn resolved(path: &Path) -> PathBuf {
    let resolved = path.canonicalize().or_else(|_| std::path::absolute(path));
    resolved.unwrap_or_else(|_| path.to_owned())
}

fn check_listeners(flags: &Flags) -> Result<(), String> {
    let sockets = flags
        .listen
        .iter()
        .filter(|it| matches!(it, Listen::Unix(_)));
    let sockets = sockets.count();
    match sockets > 1 || flags.listen.len() - sockets > 1 {
        true => Err("--listen takes one address and one Unix socket".into()),
        false => Ok(()),
    }
}

fn check_exposure(flags: &Flags) -> Result<(), String> {
    if flags.insecure || flags.require_auth {
        return Ok(());
    }
    // A client certificate proves the client's identity, so an address that requires one is not open.
    let tls = flags.tls_listen.filter(|_| flags.tls_client_ca.is_empty());
    let open = flags.listens().into_iter().chain(tls);
    match open.into_iter().find(|address| !address.ip().is_loopback()) {
        None => Ok(()),
        Some(address) => Err(format!(
            "{address} can be reached from other machines, and no client would have to authenticate: set --require-auth \
             (names and passwords), or serve TLS there with --tls-client-ca (client certificates), or set \
             --insecure if that is what you want"
        )),
    }
}

const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2_181);

impl Flags {
    fn listens(&self) -> Option<SocketAddr> {
        let is_default = self.tls_listen.is_none() && self.listen.is_empty();
        let default = is_default.then_some(DEFAULT_ADDRESS);
        let addresses = self.listen.iter().filter_map(|it| match it {
            Listen::Tcp(address) => Some(*address),
            Listen::Unix(_) => None,
        });
        addresses.chain(default).next()
    }

    fn unix_socket(&self) -> Option<&Path> {
        self.listen.iter().find_map(|it| match it {
            Listen::Unix(path) => Some(path.as_path()),
            Listen::Tcp(_) => None,
        })
    }

    fn session_timeouts(&self) -> (Duration, Duration) {
        (
            self.min_session_timeout.unwrap_or(2 * self.tick),
            self.max_session_timeout.unwrap_or(20 * self.tick),
        )
    }
}

fn store(flags: &Flags, memory: &Memory) -> Result<StoreOptions, String> {
    let (shortest, longest) = flags.session_timeouts();
    if shortest > longest {
        return Err(format!(
            "--min-session-timeout is {}, which is more than --max-session-timeout, {}",
            shown(shortest),
            shown(longest)
        ));
    }
    if longest > StoreOptions::MAX_SESSION_TIMEOUT {
        return Err(format!(
            "--max-session-timeout is {}, and at most {} fits into the 32 bits of the protocol. Without the option it is 20 ticks",
            shown(longest),
            shown(StoreOptions::MAX_SESSION_TIMEOUT)
        ));
    }
    for (flag, limit) in [
        ("--max-sessions", flags.max_sessions),
        ("--max-watches-per-session", flags.max_watches_per_session),
        ("--max-znodes", flags.max_znodes),
    ] {
        if limit > StoreOptions::MAX {
            let most = StoreOptions::MAX;
            return Err(format!(
                "{flag} is out of range: a store numbers at most {most}"
            ));
        }
    }
    let options = StoreOptions::new()
        .tick(flags.tick)
        .session_timeouts(shortest, longest)
        .reaper_interval(flags.reaper_interval)
        .allow_ttl(flags.allow_ttl)
        .durability(flags.durability.into())
        // One more session for the server's own client, which follows the locks.
        .max_sessions(flags.max_sessions + usize::from(flags.follows_locks()))
        .max_watches_per_session(flags.max_watches_per_session)
        .max_znodes(flags.max_znodes)
        .max_bytes(memory.store)
        .segment_bytes(memory.first_segment() as u64, memory.segment as u64);
    match &flags.super_digest {
        None => Ok(options),
        Some(digest) => options
            .super_digest(&digest.0)
            .map_err(|error| error.to_string()),
    }
}

fn check_limits(flags: &Flags) -> Result<(), String> {
    if !ServerOptions::FRAME_BYTES.contains(&flags.max_frame) {
        return Err(
            "--max-frame is out of range: expected 1K to 2M, the largest request that a store can keep".into(),
        );
    }
    if flags.max_outgoing < 64 << 10 {
        return Err("--max-outgoing is too small: expected at least 64K".into());
    }
    if flags.max_unfinished < 32 << 20 {
        return Err("--max-unfinished is too small: expected at least 32M".into());
    }
    Ok(())
}

fn server(flags: &Flags, memory: &Memory, tls: Option<&TlsFiles>) -> Result<ServerOptions, String> {
    let mut options = ServerOptions::new()
        .require_auth(flags.require_auth)
        .insecure(flags.insecure)
        .busy_poll(busy_poll(flags))
        .max_connections(memory.connections)
        .max_half_open(flags.max_half_open)
        .handshake_timeout(flags.handshake_timeout)
        .max_frame_bytes(flags.max_frame)
        .max_in_flight(flags.max_in_flight)
        .max_outgoing_bytes(memory.client)
        .max_all_outgoing_bytes(memory.outgoing)
        .max_unfinished_bytes(memory.unfinished);
    if let Some(limit) = flags.max_connections_per_address {
        options = options.max_connections_per_address(limit);
    }
    options = match flags.listens() {
        Some(address) => options.listen(address),
        None if tls.is_some() => options.tls_only(),
        None => options.unix_only(),
    };
    if let Some(path) = flags.unix_socket() {
        options = options
            .unix_listen(path)
            .unix_mode(flags.unix_mode)
            .watch_processes(flags.watch_processes);
    }
    // Read the files before binding a port, so that a bad file is a configuration error (exit code 2).
    if let Some(files) = tls {
        let certificates = files.read().map_err(|error| error.to_string())?;
        options = options.tls(certificates).tls_listen(files.address);
    }
    let told = |error: lockkeeper_store::Error| error.to_string();
    options = options
        .four_letter_words(&flags.four_letter_words)
        .and_then(|options| options.four_letter_words_from(&flags.four_letter_words_from))
        .map_err(told)?;
    for digest in &flags.user {
        options = options.user(&digest.0).map_err(told)?;
    }
    Ok(options)
}

fn metrics_token(flags: &Flags) -> Result<Option<Token>, String> {
    match (&flags.metrics_token_file, flags.metrics_listen) {
        (None, _) => Ok(None),
        (Some(_), None) => Err("--metrics-token-file needs --metrics-listen".into()),
        (Some(file), Some(_)) => {
            let token = Token::read(file);
            token
                .map(Some)
                .map_err(|why| format!("--metrics-token-file: {why}"))
        }
    }
}

fn access(flags: &Flags) -> Result<AccessOptions, String> {
    let told = |error: lockkeeper_store::Error| error.to_string();
    let mut access = AccessOptions::new()
        .four_letter_words(&flags.four_letter_words)
        .and_then(|access| access.four_letter_words_from(&flags.four_letter_words_from))
        .map_err(told)?;
    for digest in &flags.user {
        access = access.user(&digest.0).map_err(told)?;
    }
    match &flags.super_digest {
        None => Ok(access),
        Some(digest) => access.super_digest(&digest.0).map_err(told),
    }
}

fn watched(flags: &Flags) -> Vec<PathBuf> {
    let files = [
        &flags.config,
        &flags.tls_cert,
        &flags.tls_key,
        &flags.metrics_token_file,
    ];
    let files = files.into_iter().flatten().chain(&flags.tls_client_ca);
    match flags.watch_files {
        true => files.cloned().collect(),
        false => Vec::new(),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) address: SocketAddr,
    certificate: PathBuf,
    key: PathBuf,
    client_authorities: Vec<PathBuf>,
    clients_by_uri: bool,
}

impl TlsFiles {
    fn of(flags: &Flags) -> Result<Option<Self>, String> {
        if flags.tls_client_uri && flags.tls_client_ca.is_empty() {
            return Err("--tls-client-uri needs --tls-client-ca".into());
        }
        let (Some(address), Some(certificate), Some(key)) =
            (flags.tls_listen, &flags.tls_cert, &flags.tls_key)
        else {
            let given = [
                ("--tls-listen", flags.tls_listen.is_some()),
                ("--tls-cert", flags.tls_cert.is_some()),
                ("--tls-key", flags.tls_key.is_some()),
            ];
            let any = given.iter().any(|(_, is_given)| *is_given);
            if !any && flags.tls_client_ca.is_empty() {
                return Ok(None);
            }
            let missing = given.iter().filter(|(_, is_given)| !is_given);
            let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
            return Err(format!(
                "for TLS, options are missing: {}",
                missing.join(" and ")
            ));
        };
        Ok(Some(Self {
            address,
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: flags.tls_client_ca.clone(),
            clients_by_uri: flags.tls_client_uri,
        }))
    }

    pub(crate) fn read(&self) -> Result<TlsOptions, TlsError> {
        let options = TlsOptions::from_pem_files(&self.certificate, &self.key)?;
        let options = options.clients_by_uri(self.clients_by_uri);
        let mut authorities = self.client_authorities.iter();
        authorities.try_fold(options, TlsOptions::client_ca)
    }
}

fn threads(flags: &Flags) -> usize {
    // Use half of the cores, because the log has its own thread and local clients also need some. Use at most four,
    // because all requests take the store's single lock.
    flags.threads.unwrap_or((cores() / 2).clamp(1, 4))
}

fn busy_poll(flags: &Flags) -> Duration {
    // On a single core, polling for a client's next request would keep the client from running.
    let default = match cores() {
        1 => Duration::ZERO,
        _ => Duration::from_micros(100),
    };
    flags.busy_poll.unwrap_or(default)
}

fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

fn warnings(flags: &Flags) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |text: &str| warnings.push(text.to_owned());
    if flags.require_auth && flags.user.is_empty() {
        warn(
            "--require-auth without --user: any name with any password is accepted, as by ZooKeeper; \
             only access control lists then protect one client's znodes from another",
        );
    }
    if !flags.require_auth && !flags.user.is_empty() {
        warn("--user without --require-auth: clients that do not authenticate are served, too");
    }
    let exposed = flags
        .listens()
        .filter(|address| !address.ip().is_loopback());
    if let Some(address) = exposed
        && (flags.require_auth || !flags.user.is_empty() || flags.super_digest.is_some())
    {
        warn(&format!(
            "--listen {address} receives passwords in plain text over a network, where they can be read; \
             serve TLS (--tls-listen) instead, unless the network is encrypted otherwise"
        ));
    }
    if flags.data == Data::Memory {
        warn(
            "--data memory: everything is lost when the server stops, and the next start immediately grants locks \
             that clients of this run may still believe they hold",
        );
    }
    warnings
}

pub(crate) fn describe(config: &Config, plan: &Plan) -> String {
    let (shortest, longest) = config.flags.session_timeouts();
    let mut text = String::new();
    if let Some(address) = config.flags.listens() {
        let _ = writeln!(text, "# on {address}, without TLS");
    }
    if let Some(path) = config.flags.unix_socket() {
        let (path, mode) = (path.display(), config.flags.unix_mode);
        let _ = writeln!(text, "# on unix:{path}, with mode {mode:03o}");
    }
    if let Some(files) = &plan.tls {
        let clients = match files.client_authorities.len() {
            0 => "",
            _ => ", for clients with a certificate",
        };
        let _ = writeln!(text, "# on {}, with TLS{clients}", files.address);
    }
    if let Some(address) = plan.metrics_address {
        let _ = writeln!(text, "# metrics and health on {address}");
    }
    if let Some(dashboard) = &plan.dashboard {
        let _ = writeln!(text, "# dashboard on {}", dashboard.address);
    }
    let _ = writeln!(
        text,
        "# sessions of {} to {}, {} threads",
        shown(shortest),
        shown(longest),
        plan.threads
    );
    if let Some(BackupPlan {
        every,
        folder,
        keep,
    }) = &plan.backups
    {
        let (every, folder) = (shown(*every), folder.display());
        let _ = writeln!(
            text,
            "# a backup each {every} in {folder}, of which {keep} are kept"
        );
    }
    let memory = &plan.memory;
    let _ = writeln!(
        text,
        "# memory of up to {} MiB, of that {} for znodes, watches and sessions, {} for unread replies ({} of \
         one client), {} for incomplete requests; {} connections",
        memory.total >> 20,
        memory.store >> 20,
        memory.outgoing >> 20,
        memory.client >> 20,
        memory.unfinished >> 20,
        memory.connections,
    );
    for warning in &plan.warnings {
        let _ = writeln!(text, "# warning: {warning}");
    }
    for setting in &config.settings {
        let _ = writeln!(text, "{:<44} # {}", line(setting), setting.source);
    }
    text
}

fn line(setting: &Setting) -> String {
    let Setting { name, values, .. } = setting;
    let hides = matches!(name.as_str(), "user" | "super-digest");
    let values = values.iter().map(|value| match value.split_once(':') {
        Some((user, _)) if hides => quoted(&format!("{user}:…")),
        _ if value == "true" || value == "false" => value.clone(),
        _ if !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) => value.clone(),
        _ => quoted(value),
    });
    let values: Vec<_> = values.collect();
    let is_list =
        matches!(name.as_str(), "user" | "tls-client-ca" | "dashboard-host") || values.len() > 1;
    match is_list {
        true => format!("{name} = [{}]", values.join(", ")),
        false => format!("{name} = {}", values.join("")),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
