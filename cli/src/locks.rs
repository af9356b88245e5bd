//! `lockkeeper locks`: lists all locks below a prefix and their holders.

pub(crate) mod json;
pub(crate) mod names;
pub(crate) mod table;
mod watch;

use std::fmt::Write;

use clap::Args;
use lockkeeper::{
    Client, Error, LockInfo, LockList, LockMetadata, LockPrefix, QueueEntry, ZnodePath, list_locks,
};

use crate::exit::Failure;
use crate::target::Target;

use names::{lock_name, lock_prefix};
use table::{MAX_LINE, MAX_TEXT, Table, duration, fitted};

/// The arguments of `locks`.
#[derive(Args, Debug)]
pub(crate) struct Locks {
    /// Selects locks. /a/path selects the locks at and below that path. Any other text selects the locks whose names
    /// start with it
    prefix: Option<String>,
    /// Prints one JSON object per lock
    #[arg(long)]
    json: bool,
    /// Follows changes. On a terminal, redraws the whole list. Otherwise prints the lines of each changed lock
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    target: Target,
}

impl Locks {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let prefix = lock_prefix(self.prefix.as_deref())?;
        let client = self.target.connect().await?;
        if self.watch {
            return watch::run(&client, prefix, self.json).await;
        }
        let list = listed(&client, &prefix).await?;
        let now_ms = client.clock().unix_ms();
        let text = if self.json {
            let lines = list.locks.iter().map(|lock| json::lock(lock, now_ms));
            lines.fold(String::new(), |mut text, line| {
                let _ = writeln!(text, "{line}");
                text
            })
        } else {
            shown(&list.locks, now_ms).to_string()
        };
        crate::output::print(&text)?;
        Ok(())
    }
}

async fn listed(client: &Client, prefix: &LockPrefix) -> Result<LockList, Failure> {
    let list = list_locks(client, prefix.clone()).await?;
    warn_of(&list.unreadable);
    Ok(list)
}

fn warn_of(unreadable: &[(ZnodePath, Error)]) {
    if let Some((path, why)) = unreadable.first() {
        crate::output::print_error(format_args!(
            "locks may be missing: {} znodes cannot be read, such as {}: {}",
            unreadable.len(),
            fitted(path.as_str(), MAX_LINE),
            fitted(&why.to_string(), MAX_LINE)
        ));
    }
}

pub(crate) const TITLES: [&str; 11] = [
    "LOCK", "KIND", "TOKEN", "HELD", "EXPECTED", "OVERDUE", "WAITERS", "SESSION", "HOST", "PID",
    "LABEL",
];

fn shown<'a>(locks: impl IntoIterator<Item = &'a LockInfo>, now_ms: i64) -> Table<11> {
    let mut table = Table::new(TITLES);
    for lock in locks {
        for holder in &lock.holders {
            table.push(row(lock, Some(holder), now_ms));
        }
        if lock.holders.is_empty() {
            table.push(row(lock, None, now_ms));
        }
    }
    table
}

pub(crate) fn row(lock: &LockInfo, holder: Option<&QueueEntry>, now_ms: i64) -> [String; 11] {
    let cells = holder.map(|holder| cells(holder, now_ms));
    let [token, held, expected, overdue, session, host, pid, label] = cells.unwrap_or_default();
    let (name, kind) = (lock_name(&lock.path), lock.kind.to_string());
    let waiters = lock.waiters.to_string();
    [
        name, kind, token, held, expected, overdue, waiters, session, host, pid, label,
    ]
}

pub(crate) fn cells(entry: &QueueEntry, now_ms: i64) -> [String; 8] {
    // Do not clone the metadata, because its backtrace may be long.
    let metadata = entry.metadata.as_ref();
    let text = |of: fn(&LockMetadata) -> &Option<String>| {
        let text = metadata.and_then(|it| of(it).clone());
        text.unwrap_or_default()
    };
    let expected = metadata.and_then(LockMetadata::expected_hold);
    let pid = metadata.and_then(|it| it.pid);
    [
        entry.fencing_token.to_string(),
        held(entry, now_ms),
        expected.map(duration).unwrap_or_default(),
        entry.overdue_by(now_ms).map(duration).unwrap_or_default(),
        entry.owner.to_string(),
        text(|it| &it.host),
        pid.map(|pid| pid.to_string()).unwrap_or_default(),
        label(entry).unwrap_or_default().to_owned(),
    ]
}

fn held(entry: &QueueEntry, now_ms: i64) -> String {
    let held = entry.held_for(now_ms).map(duration);
    held.unwrap_or_else(|| format!("queued {}", duration(entry.age(now_ms))))
}

pub(crate) fn described(entry: &QueueEntry) -> String {
    let metadata = entry.metadata.as_ref();
    let host = metadata.and_then(|it| it.host.as_deref());
    let pid = metadata.and_then(|it| it.pid);
    let parts = [
        Some(format!("token {}", entry.fencing_token)),
        label(entry).map(|label| fitted(label, MAX_TEXT)),
        host.map(|host| format!("host {}", fitted(host, MAX_TEXT))),
        pid.map(|pid| format!("pid {pid}")),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// Returns an entry's label, or else its data as a candidate in an election.
fn label(entry: &QueueEntry) -> Option<&str> {
    let metadata = entry.metadata.as_ref()?;
    metadata.label.as_deref().or_else(|| leader_data(metadata))
}

pub(crate) fn leader_data(metadata: &LockMetadata) -> Option<&str> {
    metadata.other.get(LEADER_DATA)?.as_str()
}

pub(crate) const LEADER_DATA: &str = "data";
