//! Four-letter words. A client sends one word at the start of a connection. The server answers with a text and closes
//! the connection.
//!
//! The texts match ZooKeeper's byte for byte. This server does not know ZooKeeper's gtmk, hash, lead, orst and stmk. It
//! reads an unknown word as the length of a frame, and closes the connection because this length is above any limit.

mod clients;
mod date;
mod state;
#[cfg(test)]
mod tests;

use std::fmt::Write;

pub(crate) use self::clients::{Attached, Connection, Figures, Latency, Mode, cons, srvr, stat};
pub(crate) use self::state::{
    Bucket, Conf, Environment, Monitor, Sessions, Value, Watchers, conf, dirs, dump, envi, mntr,
    wchc, wchp, wchs,
};

/// Answer to every word except `ruok` and `isro` while the store does not work.
pub(crate) const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";

/// The ZooKeeper version that we follow and report. Clients such as kazoo parse it.
pub(crate) const LIKE_ZOOKEEPER: &str = "3.9.3";

pub(crate) fn version(built_ms: i64) -> String {
    let own = env!("CARGO_PKG_VERSION");
    let built = date::minute(built_ms);
    format!("{LIKE_ZOOKEEPER}-lockkeeper-{own}, built on {built}")
}

pub(crate) const CONNECTIONS_RESET: &str = "Connection stats reset.\n";

pub(crate) const SERVER_RESET: &str = "Server stats reset.\n";

pub(crate) const IMOK: &str = "imok";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    Ruok,
    Srvr,
    Stat,
    Mntr,
    Cons,
    Dump,
    Wchs,
    Wchc,
    Wchp,
    Envi,
    Conf,
    Isro,
    Dirs,
    Crst,
    Srst,
}

impl Word {
    pub(crate) const ALL: [Self; 15] = [
        Self::Ruok,
        Self::Srvr,
        Self::Stat,
        Self::Mntr,
        Self::Cons,
        Self::Dump,
        Self::Wchs,
        Self::Wchc,
        Self::Wchp,
        Self::Envi,
        Self::Conf,
        Self::Isro,
        Self::Dirs,
        Self::Crst,
        Self::Srst,
    ];

    pub(crate) fn parse(letters: [u8; 4]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|word| word.letters().as_bytes() == letters)
    }

    pub(crate) fn letters(self) -> &'static str {
        match self {
            Self::Ruok => "ruok",
            Self::Srvr => "srvr",
            Self::Stat => "stat",
            Self::Mntr => "mntr",
            Self::Cons => "cons",
            Self::Dump => "dump",
            Self::Wchs => "wchs",
            Self::Wchc => "wchc",
            Self::Wchp => "wchp",
            Self::Envi => "envi",
            Self::Conf => "conf",
            Self::Isro => "isro",
            Self::Dirs => "dirs",
            Self::Crst => "crst",
            Self::Srst => "srst",
        }
    }

    pub(crate) fn refusal(self) -> String {
        let letters = self.letters();
        format!("{letters} is not executed because it is not in the whitelist.\n")
    }
}

pub(crate) fn isro(serves: bool) -> &'static str {
    if serves { "rw" } else { "null" }
}

/// Whitelist of words. It always contains `srvr`, because ZooKeeper's own scripts need that word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whitelist(Vec<Word>);

impl Default for Whitelist {
    fn default() -> Self {
        Self(vec![Word::Srvr])
    }
}

impl Whitelist {
    /// Parses a list in the form of `4lw.commands.whitelist`: words separated by commas, or `*` for all.
    pub(crate) fn parse(list: &str) -> Result<Self, String> {
        let mut words = Self::default().0;
        for name in list.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            if name == "*" {
                return Ok(Self(Word::ALL.into()));
            }
            let known = Word::ALL.into_iter().find(|word| word.letters() == name);
            let word = known.ok_or_else(|| unknown(name))?;
            if !words.contains(&word) {
                words.push(word);
            }
        }
        Ok(Self(words))
    }

    pub(crate) fn allows(&self, word: Word) -> bool {
        self.0.contains(&word)
    }
}

fn unknown(name: &str) -> String {
    let words = Word::ALL.map(Word::letters).join(", ");
    format!(
        "no four-letter word is called \"{name}\": expected some of {words}, or *",
        name = name.escape_debug()
    )
}

macro_rules! line {
    ($to:expr) => {
        $to.push('\n')
    };
    ($to:expr, $($words:tt)*) => {{
        $crate::wire::admin::put(&mut $to, format_args!($($words)*));
        $to.push('\n');
    }};
}

use line;

fn put(to: &mut String, words: std::fmt::Arguments<'_>) {
    let _ = to.write_fmt(words);
}
