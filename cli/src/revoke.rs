//! `lockkeeper revoke`: asks the holders of a lock to release it, or removes them.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use lockkeeper::{
    Client, Error, FencingEnforced, LockPath, LockQueue, QueueEntry, RevokeTarget, Revoker,
    ZnodePath, lock_queue,
};

use crate::exit::Failure;
use crate::locks::described;
use crate::locks::names::{escaped, lock_name};
use crate::locks::table::duration;
use crate::target::{Target, lock_path};
use crate::values;

pub(crate) const RISK: &str =
    "It may work on until it notices. Only resources that check fencing tokens are safe from it.";

/// The arguments of `revoke`.
#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// Name of the lock, or path of its znode
    name: String,
    /// Takes the lock away instead of asking the holder. Safe only if every resource that the lock protects checks
    /// fencing tokens
    #[arg(long)]
    force: bool,
    /// Skips the confirmation of --force. Required without a terminal
    #[arg(long, requires = "force")]
    yes: bool,
    /// Waits until the holders have released the lock, but no longer than DURATION
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "9000h",
        value_parser = values::duration
    )]
    wait: Option<Duration>,
    /// Name of the requester, shown to the holders [default: the user's name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Revoke {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        if self.force && !self.yes && !can_confirm() {
            return Err(Failure::Usage(
                "--force without a terminal needs --yes: nobody can confirm it".into(),
            ));
        }
        let client = self.target.connect().await?;
        let queue = lock_queue(&client, &path).await?;
        let by = self.by.clone().unwrap_or_else(|| user("revoke"));
        let revoker = Revoker::new(&client).by(by);
        let (reached, said) = match self.force {
            true => (self.take(&revoker, &queue).await?, "removed"),
            false => (ask(&revoker, &path).await?, "asked"),
        };
        let name = escaped(&lock_name(path.as_znode()));
        if reached.is_empty() {
            return Err(Failure::Other(format!("nobody holds {name}")));
        }
        for path in &reached {
            let entry = queue.holders.iter().find(|entry| entry.path == *path);
            let who = entry.map_or_else(|| escaped(path.name()), described);
            crate::output::print(&format!("{name}: {said} {who}\n"))?;
        }
        match self.wait {
            Some(limit) => wait(&client, &name, &reached, limit).await,
            None => Ok(()),
        }
    }

    async fn take(&self, revoker: &Revoker, shown: &LockQueue) -> Result<Vec<ZnodePath>, Failure> {
        if shown.holders.is_empty() {
            return Ok(Vec::new());
        }
        if !self.yes && !confirmed(shown)? {
            return Err(Failure::Other("nothing was taken away".into()));
        }
        let removed = take(revoker, &shown.holders).await?;
        if removed.is_empty() {
            return Err(Failure::Other(
                "the holders have already left: nothing was taken away".into(),
            ));
        }
        Ok(removed)
    }
}

pub(crate) async fn ask_entry(
    revoker: &Revoker,
    shown: &QueueEntry,
) -> Result<Vec<ZnodePath>, Error> {
    revoker.request(&RevokeTarget::entry(&shown.path)?).await
}

/// Deletes only the entries that the user saw, because the lock may have a new holder by now. Returns the paths of the
/// entries that were still there.
pub(crate) async fn take(revoker: &Revoker, shown: &[QueueEntry]) -> Result<Vec<ZnodePath>, Error> {
    let mut removed = Vec::new();
    // Delete from last to first. In the other order, each delete would briefly make the next entry a holder.
    for holder in shown.iter().rev() {
        let entry = RevokeTarget::entry(&holder.path)?;
        removed.extend(revoker.force(&entry, FencingEnforced).await?);
    }
    removed.reverse();
    Ok(removed)
}

async fn ask(revoker: &Revoker, path: &LockPath) -> Result<Vec<ZnodePath>, Failure> {
    let holder = RevokeTarget::holder(path)?;
    Ok(revoker.request(&holder).await?)
}

fn can_confirm() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn confirmed(queue: &LockQueue) -> io::Result<bool> {
    let name = escaped(&lock_name(&queue.path));
    let mut out = io::stderr().lock();
    for holder in &queue.holders {
        writeln!(out, "{name} is held by {}", described(holder))?;
    }
    writeln!(out, "{RISK}")?;
    write!(out, "Take the lock away? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let answer = answer.trim().to_ascii_lowercase();
    Ok(answer == "y" || answer == "yes")
}

pub(crate) fn user(command: &str) -> String {
    let names = ["USER", "LOGNAME"].into_iter();
    let mut names = names.filter_map(|name| std::env::var(name).ok());
    names.find(|name| !name.is_empty()).map_or_else(
        || format!("lockkeeper {command}"),
        |name| format!("{name} (lockkeeper {command})"),
    )
}

async fn wait(
    client: &Client,
    name: &str,
    entries: &[ZnodePath],
    limit: Duration,
) -> Result<(), Failure> {
    let left = async {
        for entry in entries {
            until_gone(client, entry).await?;
        }
        Ok::<_, Error>(())
    };
    match tokio::time::timeout(limit, left).await {
        Ok(left) => Ok(left?),
        Err(_) => Err(Failure::NotAcquired(format!(
            "{name} has not been released within {}",
            duration(limit)
        ))),
    }
}

async fn until_gone(client: &Client, entry: &ZnodePath) -> Result<(), Error> {
    loop {
        let session = client.session().await?;
        match session.watch_exists(entry).await {
            Ok((None, _)) => return Ok(()),
            Ok((Some(_), watcher)) => drop(watcher.await),
            Err(Error::ConnectionLoss) => {}
            Err(error) if error.is_session_end() => {}
            Err(error) => return Err(error),
        }
    }
}
