//! The input files, checked line by line before anything is locked.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Balances by account, in cents.
pub(crate) type Balances = BTreeMap<String, i64>;

/// One line of the transfers file.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) id: u64,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) cents: i64,
}

impl Transfer {
    /// Moves the money.
    pub(crate) fn apply(&self, balances: &mut Balances) {
        *balances.entry(self.from.clone()).or_default() -= self.cents;
        *balances.entry(self.to.clone()).or_default() += self.cents;
    }
}

/// Within these bounds no sum can leave the range of an `i64`.
const MOST_TRANSFERS: usize = 1_000_000;
const LARGEST_AMOUNT: i64 = 1_000_000_000_000;
const LARGEST_BALANCE: i64 = 1_000_000_000_000_000;

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{}: {source}", file.display())]
    Unreadable {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("{}, line {line}: expected {expected}, found {found}", file.display())]
    Malformed {
        file: PathBuf,
        line: usize,
        expected: String,
        found: String,
    },
}

/// Reads the opening balances.
pub(crate) fn accounts(file: &Path) -> Result<Balances, InputError> {
    let mut balances = Balances::new();
    for line in Lines::read(file, "account,cents")?.0 {
        let [account, cents] = line.fields()?;
        if !is_name(account) {
            let expected = "an account of 1 to 64 letters, digits, `-`, `_` or `.`";
            return Err(line.refuse(expected, format!("{account:?}")));
        }
        let cents = line.number(cents, "cents", -LARGEST_BALANCE, LARGEST_BALANCE)?;
        if balances.insert(account.to_owned(), cents).is_some() {
            return Err(line.refuse("each account once", format!("{account} again")));
        }
    }
    Ok(balances)
}

/// Reads the transfers between those accounts.
pub(crate) fn transfers(file: &Path, accounts: &Balances) -> Result<Vec<Transfer>, InputError> {
    let mut transfers = Vec::new();
    let mut used = HashMap::new();
    for line in Lines::read(file, "id,from,to,cents")?.0 {
        let [id, from, to, cents] = line.fields()?;
        let id = line.number(id, "id", 0, i64::MAX)? as u64;
        if let Some(before) = used.insert(id, line.number) {
            return Err(line.refuse("an id of its own", format!("that of line {before}, {id}")));
        }
        for account in [from, to] {
            if !accounts.contains_key(account) {
                let expected = "an account that the accounts file opens";
                return Err(line.refuse(expected, format!("{account:?}")));
            }
        }
        if from == to {
            return Err(line.refuse("two different accounts", format!("{from} twice")));
        }
        if transfers.len() == MOST_TRANSFERS {
            return Err(line.refuse(format!("{MOST_TRANSFERS} transfers at most"), "one more"));
        }
        transfers.push(Transfer {
            id,
            from: from.to_owned(),
            to: to.to_owned(),
            cents: line.number(cents, "cents", 1, LARGEST_AMOUNT)?,
        });
    }
    Ok(transfers)
}

fn is_name(account: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&account.len()) && account.bytes().all(allowed)
}

/// The lines of a file after its header.
struct Lines(Vec<Line>);

struct Line {
    file: PathBuf,
    number: usize,
    header: &'static str,
    text: String,
}

impl Lines {
    fn read(file: &Path, header: &'static str) -> Result<Self, InputError> {
        let bytes = std::fs::read(file).map_err(|source| InputError::Unreadable {
            file: file.to_owned(),
            source,
        })?;
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let mut lines = Vec::new();
        for (index, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            let line = Line {
                file: file.to_owned(),
                number: index + 1,
                header,
                text: String::from_utf8_lossy(bytes).into_owned(),
            };
            if index > 0 {
                lines.push(line);
            } else if line.text != header {
                let found = line.shown();
                return Err(line.refuse(format!("the header {header}"), found));
            }
        }
        Ok(Self(lines))
    }
}

impl Line {
    fn fields<const N: usize>(&self) -> Result<[&str; N], InputError> {
        let fields: Vec<&str> = self.text.split(',').collect();
        let count = fields.len();
        fields.try_into().map_err(|_| {
            let expected = format!("{N} fields, {}", self.header);
            let found = match self.text.as_str() {
                "" => "an empty line".to_owned(),
                _ => format!("{count} in {}", self.shown()),
            };
            self.refuse(expected, found)
        })
    }

    fn number(&self, text: &str, what: &str, least: i64, most: i64) -> Result<i64, InputError> {
        // The standard parser takes a plus sign; a number has one spelling here.
        let plain = !text.starts_with('+');
        match i64::from_str(text) {
            Ok(number) if plain && (least..=most).contains(&number) => Ok(number),
            _ => {
                let expected = format!("{what} as a whole number from {least} to {most}");
                Err(self.refuse(expected, format!("{text:?}")))
            }
        }
    }

    fn shown(&self) -> String {
        let start: String = self.text.chars().take(60).collect();
        format!("{start:?}")
    }

    fn refuse(&self, expected: impl Display, found: impl Display) -> InputError {
        InputError::Malformed {
            file: self.file.clone(),
            line: self.number,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}
