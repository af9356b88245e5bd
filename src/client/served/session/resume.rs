//! Restoration of the state that the server does not keep across connections.

use super::outgoing::request_bytes;
use super::{ClientSession, Output, Proof};
use crate::client::served::watches::Rearming;
use crate::runtime::clock::BootInstant;
use crate::wire::{self, NonNullList, Path, put_frame, xid};

/// Largest total size of the paths in one setWatches, in bytes. ZooKeeper's own client uses the same limit.
pub(super) const REARMING_BYTES: usize = 128 << 10;

impl<T> ClientSession<T> {
    /// Sends proofs of identity, then watches, then queued requests. The proofs are first, because watches and requests
    /// need the rights of the identities. The watches precede requests, so that the server reports missed events before
    /// later replies.
    pub(super) fn resume(&mut self, is_first: bool, now: BootInstant) {
        for (scheme, secret) in self.options.auth.clone() {
            self.put_proof(&scheme, &secret);
            self.proofs.push_back(Proof::Repeated);
        }
        let rearming = self.watches.rearming();
        self.put_rearming(rearming);
        for key in self.watches.lose_predecessors() {
            self.outputs.push_back(Output::Unwatched(key));
        }
        if !is_first {
            for key in self.watches.persistent() {
                self.outputs.push_back(Output::Interrupted(key));
            }
        }
        for path in std::mem::take(&mut self.undone) {
            self.undo(path);
        }
        for (caller, request) in std::mem::take(&mut self.queued) {
            self.held_bytes -= request_bytes(&request);
            self.send(caller, request, now);
        }
        self.spoken = now;
    }

    fn put_rearming(&mut self, rearming: Rearming) {
        let limit = REARMING_BYTES.min(self.max_request_bytes);
        let mut frame = SetWatches::new(self.last_zxid);
        for (paths, kind) in [
            (&rearming.data, 0),
            (&rearming.existence, 1),
            (&rearming.children, 2),
            (&rearming.persistent, 3),
            (&rearming.recursive, 4),
        ] {
            for path in paths {
                let path = self.chroot.absolute(path);
                if frame.bytes > 0 && frame.bytes + wire::LENGTH_BYTES + path.0.len() > limit {
                    frame.put_and_clear(&mut self.out);
                }
                frame.add(kind, path);
            }
        }
        if frame.bytes > 0 {
            frame.put_and_clear(&mut self.out);
        }
    }
}

struct SetWatches {
    zxid: i64,
    lists: [Vec<Path<'static>>; 5],
    bytes: usize,
}

impl SetWatches {
    fn new(zxid: i64) -> Self {
        Self {
            zxid,
            lists: Default::default(),
            bytes: 0,
        }
    }

    fn add(&mut self, list: usize, path: Path<'_>) {
        self.bytes += wire::LENGTH_BYTES + path.0.len();
        self.lists[list].push(path.0.into_owned().into());
    }

    fn put_and_clear(&mut self, to: &mut Vec<u8>) {
        let [data, exist, child, persistent, recursive] =
            std::mem::take(&mut self.lists).map(NonNullList);
        let relative_zxid = self.zxid;
        // ZooKeeper before 3.6 has no persistent watches and knows only setWatches.
        let request = match persistent.0.is_empty() && recursive.0.is_empty() {
            true => wire::Request::SetWatches(wire::SetWatches {
                relative_zxid,
                data,
                exist,
                child,
            }),
            false => wire::Request::SetWatches2(wire::SetWatches2 {
                relative_zxid,
                data,
                exist,
                child,
                persistent,
                recursive,
            }),
        };
        put_frame(to, |to| request.put_with_header(xid::SET_WATCHES, to));
        self.bytes = 0;
    }
}
