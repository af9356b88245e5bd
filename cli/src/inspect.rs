//! An inspection of a data directory as JSON. 64-bit numbers are written as strings, because many JSON readers store
//! numbers as doubles.

use lockkeeper_store::disk::{
    Inspection, Problem, SegmentInfo, SessionInfo, SnapshotInfo, Subtree,
};
use serde_json::{Value, json};

pub(crate) fn json(seen: &Inspection) -> Value {
    json!({
        "directory": seen.dir.display().to_string(),
        "store": seen.store_id,
        "copied": seen.is_copied,
        "in_use": seen.in_use,
        "pid": seen.pid,
        "zxid": seen.zxid.to_string(),
        "epoch": seen.epoch,
        "closed_in_order": seen.was_clean,
        "longest_timeout_ms": seen.longest_timeout.as_millis() as u64,
        "bytes": seen.bytes,
        "snapshots": all(&seen.snapshots, snapshot),
        "segments": all(&seen.segments, segment),
        "spare_segments": seen.spare_segments,
        "unknown_files": seen.unknown_files,
        "znodes": seen.znodes,
        "data_bytes": seen.data_bytes,
        "largest_subtrees": all(&seen.subtrees, subtree),
        "sessions": all(&seen.sessions, session),
        "problems": all(&seen.problems, problem),
    })
}

fn all<T>(of: &[T], each: impl Fn(&T) -> Value) -> Vec<Value> {
    of.iter().map(each).collect()
}

fn snapshot(of: &SnapshotInfo) -> Value {
    json!({
        "name": of.name,
        "zxid": of.zxid.to_string(),
        "age_seconds": of.age.map(|age| age.as_secs()),
        "first_segment": of.first_segment,
        "bytes": of.bytes,
        "whole": of.is_whole,
    })
}

fn segment(of: &SegmentInfo) -> Value {
    json!({
        "number": of.number,
        "state": of.state.to_string(),
        "bytes": of.bytes,
        "used_bytes": of.used_bytes,
        "frames": of.frames,
        "first_zxid": of.zxids.map(|(first, _)| first.to_string()),
        "last_zxid": of.zxids.map(|(_, last)| last.to_string()),
    })
}

fn subtree(of: &Subtree) -> Value {
    json!({
        "path": of.path.as_str(),
        "znodes": of.znodes,
        "bytes": of.bytes,
    })
}

fn session(of: &SessionInfo) -> Value {
    json!({
        "id": of.id.to_string(),
        "timeout_ms": of.timeout.map(|timeout| timeout.as_millis() as u64),
        "of_the_process": of.is_local,
        "ephemerals": of.ephemerals,
    })
}

pub(crate) fn problem(of: &Problem) -> Value {
    json!({
        "file": of.file.display().to_string(),
        "offset": of.offset,
        "reason": of.reason,
    })
}
