//! [`LockMetadata`] in a contender's znode.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::revocation::RevocationRequest;

/// A contender's description of itself, stored as JSON in its znode.
///
/// The request that creates the znode also writes the metadata. Unknown fields are kept. For clients in other
/// languages: `v` is 1, times are milliseconds since the Unix epoch, and durations are milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockMetadata {
    /// Version of the format.
    pub v: u32,
    /// Label chosen by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Time of joining the queue, in milliseconds since the Unix epoch, by the contender's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at_ms: Option<i64>,
    /// Expected duration of the hold since the grant or the last `keep_alive`, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_hold_ms: Option<u64>,
    /// Duration from the grant or the last `keep_alive` until the hold should raise an alert, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert_at_ms: Option<u64>,
    /// Duration from the grant or the last `keep_alive` until a [`Warden`](crate::Warden) may remove the holder, in
    /// milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_unlock_at_ms: Option<u64>,
    /// Number of `keep_alive` calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_alive: Option<u64>,
    /// Purpose of the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Call stack of the call that requested the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<String>,
    /// The latest request to release the lock (see [`Revoker`](crate::Revoker)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation: Option<RevocationRequest>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl LockMetadata {
    /// Version that this code writes.
    pub const VERSION: u32 = 1;

    /// Parses the data of an entry's znode. Returns `None` for data of another library.
    pub fn parse(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// Returns [`expected_hold_ms`](Self::expected_hold_ms) as a duration.
    pub fn expected_hold(&self) -> Option<Duration> {
        self.expected_hold_ms.map(Duration::from_millis)
    }

    /// Returns [`alert_at_ms`](Self::alert_at_ms) as a duration.
    pub fn alert_after(&self) -> Option<Duration> {
        self.alert_at_ms.map(Duration::from_millis)
    }

    /// Returns [`auto_unlock_at_ms`](Self::auto_unlock_at_ms) as a duration.
    pub fn auto_unlock_after(&self) -> Option<Duration> {
        self.auto_unlock_at_ms.map(Duration::from_millis)
    }

    pub(crate) fn of_this_process() -> Self {
        let (host, pid) = process();
        Self {
            v: Self::VERSION,
            host: Some(host.to_owned()),
            pid: Some(pid),
            ..Self::default()
        }
    }

    /// Returns the first field in `other` that could not be read back, because its name is one of ours or its value is
    /// nested too deeply.
    pub(crate) fn invalid_field(&self) -> Option<&str> {
        let is_valid = |name: &String, value: &Value| {
            let alone = Self {
                other: Map::from_iter([(name.clone(), value.clone())]),
                ..Self::default()
            };
            Self::parse(&alone.to_bytes()) == Some(alone)
        };
        let mut fields = self.other.iter();
        let invalid = fields.find(|(name, value)| !is_valid(name, value))?;
        Some(invalid.0)
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("metadata is plain JSON")
            .into()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum EntryData {
    Default {
        /// In milliseconds since the Unix epoch.
        queued_at_ms: i64,
    },
    Written(Bytes),
}

impl EntryData {
    pub(crate) fn to_bytes(&self) -> Bytes {
        match self {
            Self::Default { queued_at_ms } => default_bytes(*queued_at_ms),
            Self::Written(data) => data.clone(),
        }
    }
}

fn default_bytes(queued_at_ms: i64) -> Bytes {
    thread_local! {
        static LAST: RefCell<(i64, Bytes)> = const { RefCell::new((i64::MIN, Bytes::new())) };
    }
    LAST.with_borrow_mut(|(at, bytes)| {
        if *at != queued_at_ms {
            *bytes = render_default(queued_at_ms);
            *at = queued_at_ms;
        }
        bytes.clone()
    })
}

fn render_default(queued_at_ms: i64) -> Bytes {
    static RENDERED: OnceLock<Vec<u8>> = OnceLock::new();
    let rendered = RENDERED.get_or_init(|| {
        let mut json = LockMetadata::of_this_process().to_bytes().to_vec();
        json.pop();
        json.extend_from_slice(b",\"queued_at_ms\":");
        json
    });
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut left = queued_at_ms.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let digits = &digits[at..];
    let mut json = Vec::with_capacity(rendered.len() + digits.len() + 1);
    json.extend_from_slice(rendered);
    json.extend_from_slice(digits);
    json.push(b'}');
    json.into()
}

fn process() -> (&'static str, u32) {
    #[cfg(feature = "simulation")]
    if IS_SIMULATED.load(std::sync::atomic::Ordering::Relaxed) {
        return ("simulated", 1);
    }
    static HOST: OnceLock<String> = OnceLock::new();
    (HOST.get_or_init(host_name), std::process::id())
}

#[cfg(feature = "simulation")]
static IS_SIMULATED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes all processes write the same host and pid, so that a simulated run can be repeated exactly.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub fn simulate_process() {
    IS_SIMULATED.store(true, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(unix)]
fn host_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// Windows provides the host name in this variable.
#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rendered_default_is_what_the_long_way_gives() {
        let quick = LockMetadata::parse(&default_bytes(1_700_000_000_123)).unwrap();
        let long = LockMetadata {
            queued_at_ms: Some(1_700_000_000_123),
            ..LockMetadata::of_this_process()
        };
        assert_eq!(quick, long);
    }

    #[test]
    fn unknown_fields_are_kept() {
        let written = br#"{"v":1,"label":"x","team":"blue"}"#;
        let metadata = LockMetadata::parse(written).unwrap();
        assert_eq!(metadata.other["team"], "blue");
        assert_eq!(LockMetadata::parse(&metadata.to_bytes()), Some(metadata));
    }

    #[test]
    fn foreign_data_is_no_metadata() {
        assert_eq!(LockMetadata::parse(b"127.0.0.1"), None);
        assert_eq!(LockMetadata::parse(b""), None);
    }
}
