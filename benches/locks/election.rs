//! The election as a lock: to campaign is to lock, to resign is to unlock. So `w1` is a cycle of
//! both, and `w3` the time from a resignation to the next leader, of `n` candidates.

use lockkeeper::{Election, Leadership};

use crate::systems::{Lock, Place};

/// A handle to an election.
#[derive(Clone)]
pub(crate) struct Candidate {
    election: Election,
    place: Place,
}

impl Candidate {
    pub(crate) fn new(election: Election, place: Place) -> Self {
        Self { election, place }
    }
}

impl Lock for Candidate {
    type Guard = Leadership;

    async fn lock(&self) -> Leadership {
        self.election.campaign("bench").await.expect("elected")
    }

    async fn unlock(leadership: Leadership) {
        leadership.resign().await.expect("resigned");
    }

    fn token(leadership: &Leadership) -> Option<i64> {
        Some(leadership.epoch().as_i64())
    }

    async fn settled(&self, queued: usize) {
        self.place.settled(self.election.path(), queued).await;
    }

    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
}
