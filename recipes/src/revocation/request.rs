//! [`RevocationRequest`]: a request to release a lock.

use bytes::Bytes;
use lockkeeper_store::Stat;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::metadata::LockMetadata;

/// A request to release a lock, stored in the holder's metadata as `revocation`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RevocationRequest {
    /// Name of the revoker, if it has one. Curator's `Revoker` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Time of the request, in milliseconds since the Unix epoch, by the revoker's clock. For Curator's request, this
    /// is the server's time.
    #[serde(default)]
    pub at_ms: i64,
    /// Number of requests to this entry so far, which makes equal requests distinguishable. The number wraps around.
    #[serde(default)]
    pub number: u64,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Data that Curator's `Revoker` writes over a holder's data.
pub(crate) const CURATORS_REQUEST: &[u8] = b"__REVOKE__";

/// Adds a request to an entry's data. Returns Curator's request if the data is not our JSON.
pub(crate) fn with_request(data: &[u8], by: Option<&str>, at_ms: i64) -> Bytes {
    let Some(mut metadata) = LockMetadata::parse(data) else {
        return Bytes::from_static(CURATORS_REQUEST);
    };
    let before = metadata.revocation.map_or(0, |request| request.number);
    metadata.revocation = Some(RevocationRequest {
        by: by.map(str::to_owned),
        at_ms,
        // Wrap around. If the number stayed at its maximum, all further requests would look equal.
        number: before.wrapping_add(1),
        other: Map::new(),
    });
    metadata.to_bytes()
}

/// Returns the request in an entry's data. Curator's request has no number, so it gets the number that follows `last`,
/// and each write of it counts as a new request.
pub(crate) fn request_in(
    data: &[u8],
    stat: &Stat,
    last: Option<&RevocationRequest>,
) -> Option<RevocationRequest> {
    if data == CURATORS_REQUEST {
        return Some(RevocationRequest {
            at_ms: stat.mtime,
            number: last.map_or(0, |last| last.number).wrapping_add(1),
            ..RevocationRequest::default()
        });
    }
    LockMetadata::parse(data)?.revocation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_all_that_the_entry_says_of_itself() {
        let before = br#"{"v":1,"label":"x","team":"blue","kept_alive":3}"#;
        let once = with_request(before, Some("jane"), 7);
        let twice = with_request(&once, None, 8);
        let metadata = LockMetadata::parse(&twice).unwrap();
        let request = metadata.revocation.clone().unwrap();
        assert_eq!(
            (request.by, request.at_ms, request.number),
            (None, 8, 2),
            "the newest counts"
        );
        let kept = LockMetadata {
            revocation: None,
            ..metadata
        };
        assert_eq!(LockMetadata::parse(before), Some(kept));
    }

    #[test]
    fn no_number_that_stands_there_keeps_the_next_from_being_heard() {
        let greatest = format!(r#"{{"v":1,"revocation":{{"number":{}}}}}"#, u64::MAX);
        let before = LockMetadata::parse(greatest.as_bytes()).unwrap().revocation;
        let after = with_request(greatest.as_bytes(), None, 0);
        let after = LockMetadata::parse(&after).unwrap().revocation;
        assert!(after.is_some() && after != before);
        let curators = request_in(CURATORS_REQUEST, &Stat::default(), before.as_ref());
        assert!(curators.is_some() && curators != before);
    }

    #[test]
    fn who_writes_no_json_is_asked_in_curators_words() {
        for foreign in [&b"10.0.0.1"[..], b"", b"__REVOKE__", b"{}"] {
            assert_eq!(with_request(foreign, Some("jane"), 7), CURATORS_REQUEST);
        }
    }
}
