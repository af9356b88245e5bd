//! `lockkeeper who`: shows one queue in full.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use lockkeeper::{LockKind, LockMetadata, LockQueue, QueueEntry, ZnodePath, lock_queue};
use serde_json::Value;

use crate::exit::Failure;
use crate::locks::json;
use crate::locks::names::{escaped, lock_name};
use crate::locks::table::{MAX_LINE, MAX_TEXT, NONE, Table, duration, fitted};
use crate::locks::{cells, leader_data};
use crate::target::{Target, lock_path};

const MAX_LINES: usize = 1_000;

/// The arguments of `who`.
#[derive(Args, Debug)]
pub(crate) struct Who {
    /// Name of the lock, or path of its znode
    name: String,
    /// Prints one JSON object per entry of the queue
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Who {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        let client = self.target.connect().await?;
        let queue = lock_queue(&client, &path).await?;
        let now_ms = client.clock().unix_ms();
        let text = match self.json {
            true => objects(&queue, now_ms),
            false => shown(&queue, now_ms),
        };
        crate::output::print(&text)?;
        Ok(())
    }
}

/// Returns holders and waiters with their positions. Holders have position 0.
fn positions(queue: &LockQueue) -> impl Iterator<Item = (usize, &QueueEntry)> {
    let waiters = queue.waiters.iter().enumerate();
    let holders = queue.holders.iter().map(|holder| (0, holder));
    holders.chain(waiters.map(|(index, waiter)| (index + 1, waiter)))
}

fn objects(queue: &LockQueue, now_ms: i64) -> String {
    let mut text = String::new();
    for (position, entry) in positions(queue) {
        let object = object(&queue.path, queue.kind, position, entry, now_ms);
        let _ = writeln!(text, "{object}");
    }
    text
}

pub(crate) fn object(
    lock: &ZnodePath,
    kind: LockKind,
    position: usize,
    entry: &QueueEntry,
    now_ms: i64,
) -> Value {
    let mut object = json::head(lock, kind);
    object.insert("position".into(), position.into());
    object.insert("holds".into(), (position == 0).into());
    if let Value::Object(fields) = json::entry(entry, now_ms) {
        object.extend(fields);
    }
    let metadata = entry.metadata.clone().unwrap_or_default();
    object.insert("backtrace".into(), metadata.backtrace.into());
    object.insert("other".into(), metadata.other.into());
    if position > 0 {
        // A waiter does not hold the lock, so it has no hold times and cannot be overdue.
        for field in ["granted_ms", "held_ms", "due_ms", "overdue_ms"] {
            object.insert(field.into(), Value::Null);
        }
    }
    object.into()
}

pub(crate) fn shown(queue: &LockQueue, now_ms: i64) -> String {
    let name = fitted(&lock_name(&queue.path), MAX_LINE);
    if queue.holders.is_empty() && queue.waiters.is_empty() {
        return format!("{name}: free, and nobody waits\n");
    }
    let (held, waiting) = (queue.holders.len(), queue.waiters.len());
    let mut text = format!(
        "{name}: {}, {held} holding, {waiting} waiting\n\n",
        queue.kind
    );
    let mut table = Table::new([
        "AHEAD", "TOKEN", "HELD", "EXPECTED", "OVERDUE", "SESSION", "HOST", "PID", "LABEL",
    ]);
    for (position, entry) in positions(queue) {
        let [
            token,
            held_for,
            expected,
            overdue,
            session,
            host,
            pid,
            label,
        ] = cells(entry, now_ms);
        let (place, overdue) = match position {
            0 => ("holds".into(), overdue),
            place => ((held + place - 1).to_string(), String::new()),
        };
        table.push([
            place, token, held_for, expected, overdue, session, host, pid, label,
        ]);
    }
    let _ = write!(text, "{table}");
    for (position, entry) in positions(queue) {
        text.push_str(&details(position, entry, now_ms));
    }
    text
}

fn details(position: usize, entry: &QueueEntry, now_ms: i64) -> String {
    let metadata = entry.metadata.clone().unwrap_or_default();
    let mut lines = Vec::new();
    if let Some(reason) = &metadata.reason {
        lines.push(format!("reason: {}", fitted(reason, MAX_LINE)));
    }
    // Without a label, the table already shows the data in the label's column.
    if let Some(data) = leader_data(&metadata).filter(|_| metadata.label.is_some()) {
        lines.push(format!("data: {}", fitted(data, MAX_LINE)));
    }
    for (what, after) in [
        ("worth an alarm after", metadata.alert_after()),
        ("may be unlocked after", metadata.auto_unlock_after()),
    ] {
        lines.extend(after.map(|after| format!("{what}: {}", duration(after))));
    }
    lines.extend(
        metadata
            .kept_alive
            .map(|count| format!("kept alive: {count} times")),
    );
    lines.extend(asked(&metadata, entry, now_ms));
    if let Some(backtrace) = &metadata.backtrace {
        lines.push("acquired at:".into());
        let trace = backtrace.lines().take(MAX_LINES);
        lines.extend(trace.map(|line| format!("  {}", fitted(line, MAX_LINE))));
    }
    if position > 0 && lines.is_empty() || lines.is_empty() && entry.metadata.is_some() {
        return String::new();
    }
    if entry.metadata.is_none() {
        let data = String::from_utf8_lossy(&entry.data);
        let data = data.chars().take(200).collect::<String>();
        let data = if data.is_empty() {
            NONE.into()
        } else {
            escaped(&data)
        };
        lines.push(format!("entry of another library; data: {data}"));
    }
    let name = fitted(entry.path.name(), MAX_LINE);
    let mut text = format!("\n{} {name}\n", entry.fencing_token);
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn asked(metadata: &LockMetadata, entry: &QueueEntry, now_ms: i64) -> Option<String> {
    if &entry.data[..] == b"__REVOKE__" {
        return Some("asked to release it, by a client of Curator's".into());
    }
    let request = metadata.revocation.as_ref()?;
    let ago = now_ms.saturating_sub(request.at_ms).max(0).unsigned_abs();
    let by = request.by.as_deref().map(|by| fitted(by, MAX_TEXT));
    let by = by.unwrap_or(NONE.into());
    let ago = duration(Duration::from_millis(ago));
    Some(format!(
        "asked to release it {ago} ago by {by}, request number {}",
        request.number
    ))
}
