//! [`LogThrottle`]: rate limits of log lines that clients can cause, so that no client can fill a disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::runtime::clock::BootInstant;

const INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct LogThrottle {
    pub(super) accept_failed: Throttle,
    pub(super) refused: Throttle,
    pub(super) handshake_refused: Throttle,
    #[cfg(feature = "tls")]
    pub(super) tls_handshake_refused: Throttle,
    pub(super) wrong_password: Throttle,
    pub(super) failed_proof: Throttle,
    pub(super) http: Throttle,
    pub(super) session_refused: Throttle,
    pub(super) frame_too_long: Throttle,
    pub(super) client_not_reading: Throttle,
    pub(super) reply_too_large: Throttle,
    pub(super) unfinished_request: Throttle,
}

#[derive(Debug, Default)]
pub(super) struct Throttle {
    next_ms: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    /// If this line may be logged, returns the number of lines suppressed since the last logged line. Otherwise returns
    /// `None`.
    pub(super) fn allow(&self, now: BootInstant) -> Option<u64> {
        let (now_ms, pause_ms) = (now.as_millis(), INTERVAL.as_millis() as u64);
        let due = |next_ms| (now_ms >= next_ms).then_some(now_ms + pause_ms);
        let order = Ordering::Relaxed;
        if self.next_ms.fetch_update(order, order, due).is_err() {
            self.suppressed.fetch_add(1, order);
            return None;
        }
        Some(self.suppressed.swap(0, order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_again_and_again_is_told_now_and_then_and_counted() {
        let throttle = Throttle::default();
        let at = |ms: u64| throttle.allow(BootInstant::from_nanos(ms * 1_000_000));
        assert_eq!(at(0), Some(0), "at once");
        let log_throttle: Vec<_> = (1..20_000).filter_map(at).collect();
        assert_eq!(log_throttle, [4_999; 3]);
        assert_eq!(at(100_000), Some(4_999));
        assert_eq!(at(200_000), Some(0), "there was none meanwhile");
    }
}
