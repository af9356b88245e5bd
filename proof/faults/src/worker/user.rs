//! [`User`]: a task that reads and writes registers whose history is checked.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;
use testkit::Random;
use testkit::ask;
use testkit::keys::{REGISTER_LIFE, REGISTERS, register};
use testkit::linearizable::{Answer, Call};

use super::{Mistake, Reporter};
use crate::report::Report;
use crate::time::now;

pub(super) struct User {
    pub(super) client: Client,
    pub(super) random: Random,
    pub(super) reporter: Arc<Reporter>,
    pub(super) number: u64,
    pub(super) began: u64,
    pub(super) is_ensemble: bool,
    pub(super) mistake: Option<Mistake>,
}

impl User {
    /// Uses registers until asked to finish, and then until one more call is answered.
    pub(super) async fn use_registers(mut self) {
        loop {
            let is_last = self.reporter.is_finishing();
            tokio::time::sleep(self.random.below_ms(80)).await;
            // Nothing is sent without a session.
            let Ok(session) = self.client.session().await else {
                continue;
            };
            let life = (now() - self.began) / REGISTER_LIFE;
            let key = format!("register-{life}-{}", self.random.within(0..REGISTERS));
            let is_answered = self.call(&session, &key).await;
            if is_last && is_answered {
                return;
            }
        }
    }

    /// Makes and reports one call. Returns `false` if its outcome is unknown.
    async fn call(&mut self, session: &Session, key: &str) -> bool {
        let (call, what) = (self.reporter.number(), self.draw());
        self.reporter.report(&Report::Called {
            call,
            key: key.to_owned(),
            at: now(),
            what,
        });
        let answer = match (what, self.mistake) {
            (Call::Create { .. }, Some(Mistake::InventsAWrite)) => Some(Answer::Done),
            _ => answer(session, &register(key), what, self.is_ensemble).await,
        };
        let Some(answer) = answer else {
            // Give the connection a moment.
            tokio::time::sleep(Duration::from_millis(50)).await;
            return false;
        };
        let at = now();
        self.reporter.report(&Report::Answered { call, at, answer });
        true
    }

    fn draw(&mut self) -> Call {
        let value = (self.number << 32) + self.reporter.number();
        let version = (!self.random.once_in(2)).then(|| self.random.within(0..4) as i32);
        match self.random.within(0..8) {
            0 | 1 => Call::Create { value },
            2 | 3 => Call::Set { value, version },
            4 => Call::Delete { version },
            _ => Call::Get,
        }
    }
}

/// Sends a call. Returns `None` if its outcome is unknown.
///
/// A follower of an ensemble may answer reads with stale data. A write that is committed first on the same connection
/// makes the read current. A `sync` would not, because a deposed leader answers it as well.
pub(crate) async fn answer(
    session: &Session,
    path: &ZnodePath,
    call: Call,
    is_ensemble: bool,
) -> Option<Answer> {
    if is_ensemble && call == Call::Get {
        barrier(session).await.ok()?;
    }
    ask(session, path, call, false).await
}

async fn barrier(session: &Session) -> Result<(), Error> {
    let path = "/barrier".parse().expect("a path");
    match session.set_data(&path, "", None).await {
        Ok(_) => Ok(()),
        Err(Error::NoNode { .. }) => {
            let created = session.create(&path, "", CreateMode::Persistent).await;
            match created {
                Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}
