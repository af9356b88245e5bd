//! [`Accounts`]: the resource that the locks protect.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lockkeeper::{FencingGate, FencingToken, StaleToken};

/// Balances in cents. Each account refuses tokens that are older than the newest token it has seen.
///
/// In a real service this is a table with a column for the gate, and each method is one transaction.
#[derive(Debug, Default)]
pub struct Accounts(Mutex<HashMap<String, Account>>);

#[derive(Debug, Default)]
struct Account {
    gate: FencingGate,
    cents: i64,
}

impl Accounts {
    /// Returns the balance. From then on the account refuses older tokens, because the caller is about to write.
    ///
    /// # Errors
    /// [`StaleToken`] if a later holder of the account's lock has already read or written the balance.
    pub fn read(&self, account: &str, token: FencingToken) -> Result<i64, StaleToken> {
        self.admit(account, token, |account| account.cents)
    }

    /// Writes a balance.
    ///
    /// # Errors
    /// [`StaleToken`] if a later holder of the account's lock has already read or written the balance.
    pub fn write(&self, account: &str, cents: i64, token: FencingToken) -> Result<(), StaleToken> {
        self.admit(account, token, |account| account.cents = cents)
    }

    /// Checks the token and accesses the account in one step.
    fn admit<T>(
        &self,
        account: &str,
        token: FencingToken,
        access: impl FnOnce(&mut Account) -> T,
    ) -> Result<T, StaleToken> {
        // No access panics while it changes the map, so the map is consistent even if the mutex is poisoned.
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let account = accounts.entry(account.to_owned()).or_default();
        account.gate.admit(token)?;
        Ok(access(account))
    }
}
