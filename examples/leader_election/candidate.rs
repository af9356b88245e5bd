//! A candidate: stands for election, works while it leads, and comes to its end.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Election, FencingToken, Leadership, LostReason};
use tokio::sync::mpsc;

use crate::observer::Observer;
use crate::schedule::Schedule;
use crate::tell;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// How a candidate in the director's own process comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It works for a while, and resigns.
    Resigns,
    /// Its client is closed while it leads: the session is dropped.
    Dropped,
    /// It is cut off while it leads: its session expires, and it writes once more, too late.
    CutOff,
}

/// One who stands, in the director's own process.
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) election: Election,
    pub(crate) schedule: Schedule,
    pub(crate) fate: Fate,
    /// Where it says that it has worked and awaits its fate.
    pub(crate) at_work: mpsc::UnboundedSender<FencingToken>,
    pub(crate) observer: Arc<Observer>,
}

/// How many entries a leader writes before it resigns or is killed.
const ENTRIES: usize = 5;

impl Candidate {
    /// Stands, leads, ends; answers its epoch.
    pub(crate) async fn live(self) -> Result<FencingToken, Failure> {
        let leadership = self.election.campaign(self.name.as_str()).await?;
        let epoch = leadership.epoch();
        tell(&self.name, &format!("leads, epoch {epoch}"));
        for _ in 0..ENTRIES {
            leadership
                .protect(work(&leadership, &self.schedule, &self.name))
                .await??;
        }
        self.observer.sees(epoch).await?;
        self.at_work.send(epoch)?;
        if self.fate == Fate::Resigns {
            leadership.resign().await?;
            tell(
                &self.name,
                &format!("has done its {ENTRIES} entries, and resigns"),
            );
            return Ok(epoch);
        }
        let reason = leadership.lost().await;
        tell(&self.name, &format!("has lost its leadership: {reason}"));
        let expected = match self.fate {
            Fate::Dropped => [LostReason::SessionClosed, LostReason::SessionClosed],
            // Its own clock says so before the store does.
            _ => [LostReason::LeaseExpired, LostReason::SessionExpired],
        };
        if !expected.contains(&reason) || leadership.is_held() {
            return Err(format!("{} lost with the reason {reason}", self.name).into());
        }
        if self.fate == Fate::CutOff {
            self.write_too_late(epoch).await?;
        }
        Ok(epoch)
    }

    /// A write that was on its way when the leader was cut off.
    async fn write_too_late(&self, epoch: FencingToken) -> Result<(), Failure> {
        self.schedule.until_newer(Some(epoch)).await?;
        match self.schedule.write(epoch, &self.name)? {
            Err(stale) => tell(
                &self.name,
                &format!("writes too late, and is refused: {stale}"),
            ),
            Ok(()) => return Err(format!("the late write of {} was accepted", self.name).into()),
        }
        Ok(())
    }
}

/// One entry's work.
async fn work(leadership: &Leadership, schedule: &Schedule, name: &str) -> Result<(), Failure> {
    let written = schedule.write(leadership.epoch(), name)?;
    if let Err(stale) = written {
        // Possible for one that has lost without knowing it yet; what counts is the refusal.
        tell(name, &format!("is refused: {stale}"));
    }
    leadership
        .session()
        .clock()
        .sleep(Duration::from_millis(20))
        .await;
    Ok(())
}

async fn work_until_it_fails(
    leadership: &Leadership,
    schedule: &Schedule,
    name: &str,
) -> Result<Infallible, Failure> {
    loop {
        work(leadership, schedule, name).await?;
    }
}

/// The life of a candidate that is a process of its own: leads whenever it can, until it is killed
/// or the one who started it hangs up.
pub(crate) async fn live_in_a_process(
    election: &Election,
    schedule: &Schedule,
    name: &str,
    hung_up: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let lead = |leadership: Arc<Leadership>| async move {
        tell(name, &format!("leads, epoch {}", leadership.epoch()));
        work_until_it_fails(&leadership, schedule, name).await
    };
    tokio::select! {
        outcome = election.run(name, lead) => match outcome? {
            Err(failure) => return Err(failure),
            Ok(never) => match never {},
        },
        // Dropped: it resigns, or leaves the line.
        () = hung_up => {}
    }
    // Confirmed: nothing of this candidate is left.
    election.client().close().await?;
    tell(name, "has resigned");
    Ok(())
}
