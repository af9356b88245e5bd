//! Parses store URLs, and suggests corrections.

use std::path::Path;

use lockkeeper::{Target, TargetError};

use crate::exit::Failure;

/// Schemes that we suggest for a mistyped scheme. `memory` is missing, because a store in memory is useless for a
/// command.
const SCHEMES: [&str; 8] = [
    "etcd",
    "etcd+tls",
    "file",
    "lockkeeper",
    "lockkeeper+tls",
    "lockkeeper+unix",
    "zookeeper",
    "zookeeper+tls",
];

const ALIASES: [(&str, &str); 3] = [
    ("unix", "lockkeeper+unix"),
    ("zk", "zookeeper"),
    ("lk", "lockkeeper"),
];

const MOST_EDITS: usize = 2;

pub(super) fn parse(url: &str) -> Result<Target, Failure> {
    url.parse().map_err(|error| {
        let meant = meant(url);
        let question = match meant.is_empty() {
            true => return Failure::from(lockkeeper::Error::from(error)),
            false => format!("did you mean {}?", meant.join(" or ")),
        };
        Failure::Usage(match error {
            // Write our own error, because the library's error lists all forms of URLs.
            TargetError::UnknownScheme { .. } => {
                format!(
                    "\"{}\" is not the URL of a store: {question}",
                    url.escape_debug()
                )
            }
            error => format!("{error}; {question}"),
        })
    })
}

pub(super) fn is_memory(url: &str) -> bool {
    url.split(':').next() == Some("memory")
}

fn meant(url: &str) -> Vec<String> {
    // Suggest nothing if the URL may contain a password.
    if url.contains('@') {
        return Vec::new();
    }
    let right = |meant: &String| meant != url && meant.parse::<Target>().is_ok();
    let candidates = candidates(url).into_iter().filter(right);
    candidates
        .map(|meant| format!("\"{}\"", meant.escape_debug()))
        .collect()
}

fn candidates(url: &str) -> Vec<String> {
    if url.starts_with(['/', '.']) {
        let path = Path::new(url);
        let is_socket = path
            .extension()
            .is_some_and(|it| it == "sock" || it == "socket");
        return vec![match is_socket {
            true => format!("lockkeeper+unix://{url}"),
            false => format!("file:{url}"),
        }];
    }
    if has_ports(url) {
        return vec![format!("lockkeeper://{url}"), format!("zookeeper://{url}")];
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Vec::new();
    };
    let rest = rest.trim_start_matches('/');
    let (path, rest) = (rest, rest.trim_end_matches('/'));
    match known(&scheme.to_ascii_lowercase()) {
        Some("file") => vec![format!("file:{path}")],
        Some("lockkeeper+unix") => vec![format!("lockkeeper+unix:///{rest}")],
        Some("lockkeeper") if rest.contains(',') => vec![format!("zookeeper://{rest}")],
        Some(scheme) => vec![format!("{scheme}://{rest}")],
        None => Vec::new(),
    }
}

fn has_ports(url: &str) -> bool {
    let hosts = url.split('/').next().unwrap_or_default();
    hosts.split(',').all(|host| {
        let port = host.rsplit_once(':').map(|(_, port)| port);
        port.is_some_and(|port| port.parse::<u16>().is_ok())
    })
}

fn known(scheme: &str) -> Option<&'static str> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == scheme);
    let closest = || {
        let edits = SCHEMES.map(|known| (strsim::levenshtein(scheme, known), known));
        let closest = edits.into_iter().min()?;
        (closest.0 <= MOST_EDITS && scheme.len() > MOST_EDITS).then_some(closest.1)
    };
    alias.map(|(_, known)| *known).or_else(closest)
}
