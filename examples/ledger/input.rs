//! Input files, validated line by line before anything is locked.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// Balances by account, in cents.
pub(crate) type Balances = BTreeMap<String, i64>;

#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) id: i64,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) cents: i64,
}

impl Transfer {
    pub(crate) fn apply(&self, balances: &mut Balances) {
        *balances.entry(self.from.clone()).or_default() -= self.cents;
        *balances.entry(self.to.clone()).or_default() += self.cents;
    }
}

// These bounds keep every sum within an `i64`.
const MAX_TRANSFERS: usize = 1_000_000;
const MAX_AMOUNT: i64 = 1_000_000_000_000;
const MAX_BALANCE: i64 = 1_000_000_000_000_000;

pub(crate) fn accounts(file: &Path) -> Result<Balances, Box<dyn Error>> {
    let mut balances = Balances::new();
    read(file, "account,cents", |[account, cents]| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=64).contains(&account.len()) || !account.bytes().all(allowed) {
            return Err("an account of 1 to 64 letters, digits, `-`, `_` or `.`".to_owned());
        }
        let cents = number(cents, "cents", -MAX_BALANCE..=MAX_BALANCE)?;
        match balances.insert(account.to_owned(), cents) {
            Some(_) => Err("each account once".to_owned()),
            None => Ok(()),
        }
    })?;
    Ok(balances)
}

pub(crate) fn transfers(file: &Path, accounts: &Balances) -> Result<Vec<Transfer>, Box<dyn Error>> {
    let mut transfers = Vec::new();
    let mut used = HashSet::new();
    read(file, "id,from,to,cents", |[id, from, to, cents]| {
        let id = number(id, "id", 0..=i64::MAX)?;
        if !used.insert(id) {
            return Err("an id of its own".to_owned());
        }
        if !(accounts.contains_key(from) && accounts.contains_key(to)) {
            return Err("an account that the accounts file opens".to_owned());
        }
        if from == to {
            return Err("two different accounts".to_owned());
        }
        if transfers.len() == MAX_TRANSFERS {
            return Err(format!("{MAX_TRANSFERS} transfers at most"));
        }
        transfers.push(Transfer {
            id,
            from: from.to_owned(),
            to: to.to_owned(),
            cents: number(cents, "cents", 1..=MAX_AMOUNT)?,
        });
        Ok(())
    })?;
    Ok(transfers)
}

/// Passes the fields of each line after the header to `check`. If `check` returns an error, the error says what it
/// expected.
fn read<const N: usize>(
    file: &Path,
    header: &str,
    mut check: impl FnMut([&str; N]) -> Result<(), String>,
) -> Result<(), Box<dyn Error>> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    // An empty file has one empty line, which differs from the header and is refused.
    let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
    for (index, line) in lines.enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let checked = match line.split(',').collect::<Vec<_>>().try_into() {
            _ if index == 0 && line == header => Ok(()),
            _ if index == 0 => Err(format!("the header {header}")),
            Ok(fields) => check(fields),
            Err(_) => Err(format!("{N} fields, {header}")),
        };
        if let Err(expected) = checked {
            let line_number = index + 1;
            let message = format!("line {line_number}: expected {expected}, found {line:?}");
            return Err(format!("{name}, {message}").into());
        }
    }
    Ok(())
}

fn number(text: &str, what: &str, range: RangeInclusive<i64>) -> Result<i64, String> {
    match text.parse() {
        // The standard parser also accepts a plus sign, but in these files each number has only one spelling.
        Ok(number) if range.contains(&number) && !text.starts_with('+') => Ok(number),
        _ => {
            let (min, max) = range.into_inner();
            Err(format!("{what} as a whole number from {min} to {max}"))
        }
    }
}
