//! An audit record as one line of JSON. Session ids and zxids are strings, as in `lockkeeper locks --json`.

use std::time::{SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_millis;
use lockkeeper_store::AuditRecord;
use serde::Serialize;

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    identities: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    acl: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    word: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zxid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

/// Returns the record as a line. Escapes line breaks and quotes in the record's texts, so that no client can forge a
/// line.
pub(super) fn line(record: &AuditRecord) -> String {
    let line = Line {
        time: rfc3339(record.time),
        event: record.event.as_str(),
        outcome: record.outcome.as_str(),
        session: record.session.map(|it| it.to_string()),
        identities: &record.identities,
        peer: record.peer.as_deref(),
        user: record.user.as_deref(),
        path: record.path.as_ref().map(|it| it.as_str()),
        owner: record.owner.map(|it| it.to_string()),
        acl: &record.acl,
        word: record.word,
        zxid: record.zxid.map(|it| it.to_string()),
        count: Some(record.count).filter(|count| *count != 1),
        detail: record.detail.as_deref(),
    };
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    text
}

fn rfc3339(time: SystemTime) -> String {
    format_rfc3339_millis(time.max(UNIX_EPOCH)).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_store::{AuditEvent, AuditOutcome};
    use serde_json::Value;

    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_795_228_248_000, "2026-11-21T02:30:48.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn no_text_of_a_client_makes_a_line_of_its_own() {
        let mut record = AuditRecord::new(AuditEvent::Delete, AuditOutcome::Failure);
        let hostile = "a\n{\"event\":\"server_stop\"}\r\n\"\u{2028}\u{0}";
        record.user = Some(hostile.into());
        let line = line(&record);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.ends_with("}\n"));
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["user"], hostile);
        assert_eq!(read["outcome"], "failure");
    }
}
