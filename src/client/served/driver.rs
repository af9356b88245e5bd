//! Tasks of a session. A supervisor connects and handles timeouts, on a thread of this module. Each connection has a
//! reader on the user's runtime, so that a reply need not wake another thread.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::runtime::{Builder, Handle};

use super::link::{Failure, Link};
use super::session::Dial;
use super::socket::{RegisteredSocket, Socket, registered};
use crate::client::protocol_probe::{self, WrongProtocol};
use crate::model::error::{Error, Result};
use crate::runtime::future::select;

/// Runs a session until it is over. Readers run on `user` as long as that runtime lives.
///
/// # Errors
/// [`Error::ThreadRefused`] if the system refuses this module's thread or its resources.
pub(super) fn start(link: Arc<Link>, user: Option<Handle>) -> Result<()> {
    let runtimes = Runtimes {
        own: own(&link, user.as_ref())?,
        user,
    };
    let own = runtimes.own.clone();
    own.spawn(supervise(link, runtimes));
    Ok(())
}

#[derive(Clone)]
struct Runtimes {
    own: Handle,
    user: Option<Handle>,
}

fn own(link: &Link, user: Option<&Handle>) -> Result<Handle> {
    match user {
        Some(user) if link.endpoint.dialer.is_simulated() => Ok(user.clone()),
        _ => started().cloned(),
    }
}

const THREAD: &str = "lockkeeper-client";

static OWN: OnceLock<Handle> = OnceLock::new();

fn started() -> Result<&'static Handle> {
    // Store only a successful start. If the system refuses a thread now, the next session tries again.
    static STARTING: Mutex<()> = Mutex::new(());
    let _turn = STARTING.lock();
    if OWN.get().is_none() {
        let handle = run_thread().map_err(|error| Error::ThreadRefused {
            thread: THREAD,
            reason: error.to_string(),
        })?;
        let _ = OWN.set(handle);
    }
    Ok(OWN.get().expect("it was set just now"))
}

fn run_thread() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(THREAD.into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

async fn supervise(link: Arc<Link>, runtimes: Runtimes) {
    loop {
        let duties = link.supervise();
        if let Some((dial, attempt)) = duties.connect {
            let connecting = connect(link.clone(), dial, attempt, runtimes.clone());
            runtimes.own.spawn(connecting);
        }
        if let Some((socket, attempt)) = duties.reader
            && link.take_over()
        {
            start_reader(&link, socket, attempt, &runtimes.own, None);
        }
        let Some(next) = duties.next else { return };
        let clock = link.clock.clone();
        select(clock.sleep_until(next), link.attention.notified()).await;
    }
}

/// Time limit of a task that connects. The session gives up the attempt earlier, but does not end the task.
const LONGEST_CONNECT: Duration = Duration::from_secs(30);

async fn connect(link: Arc<Link>, dial: Dial, attempt: u64, runtimes: Runtimes) {
    if link.is_probe_due()
        && let Some(WrongProtocol::Tls(error)) = wrong_protocol(&link).await
    {
        return link.failed(Failure::Tls(error), attempt);
    }
    let connecting = link.endpoint.dialer.connect(dial);
    let connected = match tokio::time::timeout(LONGEST_CONNECT, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    match connected {
        Ok(socket) => {
            if let Some(handle) = link.attach(socket, dial, attempt) {
                let Runtimes { own, user } = &runtimes;
                start_reader(&link, handle, attempt, own, user.as_ref());
            }
        }
        Err(error) => {
            let failure = Failure::Down {
                reason: format!("{}: {error}", link.names[dial.server]),
                is_absent: link.endpoint.dialer.is_absent(error.kind()),
            };
            link.failed(failure, attempt);
        }
    }
}

pub(super) async fn wrong_protocol(link: &Link) -> Option<WrongProtocol> {
    if !link.endpoint.is_network || link.endpoint.dialer.is_simulated() {
        return None;
    }
    let (host, is_tls) = (link.failed_host().to_owned(), link.tls.is_some());
    let probe = move || protocol_probe::wrong_protocol(&host, is_tls);
    started().ok()?.spawn_blocking(probe).await.ok()?
}

fn start_reader(
    link: &Arc<Link>,
    socket: Arc<dyn Socket>,
    attempt: u64,
    own: &Handle,
    user: Option<&Handle>,
) {
    let user = user.map(|user| (user, true));
    for (runtime, is_users) in user.into_iter().chain([(own, false)]) {
        let Some(stream) = registered(&*socket, runtime) else {
            continue;
        };
        let reader = Reader {
            link: link.clone(),
            attempt,
            is_users,
        };
        if is_users {
            link.hand_back();
        } else {
            link.take_over();
        }
        runtime.spawn(read(reader, stream));
        return;
    }
    // The registration has failed, for example because no file descriptor is left. The supervisor tries again later.
    link.hand_back();
}

/// Reader of one connection. If the user's runtime drops the reader, the supervisor starts another one.
struct Reader {
    link: Arc<Link>,
    attempt: u64,
    is_users: bool,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.is_users {
            self.link.reader_lost(self.attempt);
        }
    }
}

async fn read(reader: Reader, stream: Box<dyn RegisteredSocket>) {
    let (link, attempt) = (&reader.link, reader.attempt);
    let mut batch = Vec::new();
    loop {
        let interest = match link.is_blocked() {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        let outgoing = match reader.is_users {
            true => &link.outgoing,
            false => &link.own_outgoing,
        };
        let ready = poll_fn(|context| stream.poll_ready(interest, context));
        select(ready, outgoing.notified()).await;
        if reader.is_users {
            link.hand_back();
        } else if !link.is_taken_over() {
            return;
        }
        let read = stream.try_io(Interest::READABLE, &mut || link.read(attempt));
        if is_lost(read) {
            return;
        }
        if link.has_unsent() {
            // The first submitted request has woken this task. Yield, so that other tasks can submit their requests
            // too, and then write all of them together.
            tokio::task::yield_now().await;
            let written =
                stream.try_io(Interest::WRITABLE, &mut || link.write(attempt, &mut batch));
            if is_lost(written) {
                return;
            }
        }
    }
}

fn is_lost(outcome: io::Result<()>) -> bool {
    outcome.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
}
