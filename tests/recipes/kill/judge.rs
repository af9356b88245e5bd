//! Rules for the lines of the clients. Each looks through all lines by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::line::{Answer, Line, Name, Said, Told};

/// Facts of a run that the rules depend on.
pub(crate) struct Rules<'a> {
    /// In milliseconds.
    pub(crate) timeout_of: &'a dyn Fn(&str) -> u64,
    /// A kill of the server ends all sessions, before their timeouts, and none lives on.
    pub(crate) kills_end_sessions: bool,
    /// Returns true if a client's watches stay at the server through a broken connection.
    pub(crate) keeps_watches: &'a dyn Fn(&str) -> bool,
}

/// Counts of what happened in a run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// By life: writes that were acknowledged, and grants of the lock.
    pub(crate) lives: BTreeMap<u64, (u64, u64)>,
    pub(crate) acknowledged: u64,
    pub(crate) unknown: u64,
    /// Grants of the lock to another client than the one before.
    pub(crate) hand_overs: u64,
    /// Kills after which another client held the lock than before.
    pub(crate) hand_overs_across: u64,
    /// Watches that were armed before a kill and fired after it.
    pub(crate) watches_across: u64,
    /// Sessions that lived through a broken connection, and those that were lost.
    pub(crate) back: u64,
    pub(crate) lost: u64,
    /// Holders that did not know that they were out of touch for longer than their timeout.
    pub(crate) lapses: u64,
    /// The highest token that the protected resource has acknowledged.
    pub(crate) shown: i64,
}

/// Applies all rules but those for the final znodes. Fails when one is broken.
pub(crate) fn judge(lines: &[Line], rules: &Rules<'_>) -> Figures {
    let mut figures = count(lines);
    zxids(lines);
    figures.lapses = holders(lines, rules);
    sessions(lines, rules);
    ephemerals(lines, rules);
    figures.watches_across = watches(lines, rules);
    figures
}

/// Counts what the lines tell, whether it is right or not.
pub(crate) fn count(lines: &[Line]) -> Figures {
    let mut figures = Figures::default();
    let mut life = None;
    let (mut last, mut before_kill) = (None, None);
    for line in lines {
        match line {
            Line::Test(Told::Ready(number)) => life = Some(*number),
            Line::Test(Told::Killed(_)) => {
                life = None;
                before_kill = last;
            }
            Line::Client(_, Said::Wrote { answer, .. }) => match answer {
                Answer::Done { .. } => {
                    figures.acknowledged += 1;
                    if let Some(life) = life {
                        figures.lives.entry(life).or_default().0 += 1;
                    }
                }
                Answer::Unknown => figures.unknown += 1,
                Answer::Refused => {}
            },
            Line::Client(name, Said::Held(..)) => {
                if let Some(life) = life {
                    figures.lives.entry(life).or_default().1 += 1;
                }
                figures.hand_overs += u64::from(last.is_some_and(|last| last != name));
                let other = before_kill.take().is_some_and(|before| before != name);
                figures.hand_overs_across += u64::from(other);
                last = Some(name);
            }
            Line::Client(_, Said::Back(..)) => figures.back += 1,
            Line::Client(_, Said::Lost(..)) => figures.lost += 1,
            Line::Client(_, Said::Shown(_, token)) => figures.shown = figures.shown.max(*token),
            _ => {}
        }
    }
    figures
}

/// A write has a higher zxid than all that were known when it was sent, in whatever life of the server.
fn zxids(lines: &[Line]) {
    let mut highest = 0;
    let mut known = BTreeMap::new();
    for line in lines {
        match line {
            Line::Client(name, Said::Wrote { writer, answer, .. }) => {
                let known = known.entry((name, writer)).or_default();
                if let Answer::Done {
                    zxid: Some(zxid), ..
                } = answer
                {
                    assert!(zxid > known, "{line:?} was asked for after zxid {known}");
                    highest = highest.max(*zxid);
                }
                // It asks for the next one only now.
                *known = highest;
            }
            Line::Client(_, Said::Held(_, token)) => highest = highest.max(*token),
            Line::Client(_, Said::Alive(_, czxid)) => highest = highest.max(*czxid),
            _ => {}
        }
    }
}

/// A client that is believed to be out of touch, from this line on.
struct Suspect<'a> {
    name: &'a Name,
    session: i64,
    at: usize,
}

impl Suspect<'_> {
    /// Returns true if it was told later that it had been out of touch for its timeout.
    fn was_out_of_touch(&self, lines: &[Line], rules: &Rules<'_>) -> bool {
        let timeout = (rules.timeout_of)(self.name);
        lines[self.at..].iter().any(|line| match line {
            Line::Client(name, Said::Lost(session, silent)) => {
                name == self.name && *session == self.session && *silent >= timeout
            }
            _ => false,
        })
    }
}

