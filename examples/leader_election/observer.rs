//! [`Observer`]: sees who leads, in a session that has nothing else to do.

use lockkeeper::{Election, FencingToken, Leader, LeaderChange, LockError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::candidate::Failure;
use crate::tell;

/// Prints each change, and remembers who led.
pub(crate) struct Observer {
    seen: watch::Receiver<Seen>,
    seeing: JoinHandle<Result<(), LockError>>,
}

/// What was seen so far.
#[derive(Default)]
struct Seen {
    /// Who leads now.
    leader: Option<Leader>,
    /// All who led.
    leaders: Vec<Leader>,
}

impl Observer {
    pub(crate) fn start(election: &Election) -> Self {
        let mut changes = election.observe();
        let (tell_seen, seen) = watch::channel(Seen::default());
        let seeing = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                let change = change?;
                tell("  observer:", &in_words(&change));
                tell_seen.send_modify(|seen| {
                    if let LeaderChange::Elected(leader) = &change {
                        seen.leaders.push(leader.clone());
                    }
                    seen.leader = change.into_leader();
                });
            }
            Ok(())
        });
        Self { seen, seeing }
    }

    /// Waits for a leader with a newer epoch than this.
    pub(crate) async fn next_leader(&self, after: Option<FencingToken>) -> Result<Leader, Failure> {
        let mut seen = self.seen.clone();
        let newer = |seen: &Seen| seen.leader.as_ref().map(|leader| leader.epoch) > after;
        let found = seen.wait_for(newer).await?.leader.clone();
        Ok(found.ok_or("a leader is newer than none")?)
    }

    /// Waits until this term is seen: of changes that come faster than that some would be left out.
    pub(crate) async fn sees(&self, epoch: FencingToken) -> Result<(), Failure> {
        let mut seen = self.seen.clone();
        let led = |seen: &Seen| seen.leaders.iter().any(|leader| leader.epoch == epoch);
        seen.wait_for(led).await?;
        Ok(())
    }

    /// Waits until nobody leads any more, and answers what was wrong about those who did.
    pub(crate) async fn finish(mut self, expected: &[String]) -> Result<Vec<String>, Failure> {
        if self
            .seen
            .wait_for(|seen| seen.leader.is_none())
            .await
            .is_err()
        {
            self.seeing.await??;
            return Err("the observer has stopped".into());
        }
        self.seeing.abort();
        let leaders = &self.seen.borrow().leaders;
        let mut wrongs = Vec::new();
        let names: Vec<_> = leaders.iter().map(name).collect();
        if names != expected {
            wrongs.push(format!("seen to lead were {names:?}, not {expected:?}"));
        }
        if !leaders.is_sorted_by(|a, b| a.epoch < b.epoch) {
            wrongs.push("the epochs did not grow".to_owned());
        }
        Ok(wrongs)
    }
}

fn in_words(change: &LeaderChange) -> String {
    match change {
        LeaderChange::Elected(leader) => format!("{} leads, epoch {}", name(leader), leader.epoch),
        LeaderChange::DataChanged(leader) => format!("the leader says: {}", name(leader)),
        _ => "nobody leads".to_owned(),
    }
}

/// What a leader campaigned with, or that it is a stranger.
pub(crate) fn name(leader: &Leader) -> String {
    leader
        .data
        .clone()
        .unwrap_or_else(|| format!("a stranger in {}", leader.path))
}
