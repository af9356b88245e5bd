//! Contenders, shared by the fault runs, the soak and the tests of other versions. They wait for locks in a random
//! mode, hold them, convert them, and release them in one of three ways.

use lockkeeper::{Client, Error, LockError};

use crate::Random;
use crate::keys;
use crate::recipe::{AcquireMode, Held, Recipe, wait_for_all};
use crate::resource::{Closed, CriticalSection, Gate, Part};

/// Keys of each contender of a client. The last one takes several together.
pub const CONTENDERS: [&[&str]; 7] = [
    &["mutex-0"],
    &["mutex-1"],
    &["rwlock"],
    &["rwlock"],
    &["semaphore"],
    &["election"],
    &["mutex-0", "mutex-1"],
];

/// Waits for the locks of these keys in one mode. Returns `None` if that gives up.
pub async fn wait(
    client: &Client,
    keys: &[&str],
    way: AcquireMode,
    random: &mut Random,
) -> Result<Option<Held>, LockError> {
    let clock = client.clock();
    let paths: Vec<_> = keys.iter().map(|key| keys::path(key)).collect();
    match &paths[..] {
        [path] => {
            let recipe = keys::recipe(keys[0]).expect("contenders know their keys");
            let lock = (client, path.as_str(), &mut None);
            recipe.wait(lock, way, random, clock).await
        }
        paths => {
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            wait_for_all(client, &paths, way, clock).await
        }
    }
}

/// The action of a contender that holds its locks.
pub trait Stays: Send {
    /// Holds the guard for a while. Returns it unless it is lost.
    fn stay(
        &mut self,
        held: Held,
        random: &mut Random,
    ) -> impl Future<Output = Option<Held>> + Send;

    /// Holds a lock, sometimes converts it and holds it again, then lets it go. Returns `false` if it is lost.
    ///
    /// # Errors
    /// If a conversion fails.
    fn hold(
        &mut self,
        held: Held,
        random: &mut Random,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        async move {
            let Some(mut held) = self.stay(held, random).await else {
                return Ok(false);
            };
            if held.is_convertible() && random.once_in(4) {
                (held, _) = held.converted().await?;
                match self.stay(held, random).await {
                    Some(still) => held = still,
                    None => return Ok(false),
                }
            }
            match random.within(0..3) {
                0 => drop(held),
                1 => drop(held.release()),
                _ => drop(held.release().await),
            }
            Ok(true)
        }
    }
}

/// Enters the resources of all keys. Calls `report` for each refusal or I/O error.
pub fn enter(
    gate: &Gate,
    keys: &[&str],
    held: &Held,
    mut report: impl FnMut(&str, std::io::Result<Closed>),
) -> Vec<CriticalSection> {
    let part = match (held, keys::recipe(keys[0])) {
        (Held::Permit(permit), Some(Recipe::Semaphore { permits })) => {
            Part::Permits(permit.count(), permits)
        }
        (Held::Read(_), _) => Part::Shared,
        _ => Part::Exclusive,
    };
    let mut stays = Vec::new();
    for key in keys {
        match gate.enter(key, part, held.token()) {
            Ok(Ok(stay)) => stays.push(stay),
            Ok(Err(closed)) => report(key, Ok(closed)),
            Err(error) => report(key, Err(error)),
        }
    }
    stays
}

/// Returns `true` for an error caused by an unreachable server.
pub fn is_out_of_reach(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Store(Error::ConnectionLoss | Error::ConnectFailed { .. })
    )
}