/// No two clients hold at once, and tokens only grow. Returns the number of holders that did not know that they
/// were out of touch for longer than their timeout: they could not know better.
fn holders(lines: &[Line], rules: &Rules<'_>) -> u64 {
    let mut holding: BTreeMap<&Name, (i64, i64)> = BTreeMap::new();
    let mut highest = 0;
    let mut lapses = 0;
    for (at, line) in lines.iter().enumerate() {
        match line {
            Line::Client(name, Said::Held(session, token)) => {
                let mut suspects: Vec<_> = holding
                    .iter()
                    // A holder with a newer token is no suspect: then this client's report is the late one.
                    .filter(|(_, (_, other))| other < token)
                    .map(|(name, (session, _))| (*name, *session))
                    .collect();
                // An old token is right only for a client that was out of touch itself.
                if *token <= highest {
                    suspects.push((name, *session));
                }
                for (name, session) in suspects {
                    let suspect = Suspect { name, session, at };
                    assert!(
                        suspect.was_out_of_touch(lines, rules),
                        "line {at}: {line:?}, while others hold: {holding:?}; the highest token was {highest}"
                    );
                    lapses += 1;
                }
                holding.insert(name, (*session, *token));
                highest = highest.max(*token);
            }
            Line::Client(name, Said::Left(..) | Said::Ended) | Line::Test(Told::Died(name)) => {
                holding.remove(name);
            }
            Line::Client(name, Said::Lost(session, _))
                if holding.get(name).is_some_and(|(held, _)| held == session) =>
            {
                holding.remove(name);
            }
            _ => {}
        }
    }
    lapses
}

/// No session ends before its timeout, but by a kill that ends all; and none lives through such a kill.
fn sessions(lines: &[Line], rules: &Rules<'_>) {
    let mut killed = None;
    let mut first_seen = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        match line {
            Line::Test(Told::Killed(_)) => killed = Some(at),
            Line::Client(name, Said::Lost(_, silent)) => {
                let timeout = (rules.timeout_of)(name);
                assert!(
                    rules.kills_end_sessions || *silent >= timeout,
                    "line {at}: {line:?}, with a timeout of {timeout} ms"
                );
            }
            Line::Client(name, Said::Back(session, _)) => {
                let first = first_seen.get(&(name, *session)).copied().unwrap_or(at);
                assert!(
                    !rules.kills_end_sessions || killed.is_none_or(|killed| first > killed),
                    "line {at}: {line:?}, which was there before the kill"
                );
            }
            Line::Client(
                name,
                Said::Held(session, _) | Said::Saw(session, _) | Said::Alive(session, _),
            ) => {
                first_seen.entry((name, *session)).or_insert(at);
            }
            _ => {}
        }
    }
}

/// A session's ephemeral znode exists as long as the session.
fn ephemerals(lines: &[Line], rules: &Rules<'_>) {
    let mut known = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let Line::Client(name, Said::Alive(session, czxid)) = line else {
            continue;
        };
        let session = *session;
        let first = known.entry((name, session)).or_insert(*czxid);
        if first == czxid {
            continue;
        }
        let may_be_gone =
            *czxid == 0 && Suspect { name, session, at }.was_out_of_touch(lines, rules);
        assert!(
            may_be_gone,
            "line {at}: {line:?}, and it was {first} before"
        );
    }
}

/// A version of the bell that was seen is never unseen; and a watch that was armed before a kill fires after it,
/// if the znode has changed. Returns how many did.
fn watches(lines: &[Line], rules: &Rules<'_>) -> u64 {
    #[derive(Default)]
    struct Watcher {
        /// The session and the version of the last read, with a watch, and the bell's highest version known then.
        armed: Option<(i64, i32)>,
        known: i32,
        fired: bool,
        killed: bool,
    }
    let mut highest = 0;
    let mut across = 0;
    let mut watchers = BTreeMap::<&Name, Watcher>::new();
    for (at, line) in lines.iter().enumerate() {
        match line {
            Line::Test(Told::Rung(version)) => highest = highest.max(*version),
            Line::Test(Told::Killed(_)) => {
                for watcher in watchers.values_mut() {
                    watcher.killed |= watcher.armed.is_some() && !watcher.fired;
                }
            }
            Line::Client(name, Said::Fired(_)) => {
                let watcher = watchers.entry(name).or_default();
                watcher.fired = true;
                across += u64::from(watcher.killed && (rules.keeps_watches)(name));
            }
            Line::Client(name, Said::Saw(session, version)) => {
                let watcher = watchers.entry(name).or_default();
                assert!(
                    *version >= watcher.known,
                    "line {at}: {line:?} is of the past"
                );
                let missed = watcher.armed.is_some_and(|(armed_in, armed_at)| {
                    armed_in == *session && armed_at < *version && !watcher.fired
                });
                assert!(
                    !missed || !(rules.keeps_watches)(name),
                    "line {at}: {line:?}, and its watch did not fire"
                );
                highest = highest.max(*version);
                *watcher = Watcher {
                    armed: Some((*session, *version)),
                    known: highest,
                    ..Watcher::default()
                };
            }
            _ => {}
        }
    }
    across
}

/// Returns the killed clients whose ephemeral znode is not known to be gone.
pub(crate) fn not_gone(lines: &[Line]) -> BTreeSet<&Name> {
    let mut dead = BTreeSet::new();
    for line in lines {
        match line {
            Line::Test(Told::Died(name)) => {
                dead.insert(name);
            }
            Line::Test(Told::Gone(name)) => {
                dead.remove(name);
            }
            _ => {}
        }
    }
    dead
}
