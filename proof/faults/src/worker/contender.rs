//! [`Contender`]: a task that repeatedly takes one or several locks.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, Error, LockError, SessionState};
use lockkeeper_store::CreateMode;
use testkit::Random;
use testkit::contender::{Stays, is_out_of_reach, wait};
use testkit::keys;
use testkit::recipe::{AcquireMode, Held};

use super::{Mistake, Reporter};
use crate::report::{Report, Share};
use crate::time::{nanos, now};

pub(super) struct Contender {
    pub(super) client: Client,
    pub(super) keys: &'static [&'static str],
    pub(super) random: Random,
    pub(super) reporter: Arc<Reporter>,
    /// Time for which it keeps a lock without a connection.
    pub(super) longest_hold: Duration,
    pub(super) mistake: Option<Mistake>,
}

/// A grant of several keys, with a number for each.
struct CriticalSection {
    grants: Vec<u64>,
    /// False for permits, which exclude no other holder.
    writes: bool,
}

#[derive(PartialEq)]
enum Ending {
    Kept,
    Lost,
}

impl Contender {
    /// Contends until asked to finish, and then until one more patient wait has been granted and released.
    pub(super) async fn compete(mut self) {
        loop {
            let is_last = self.reporter.is_finishing();
            self.rest(40).await;
            let way = match is_last {
                true => AcquireMode::Patient,
                false => AcquireMode::draw(&mut self.random),
            };
            match self.contend(way).await {
                Ok(Some(held)) => {
                    let mut random = self.random.fork();
                    let is_released = self.hold(held, &mut random).await.unwrap_or(false);
                    if is_last && is_released {
                        return;
                    }
                }
                Ok(None) | Err(LockError::Timeout { .. }) => self.no_grant("given up"),
                Err(error) if error.is_session_end() => self.no_grant("the session has ended"),
                Err(error) if is_out_of_reach(&error) => self.no_grant("no server"),
                Err(error) if is_refused(&error) => self.no_grant("refused, as on a full disk"),
                Err(error) => {
                    let text = format!("{error:?}");
                    self.reporter.report(&Report::Failed { text });
                }
            }
        }
    }

    fn no_grant(&self, reason: &str) {
        let reason = reason.to_owned();
        self.reporter.report(&Report::NoGrant { reason });
    }

    async fn rest(&mut self, longest_ms: u64) {
        tokio::time::sleep(self.random.below_ms(longest_ms)).await;
    }

    async fn contend(&mut self, way: AcquireMode) -> Result<Option<Held>, LockError> {
        let another = format!("{}-{}", self.keys[0], self.random.within(0..1000));
        let keys = match self.mistake {
            Some(Mistake::WrongLock) => &[another.as_str()],
            _ => self.keys,
        };
        wait(&self.client, keys, way, &mut self.random).await
    }
}

impl Stays for Contender {
    async fn stay(&mut self, held: Held, _: &mut Random) -> Option<Held> {
        let stay = self.enter(&held)?;
        self.make_a_mistake().await;
        let mut ending = Ending::Kept;
        // Sometimes hold so long that a fault happens.
        let longest_ms = match self.random.once_in(25) {
            true => self.longest_hold.as_millis() as u64 / 4,
            false => 15,
        };
        for _ in 0..self.random.within(1..5) {
            self.rest(longest_ms).await;
            ending = self.wait_for_connection(&stay, &held).await;
            if ending == Ending::Lost || !self.write(&stay, &held).await {
                break;
            }
        }
        if ending == Ending::Lost || !self.confirm(&stay, &held) {
            self.report_loss(&stay, &held);
            return None;
        }
        for grant in &stay.grants {
            self.reporter.report(&Report::Released { grant: *grant });
        }
        if self.mistake == Some(Mistake::HoldsAfterRelease) {
            drop(held);
            self.rest(100).await;
            self.believe(&stay, now());
            return None;
        }
        Some(held)
    }
}

impl Contender {
    /// Reports a grant, unless it is already lost.
    fn enter(&self, held: &Held) -> Option<CriticalSection> {
        // Take the time before asking the guard, which therefore also believed at that time.
        let at = now();
        if !held.is_held() {
            self.no_grant("lost at once");
            return None;
        }
        let share = match held {
            Held::Permit(permit) => Share::Permits(permit.count()),
            Held::Read(_) => Share::Shared,
            _ => Share::Exclusive,
        };
        let enter = |key: &&str| {
            let grant = self.reporter.number();
            self.reporter.report(&Report::Granted {
                grant,
                key: (*key).to_owned(),
                share,
                token: held.token(),
                at,
            });
            grant
        };
        Some(CriticalSection {
            grants: self.keys.iter().map(enter).collect(),
            writes: !matches!(held, Held::Permit(_)),
        })
    }

    /// Returns `true` and reports it if the guard believes that it holds.
    fn confirm(&self, stay: &CriticalSection, held: &Held) -> bool {
        let at = now();
        let is_held = held.is_held() || self.mistake == Some(Mistake::IgnoresLoss);
        if is_held {
            self.believe(stay, at);
        }
        is_held
    }

    fn believe(&self, stay: &CriticalSection, at: u64) {
        for grant in &stay.grants {
            self.reporter.report(&Report::Held { grant: *grant, at });
        }
    }

    /// Keeps the lock without a connection until the guard is lost, as services do. Another holder might appear at
    /// that point.
    async fn wait_for_connection(&mut self, stay: &CriticalSection, held: &Held) -> Ending {
        let began = now();
        while now() - began < nanos(self.longest_hold) {
            if !self.confirm(stay, held) {
                return Ending::Lost;
            }
            let state = self.client.current_session().state();
            if matches!(state, SessionState::Connected | SessionState::Reconnected) {
                return Ending::Kept;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ending::Kept
    }

    /// Writes to the resources. Returns `false` if one of them refuses.
    async fn write(&self, stay: &CriticalSection, held: &Held) -> bool {
        if !stay.writes {
            return true;
        }
        for grant in &stay.grants {
            if !self.reporter.write(*grant).await {
                let (grant, is_held) = (*grant, self.confirm(stay, held));
                self.reporter.report(&Report::Refused { grant, is_held });
                return false;
            }
        }
        true
    }

    fn report_loss(&self, stay: &CriticalSection, held: &Held) {
        let at = now();
        let reason = match held.lost_reason() {
            Some(reason) => reason.to_string(),
            None => "no reason".to_owned(),
        };
        // One report is enough, because several locks are lost together.
        if let Some(grant) = stay.grants.first() {
            let grant = *grant;
            self.reporter.report(&Report::Lost { grant, at, reason });
        }
    }

    /// Makes the mistakes of a run that must fail.
    async fn make_a_mistake(&mut self) {
        match self.mistake {
            Some(Mistake::NeverLetsGo) => std::future::pending().await,
            Some(Mistake::LeavesAnEntry) => {
                let entry = format!("{}/left-lock-", keys::path(self.keys[0]));
                let entry = entry.parse().expect("a path");
                if let Ok(session) = self.client.session().await {
                    let mode = CreateMode::EphemeralSequential;
                    let _ = session.create(&entry, "", mode).await;
                }
            }
            _ => {}
        }
    }
}

/// Returns `true` if the server has refused a request, as on a full disk. A client whose handshake was interrupted
/// uses ZooKeeper's own protocol until it reconnects, and receives an ambiguous code.
fn is_refused(error: &LockError) -> bool {
    match error {
        LockError::Store(Error::DiskFull { .. } | Error::LimitReached { .. }) => true,
        LockError::Store(Error::Protocol(text)) => text.contains("SystemError"),
        _ => false,
    }
}
