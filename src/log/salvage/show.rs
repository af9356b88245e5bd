//! A [`Salvage`] as text.

use std::fmt;

use super::{Loss, LostPlace, Salvage};
use crate::log::inspect::Bytes;

impl fmt::Display for Salvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (znodes, sessions) = (self.summary.znodes, self.summary.sessions);
        write!(
            f,
            "store {} up to zxid {}: {znodes} znodes, {sessions} sessions, ",
            self.summary.store_id, self.read_to
        )?;
        match &self.snapshot {
            Some(name) => write!(f, "from {name} and the log after it")?,
            None => write!(f, "from the log")?,
        }
        let damage = self.loss.as_ref().map(|loss| &loss.damage);
        let harmless = |problem: &&super::Problem| Some(*problem) != damage;
        let damaged = match damage {
            Some(_) => "DAMAGED",
            None => "DAMAGED, and not needed",
        };
        for problem in self.problems.iter().filter(harmless) {
            write!(f, "\n{damaged}: {problem}")?;
        }
        match &self.loss {
            Some(loss) => write!(f, "\n{loss}")?,
            None => write!(f, "\nnothing is lost")?,
        }
        if self.in_use {
            write!(
                f,
                "\nthe original is in use: stop its process; what it writes from now on is not in the new directory"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LOST from {}", self.damage)?;
        for place in &self.places {
            write!(f, "\n  {place}")?;
        }
        match (self.transactions, self.last_zxid) {
            (0, None) => write!(
                f,
                "\n  no lost transaction is known; the damage may hide some"
            ),
            (0, Some(last)) => write!(f, "\n  transactions up to zxid {last} at least"),
            (count, last) => {
                let last = last.unwrap_or_default();
                write!(
                    f,
                    "\n  {count} transactions at least, and those in the damaged place itself; the last known is zxid {last}"
                )
            }
        }
    }
}

impl fmt::Display for LostPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.bytes {
            Some(bytes) => write!(f, "{file} from byte {}: {}", self.offset, Bytes(bytes)),
            None => write!(f, "{file}: missing"),
        }
    }
}
