//! dump, wchs, wchc and wchp: sessions, and who watches what.

use super::date::date;
use super::line;
use crate::types::SessionId;

/// Sessions that end together, unless they are heard of.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// When, in milliseconds since the epoch.
    pub(crate) expires_ms: i64,
    pub(crate) sessions: Vec<SessionId>,
}

/// What dump tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions<'a> {
    /// In order of time.
    pub(crate) buckets: Vec<Bucket>,
    /// Those that have ephemeral znodes, with the znodes' paths.
    pub(crate) ephemerals: Vec<(SessionId, Vec<&'a str>)>,
}

/// What wchs tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watchers {
    /// Connections that watch anything.
    pub(crate) connections: usize,
    /// Paths that are watched.
    pub(crate) paths: usize,
    /// Watches in all.
    pub(crate) watches: usize,
}

/// The sessions.
pub(crate) fn dump(sessions: &Sessions<'_>) -> String {
    let mut text = String::new();
    let count = sessions.buckets.iter().map(|bucket| bucket.sessions.len());
    let count: usize = count.sum();
    line!(text, "SessionTracker dump:");
    line!(text, "Session Sets ({})/({count}):", sessions.buckets.len());
    for bucket in &sessions.buckets {
        let (count, at) = (bucket.sessions.len(), date(bucket.expires_ms));
        line!(text, "{count} expire at {at}:");
        for session in &bucket.sessions {
            line!(text, "\t{session}");
        }
    }
    let owners = sessions.ephemerals.len();
    line!(text, "ephemeral nodes dump:");
    line!(text, "Sessions with Ephemerals ({owners}):");
    for (session, paths) in &sessions.ephemerals {
        line!(text, "{session}:");
        paths.iter().for_each(|path| line!(text, "\t{path}"));
    }
    line!(text, "Connections dump:");
    text
}

/// How many watches there are.
pub(crate) fn wchs(watchers: &Watchers) -> String {
    let Watchers {
        connections,
        paths,
        watches,
    } = watchers;
    format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
}

/// What each session watches. Ask for it with care: it may be long.
pub(crate) fn wchc<'a, P: IntoIterator<Item = &'a str>>(
    sessions: impl IntoIterator<Item = (SessionId, P)>,
) -> String {
    let mut text = String::new();
    for (session, paths) in sessions {
        line!(text, "{session}");
        paths.into_iter().for_each(|path| line!(text, "\t{path}"));
    }
    line!(text);
    text
}

/// Who watches each path. Ask for it with care: it may be long.
pub(crate) fn wchp<'a, S: IntoIterator<Item = SessionId>>(
    paths: impl IntoIterator<Item = (&'a str, S)>,
) -> String {
    let mut text = String::new();
    for (path, sessions) in paths {
        line!(text, "{path}");
        sessions
            .into_iter()
            .for_each(|session| line!(text, "\t{session}"));
    }
    line!(text);
    text
}
