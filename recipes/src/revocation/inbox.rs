//! [`RevocationInbox`]: delivers each revocation request to its holder once.
//!
//! Several watchers of one guard read the same znode, and their replies arrive in any order. They share the inbox,
//! which orders the reads by zxid.

use std::sync::Arc;

use lockkeeper_store::{Stat, Zxid};
use parking_lot::Mutex;

use super::request::{RevocationRequest, request_in};
use crate::events::LockEvent;
use crate::reporter::Reporter;

#[derive(Default)]
pub(crate) struct RevocationInbox(Mutex<InboxState>);

#[derive(Default)]
struct InboxState {
    /// Zxid of the newest write that was read.
    seen: Zxid,
    last: Option<RevocationRequest>,
    is_unread: bool,
}

impl RevocationInbox {
    /// Reads the data of the holder's znode. Returns the request in it if the request is new.
    fn hear(&self, data: &[u8], stat: &Stat) -> Option<RevocationRequest> {
        let mut inbox = self.0.lock();
        if stat.mzxid <= inbox.seen {
            return None;
        }
        // Update `seen` under the same lock as the comparison, so that only one of two watchers reports a write.
        inbox.seen = stat.mzxid;
        let request = request_in(data, stat, inbox.last.as_ref())?;
        // The write changed other data, for example by a `keep_alive`.
        if inbox.last.as_ref() == Some(&request) {
            return None;
        }
        inbox.last = Some(request.clone());
        inbox.is_unread = true;
        Some(request)
    }

    fn take(&self) -> Option<RevocationRequest> {
        let mut inbox = self.0.lock();
        std::mem::take(&mut inbox.is_unread)
            .then(|| inbox.last.clone())
            .flatten()
    }

    pub(crate) fn last(&self) -> Option<RevocationRequest> {
        self.0.lock().last.clone()
    }
}

#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) hearing: Arc<RevocationInbox>,
    pub(crate) reporter: Reporter,
}

impl Listener {
    pub(crate) fn take(&self) -> Option<RevocationRequest> {
        self.hearing.take()
    }

    pub(crate) fn hear(&self, data: &[u8], stat: &Stat) {
        let Some(request) = self.hearing.hear(data, stat) else {
            return;
        };
        self.reporter
            .report(LockEvent::RevocationRequested { by: request.by });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revocation::request::{CURATORS_REQUEST, with_request};

    fn at(mzxid: i64) -> Stat {
        Stat {
            mzxid: Zxid(mzxid),
            ..Stat::default()
        }
    }

    #[test]
    fn each_request_is_heard_once_and_answered_once() {
        let hearing = RevocationInbox::default();
        let first = with_request(br#"{"v":1}"#, Some("jane"), 7);
        assert_eq!(hearing.hear(br#"{"v":1}"#, &at(1)), None);
        assert!(hearing.hear(&first, &at(2)).is_some());
        assert_eq!(hearing.hear(&first, &at(2)), None, "another watcher");
        assert_eq!(hearing.hear(&first, &at(3)), None, "a write beside it");
        assert!(hearing.take().is_some() && hearing.take().is_none());
        let second = with_request(&first, Some("jane"), 7);
        assert!(hearing.hear(&second, &at(5)).is_some(), "asked again");
        assert_eq!(hearing.hear(&first, &at(4)), None, "a late answer");
    }

    #[test]
    fn curators_request_counts_each_time_that_it_is_written() {
        let hearing = RevocationInbox::default();
        assert_eq!(hearing.hear(CURATORS_REQUEST, &at(2)).unwrap().number, 1);
        assert_eq!(hearing.hear(CURATORS_REQUEST, &at(2)), None);
        assert_eq!(hearing.hear(CURATORS_REQUEST, &at(3)).unwrap().number, 2);
    }
}
