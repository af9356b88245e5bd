//! Locks and entries as JSON, one object per line.
//!
//! 64-bit numbers are strings, because many JSON readers store numbers as doubles. Times and durations are in
//! milliseconds.

use std::time::Duration;

use lockkeeper::{LockInfo, LockKind, QueueEntry, ZnodePath};
use serde_json::{Map, Value, json};

use super::leader_data;
use super::names::lock_name;

pub(crate) fn lock(of: &LockInfo, now_ms: i64) -> Value {
    let holders: Vec<_> = of.holders.iter().map(|it| entry(it, now_ms)).collect();
    let mut object = head(&of.path, of.kind);
    object.insert("waiters".into(), of.waiters.into());
    object.insert("holders".into(), holders.into());
    object.into()
}

pub(crate) fn head(path: &ZnodePath, kind: LockKind) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("lock".into(), lock_name(path).into());
    object.insert("path".into(), path.as_str().into());
    object.insert("kind".into(), kind.as_str().into());
    object
}

pub(crate) fn entry(of: &QueueEntry, now_ms: i64) -> Value {
    let metadata = of.metadata.clone().unwrap_or_default();
    json!({
        "entry": of.path.as_str(),
        "token": of.fencing_token.to_string(),
        "session": of.owner.to_string(),
        "host": metadata.host,
        "pid": metadata.pid,
        "label": metadata.label,
        "data": leader_data(&metadata),
        "reason": metadata.reason,
        "joined_ms": of.joined_at_ms,
        "granted_ms": of.granted_at_ms,
        "held_ms": of.held_for(now_ms).map(ms),
        "expected_ms": metadata.expected_hold_ms,
        "alert_ms": metadata.alert_at_ms,
        "auto_unlock_ms": metadata.auto_unlock_at_ms,
        "due_ms": of.due_at_ms(),
        "overdue_ms": of.overdue_by(now_ms).map(ms),
        "revocation": metadata.revocation,
    })
}

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
