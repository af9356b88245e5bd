//! `lockkeeper permits`: shows or sets the size of a semaphore.

use clap::Args;
use lockkeeper::{Client, LockError, LockPath, Semaphore, lock_queue_part};

use crate::exit::Failure;
use crate::locks::names::{escaped, lock_name};
use crate::target::{Target, lock_path};

/// The arguments of `permits`.
#[derive(Args, Debug)]
pub(crate) struct Permits {
    /// Name of the semaphore, or path of its znode
    name: String,
    /// New number of permits. Without it, shows the current number
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    number: Option<u32>,
    /// Changes the number even if more permits are taken. No further permit is granted until enough are released
    #[arg(long, requires = "number")]
    force: bool,
    #[command(flatten)]
    target: Target,
}

impl Permits {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        let client = self.target.connect().await?;
        let name = escaped(&lock_name(path.as_znode()));
        let semaphore = Semaphore::open(&client, path.clone())?;
        let failed = |error| failure(error, &name);
        // Read the number first, because setting it would create a missing semaphore.
        semaphore.permits().await.map_err(failed)?;
        if let Some(number) = self.number {
            if !self.force {
                check_taken(&client, &path, &name, number).await?;
            }
            semaphore.set_permits(number).await.map_err(failed)?;
        }
        let number = semaphore.permits().await.map_err(failed)?;
        crate::output::print(&shown(&client, &path, &name, number).await?)?;
        Ok(())
    }
}

/// Refuses a number below the number of permits in use. The check may miss a permit that is taken at the same time,
/// which does no harm because a lower number revokes no permit.
async fn check_taken(
    client: &Client,
    path: &LockPath,
    name: &str,
    number: u32,
) -> Result<(), Failure> {
    let taken = lock_queue_part(client, path, 0, 0..0).await?.holder_count;
    if taken <= number as usize {
        return Ok(());
    }
    Err(Failure::Other(format!(
        "{taken} permits of {name} are taken, more than {number}: --force sets the number anyway, and no permit is granted \
         until enough are released"
    )))
}

async fn shown(
    client: &Client,
    path: &LockPath,
    name: &str,
    number: u32,
) -> Result<String, Failure> {
    let queue = lock_queue_part(client, path, 0, 0..0).await?;
    let (taken, waiting) = (queue.holder_count, queue.waiter_count);
    let free = (number as usize).saturating_sub(taken);
    let permits = if number == 1 { "permit" } else { "permits" };
    Ok(format!(
        "{name}: {number} {permits}, {taken} taken, {free} free, {waiting} waiting\n"
    ))
}

fn failure(error: LockError, name: &str) -> Failure {
    match error {
        LockError::NoPermits { .. } => Failure::Other(format!(
            "there is no semaphore {name}: `lockkeeper run {name} --permits N/M` creates one"
        )),
        LockError::WrongKind { kind, .. } => {
            Failure::Other(format!("{name} is in use as {kind}, which has no permits"))
        }
        error => error.into(),
    }
}
