//! Candidates campaign, work while they lead, and lose the leadership in each way. The next one takes over.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    ConnectOptions, Election, FencingToken, Leader, LeaderChange, Leadership, LostReason, observe,
};
use testkit::{Mortal, TempFolder, on_every_backend};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::schedule::Schedule;

pub(super) const ELECTION: &str = "/election/scenario";

/// How long the store waits for a silent candidate.
pub(super) const TIMEOUT: Duration = Duration::from_secs(4);

/// Entries that a leader writes before it resigns or is killed.
const ENTRIES: usize = 5;

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Resigns,
    /// The client is closed.
    Dropped,
    /// The client is cut off. Its session expires, and it writes once more, too late.
    CutOff,
}

const FATES: [Fate; 4] = [Fate::Dropped, Fate::CutOff, Fate::Resigns, Fate::Resigns];

pub(super) struct Observer {
    seen: watch::Receiver<Seen>,
    seeing: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    now: Option<Leader>,
    all: Vec<Leader>,
}

impl Observer {
    pub(super) fn start(election: &Election) -> Self {
        let mut changes = election.observe();
        let (tell, seen) = watch::channel(Seen::default());
        let seeing = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                let change = change.unwrap();
                tell.send_modify(|seen| {
                    if let LeaderChange::Elected(leader) = &change {
                        seen.all.push(leader.clone());
                    }
                    seen.now = change.into_leader();
                });
            }
        });
        Self { seen, seeing }
    }

    pub(super) async fn next_leader(&self, after: Option<FencingToken>) -> Leader {
        let mut seen = self.seen.clone();
        let newer = |seen: &Seen| seen.now.as_ref().map(|leader| leader.epoch) > after;
        let found = seen.wait_for(newer).await.unwrap().now.clone();
        found.unwrap()
    }

    /// Waits until this term is seen, because faster changes would be skipped.
    async fn sees(&self, epoch: FencingToken) {
        let mut seen = self.seen.clone();
        let led = |seen: &Seen| seen.all.iter().any(|leader| leader.epoch == epoch);
        seen.wait_for(led).await.unwrap();
    }

    /// Waits until the election has no leader. Returns the names of the past ones in order.
    pub(super) async fn finish(mut self) -> Vec<String> {
        let vacant = |seen: &Seen| seen.now.is_none();
        let seen = self.seen.wait_for(vacant).await.expect("it observes");
        self.seeing.abort();
        assert!(seen.all.is_sorted_by(|a, b| a.epoch < b.epoch));
        seen.all.iter().map(name).collect()
    }
}

pub(super) fn name(leader: &Leader) -> String {
    leader.data.clone().expect("each candidate has a name")
}

pub(super) async fn until_they_stand(election: &Election, count: usize) {
    let mut line = observe(election.client(), election.path().clone()).unwrap();
    while line.next().await.unwrap().unwrap().len() < count {}
}

/// Writes one entry. A refusal is fine, because a leader that has lost may not know it yet.
pub(super) async fn work(leadership: &Leadership, schedule: &Schedule, name: &str) {
    let _ = schedule.write(leadership.epoch(), name);
    let clock = leadership.session().clock();
    clock.sleep(Duration::from_millis(20)).await;
}

struct Candidate {
    name: String,
    election: Election,
    schedule: Schedule,
    fate: Fate,
    /// Signals that the leader has worked and awaits its fate.
    at_work: mpsc::UnboundedSender<()>,
    observer: Arc<Observer>,
}

impl Candidate {
    async fn live(self) {
        let leadership = self.election.campaign(self.name.as_str()).await.unwrap();
        let epoch = leadership.epoch();
        for _ in 0..ENTRIES {
            let work = work(&leadership, &self.schedule, &self.name);
            leadership.protect(work).await.unwrap();
        }
        self.observer.sees(epoch).await;
        self.at_work.send(()).unwrap();
        if self.fate == Fate::Resigns {
            return leadership.resign().await.unwrap();
        }
        let reason = leadership.lost().await;
        match self.fate {
            Fate::Dropped => assert_eq!(reason, LostReason::SessionClosed),
            // Its own clock says so before the store does.
            _ => assert!(
                matches!(
                    reason,
                    LostReason::LeaseExpired | LostReason::SessionExpired
                ),
                "{reason}"
            ),
        }
        assert!(!leadership.is_held());
        if self.fate == Fate::CutOff {
            self.schedule.until_newer(Some(epoch)).await;
            let late = self.schedule.write(epoch, &self.name);
            assert!(late.is_err(), "a late write was accepted");
        }
    }
}

on_every_backend! {
    async fn leaders_follow_each_other_after_every_kind_of_end(env: Env) {
        let folder = TempFolder::new("candidates");
        let schedule = Schedule::at(&folder.path().join("schedule.json"));
        let first = env.client().await;
        let election = Election::new(&first, ELECTION).unwrap();
        let observer = Arc::new(Observer::start(&election));
        let (at_work, mut working) = mpsc::unbounded_channel();
        let (mut lives, mut clients, mut names) = (JoinSet::new(), Vec::new(), Vec::new());
        for (number, fate) in FATES.into_iter().enumerate() {
            let options = ConnectOptions::new().session_timeout(TIMEOUT);
            let client = Mortal::open(&first, options).await.unwrap();
            let candidate = Candidate {
                name: format!("candidate {number}"),
                election: Election::new(client.client(), ELECTION).unwrap(),
                schedule: schedule.clone(),
                fate,
                at_work: at_work.clone(),
                observer: observer.clone(),
            };
            names.push(candidate.name.clone());
            clients.push(client);
            lives.spawn(candidate.live());
            // The first leads immediately, but meets its fate only when all are in line.
            until_they_stand(&election, number + 1).await;
        }
        for (client, fate) in clients.iter().zip(FATES) {
            working.recv().await.unwrap();
            match fate {
                Fate::Resigns => {}
                Fate::Dropped => client.client().close().await.unwrap(),
                Fate::CutOff => client.cut(),
            }
        }
        while let Some(ended) = lives.join_next().await {
            ended.unwrap();
        }
        let observer = Arc::into_inner(observer).expect("all candidates have ended");
        assert_eq!(observer.finish().await, names);
        assert_eq!(schedule.check(), names);
    }
}
