//! The processes whose exit ends a session. A store on disk records them for its next start.

use tokio::task::JoinError;

use super::connection::{Connection, Follower};
use super::durable::Known;
use super::remote::Remote;
use super::{Engine, Store};
use crate::core::SessionRef;
use crate::model::error::Result;
use crate::runtime::process::LocalProcess;

impl Connection {
    /// Records the process whose exit ends the session, or that there is none. Await this before the client learns that
    /// it has the session. From then on, the previously recorded process may exit, and its exit must not end the
    /// session.
    ///
    /// # Errors
    /// [`StoreFailed`](crate::Error::StoreFailed). The disk then still names the previously recorded process.
    pub(crate) async fn end_with(&self, process: Option<LocalProcess>) -> Result<()> {
        let (engine, session) = (self.engine.clone(), self.session);
        if engine.process_of(session.slot) == process {
            return Ok(());
        }
        // Use a blocking thread, because even a short write may take long on a busy disk.
        let recording = tokio::task::spawn_blocking(move || record(&engine, session, process));
        match recording.await.map_err(JoinError::try_into_panic) {
            Ok(recorded) => recorded,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

impl Engine {
    fn process_of(&self, slot: u32) -> Option<LocalProcess> {
        let mut state = self.state.lock();
        let known = state.sessions.process(slot);
        known.as_ref().map(|known| known.1)
    }
}

fn record(engine: &Engine, session: SessionRef, process: Option<LocalProcess>) -> Result<()> {
    // Hold this lock during both the check and the write. Otherwise a former connection of the session could overwrite
    // the record of the newer connection.
    let mut file = engine.files.as_ref().map(|files| files.processes());
    if !engine.state.lock().core.is_current(session) {
        return Ok(());
    }
    if let Some(file) = &mut file {
        file.record(session.id, process, || all(engine))?;
    }
    // Set the process in memory only after the write. Otherwise the client's next attempt after a failed write would be
    // skipped, because the process would seem to be recorded already.
    let mut state = engine.state.lock();
    if state.core.is_current(session) {
        let process = process.map(|process| Box::new((session.id, process)));
        *state.sessions.process(session.slot) = process;
    }
    Ok(())
}

fn all(engine: &Engine) -> Known {
    engine.state.lock().sessions.processes().collect()
}

impl Store {
    pub(super) fn recall_processes(&self) {
        let Some(files) = &self.0.files else { return };
        let recorded = files.processes().read();
        let mut state = self.0.state.lock();
        for (session, process) in recorded {
            if let Some(slot) = state.core.slot_of(session) {
                *state.sessions.process(slot) = Some(Box::new((session, process)));
            }
        }
    }
}

impl Remote {
    /// Returns the sessions without a connection, each with the process whose exit ends it.
    pub(crate) fn unattended(&self) -> Vec<(Follower, LocalProcess)> {
        let mut state = self.engine.state.lock();
        let processes: Vec<_> = state.sessions.processes().collect();
        let mut unattended = Vec::new();
        for (id, process) in processes {
            if let Some(session) = state.core.session_ref(id)
                && state.sessions.outbox(session.slot).is_none()
            {
                let follower = Follower::new(&self.engine, session, &mut state);
                unattended.push((follower, process));
            }
        }
        unattended
    }
}
