//! The behaviour that the contenders of the fault runs, of the soak and of other versions share: they wait for the locks
//! of some keys in a random way, hold them, convert them, and release them in one of three ways.

use lockkeeper::{Client, Error, LockError};

use crate::Random;
use crate::gate::{Closed, Gate, Part, Stay};
use crate::keys;
use crate::recipe::{Held, Recipe, Way, wait_for_all};

/// Keys of each contender of a client. The last one takes several at once.
pub const CONTENDERS: [&[&str]; 7] = [
    &["mutex-0"],
    &["mutex-1"],
    &["rwlock"],
    &["rwlock"],
    &["semaphore"],
    &["election"],
    &["mutex-0", "mutex-1"],
];

/// Waits for the locks of these keys, in one way; `None` if that gives up.
///
/// # Errors
/// Those of the wait.
pub async fn wait(
    client: &Client,
    keys: &[&str],
    way: Way,
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

/// Work of a contender while it holds its locks.
pub trait Stays: Send {
    /// Stays for a while. Returns the guard, unless it is lost.
    fn stay(
        &mut self,
        held: Held,
        random: &mut Random,
    ) -> impl Future<Output = Option<Held>> + Send;

    /// Stays under a lock, converts it now and then and stays again, and lets it go. Returns false if it is lost.
    ///
    /// # Errors
    /// Those of a conversion.
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

/// Enters the resources of all keys. `report` hears of each that is closed, or cannot be used.
pub fn enter(
    gate: &Gate,
    keys: &[&str],
    held: &Held,
    mut report: impl FnMut(&str, std::io::Result<Closed>),
) -> Vec<Stay> {
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

/// Returns true for an error that a server out of reach explains.
pub fn is_out_of_reach(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Store(Error::ConnectionLoss | Error::ConnectFailed { .. })
    )
}
