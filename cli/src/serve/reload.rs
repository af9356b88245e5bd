//! [`Reloader`]: reloads the configuration, certificates and token while the server runs. A configuration with any
//! error is refused as a whole, and the previous configuration stays in force.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ArgMatches;
use lockkeeper_store::{AuditEvent, AuditOutcome, Server};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tracing::{error, info, warn};

use super::audit::AuditLog;
use super::config::{Config, Setting};
use super::health::ServerHealth;
use super::plan::Plan;
use crate::values::Digest;

/// Options that a reload replaces. A reload reads a named file again, even if its name is unchanged.
const RELOADED: [&str; 5] = [
    "user",
    "super-digest",
    "four-letter-words",
    "four-letter-words-from",
    "metrics-token-file",
];

/// Further options that a reload replaces if the server already serves TLS and the new configuration still does.
const TLS_RELOADED: [&str; 4] = ["tls-cert", CLIENT_AUTHORITIES, "tls-client-uri", "tls-key"];

const CLIENT_AUTHORITIES: &str = "tls-client-ca";

pub(super) struct Reloader<'a> {
    /// The command line, which overrides the configuration file at each reload.
    given: &'a ArgMatches,
    current: Mutex<Current>,
    health: ServerHealth,
    audit: Option<AuditLog>,
    figures: Figures,
}

struct Current {
    settings: Vec<Setting>,
    users: Vec<Digest>,
    watched: Vec<PathBuf>,
}

struct Figures {
    reloads: IntCounterVec,
    is_successful: IntGauge,
}

impl<'a> Reloader<'a> {
    pub(super) fn new(
        given: &'a ArgMatches,
        config: &Config,
        plan: &Plan,
        health: ServerHealth,
        audit: Option<AuditLog>,
    ) -> Self {
        Self {
            given,
            current: Mutex::new(Current {
                settings: config.settings.clone(),
                users: config.flags.user.clone(),
                watched: plan.watched.clone(),
            }),
            health,
            audit,
            figures: Figures::new(),
        }
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.figures.reloads.clone()))?;
        registry.register(Box::new(self.figures.is_successful.clone()))
    }

    pub(super) fn watched(&self) -> Vec<PathBuf> {
        self.current.lock().watched.clone()
    }

    pub(super) fn reload(
        &self,
        server: &Server,
        why: &str,
        by: Option<&str>,
    ) -> Result<String, String> {
        // Reopen the audit log even if the configuration is refused, because logrotate may have renamed the log.
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
        let outcome = self.replace(server);
        let label = if outcome.is_ok() {
            "success"
        } else {
            "failure"
        };
        self.figures.reloads.with_label_values(&[label]).inc();
        self.figures.is_successful.set(outcome.is_ok().into());
        let result = match &outcome {
            Ok(changes) => {
                info!("{why}: reloaded: {changes}");
                AuditOutcome::Success
            }
            Err(reason) => {
                error!("{why}: not reloaded, the former configuration stays in use: {reason}");
                AuditOutcome::Failure
            }
        };
        if let Some(audit) = &self.audit {
            audit.note(AuditEvent::Reload, result, |record| {
                record.peer = by.map(str::to_owned);
                let (Ok(detail) | Err(detail)) = &outcome;
                record.detail = Some(format!("{why}: {detail}"));
            });
        }
        outcome
    }

    fn replace(&self, server: &Server) -> Result<String, String> {
        let config = Config::read(self.given)?;
        let plan = Plan::of(&config.flags)?;
        // An empty list of users admits every client. At startup, an operator may choose this, and the server logs a
        // warning. A reload refuses an empty list, because it may result from a truncated file.
        if config.flags.user.is_empty() && !self.current.lock().users.is_empty() {
            return Err("no user is left, so any name with any password would be accepted: restart the server if you want this".into());
        }
        let tls_files = plan.tls.as_ref().filter(|_| server.tls_addr().is_some());
        // Also refuse to remove all authorities, because the server would then admit clients without a certificate.
        let had_authorities = {
            let current = self.current.lock();
            let mut settings = current.settings.iter();
            settings.any(|it| it.name == CLIENT_AUTHORITIES)
        };
        if tls_files.is_some() && had_authorities && config.flags.tls_client_ca.is_empty() {
            return Err("no authority of clients' certificates is left, so any client would be admitted without a certificate: restart the server if you want this".into());
        }
        let mut changes = Vec::new();
        if let Some(files) = tls_files {
            let tls = files.read().map_err(|error| error.to_string())?;
            server.reload_tls(tls).map_err(|error| error.to_string())?;
            changes.push("the certificates were read".to_owned());
        }
        // From here on, no step can fail.
        server.reload_access(plan.access);
        self.health.set_token(plan.metrics_token);
        let mut current = self.current.lock();
        let differing = differing(&current.settings, &config.settings);
        changes.extend(changed_users(&current.users, &config.flags.user));
        let is_reloaded = |name: &str| {
            RELOADED.contains(&name) || tls_files.is_some() && TLS_RELOADED.contains(&name)
        };
        let (reloaded, others): (Vec<_>, Vec<_>) =
            differing.into_iter().partition(|name| is_reloaded(name));
        let named = reloaded.iter().filter(|name| *name != "user");
        changes.extend(named.map(|name| format!("{name} has changed")));
        current.users = config.flags.user;
        // A change of `--watch-files` itself needs a restart.
        if !plan.watched.is_empty() {
            current.watched = plan.watched;
        }
        // Keep the old values of the other options, because they stay in force, and the next reload compares with them.
        current.settings.retain(|it| !is_reloaded(&it.name));
        let settings = config.settings.into_iter();
        current
            .settings
            .extend(settings.filter(|it| is_reloaded(&it.name)));
        if !others.is_empty() {
            let options = others.join(", ");
            warn!(options, "changed options need a restart");
            changes.push(format!("a restart is needed for {options}"));
        }
        match changes.is_empty() {
            true => Ok("nothing has changed".into()),
            false => Ok(changes.join("; ")),
        }
    }
}

fn differing(before: &[Setting], now: &[Setting]) -> Vec<String> {
    let values = |of: &[Setting]| -> BTreeMap<String, Vec<String>> {
        let pairs = of.iter().map(|it| (it.name.clone(), it.values.clone()));
        pairs.collect()
    };
    let (before, now) = (values(before), values(now));
    let mut names: Vec<_> = before.keys().chain(now.keys()).cloned().collect();
    names.sort();
    names.dedup();
    names.retain(|name| before.get(name) != now.get(name));
    names
}

fn changed_users(before: &[Digest], now: &[Digest]) -> Vec<String> {
    let named = |of: &[Digest]| -> BTreeMap<String, Vec<String>> {
        let mut named = BTreeMap::<_, Vec<_>>::new();
        for Digest(text) in of {
            let (user, hash) = text.split_once(':').unwrap_or((text, ""));
            named
                .entry(user.to_owned())
                .or_default()
                .push(hash.to_owned());
        }
        named
    };
    let (before, now) = (named(before), named(now));
    let list = |what: &str, names: Vec<&String>| {
        let names: Vec<_> = names.into_iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("users {what}: {}", names.join(", ")))
    };
    let added = now.keys().filter(|user| !before.contains_key(*user));
    let removed = before.keys().filter(|user| !now.contains_key(*user));
    let other = now
        .iter()
        .filter(|(user, hashes)| before.get(*user).is_some_and(|it| it != *hashes));
    let other = other.map(|(user, _)| user);
    [
        list("added", added.collect()),
        list("removed", removed.collect()),
        list("with another password", other.collect()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Figures {
    fn new() -> Self {
        let reloads = IntCounterVec::new(
            Opts::new("lockkeeper_reloads_total", "Reloads of the configuration."),
            &["outcome"],
        );
        let is_successful = IntGauge::new(
            "lockkeeper_last_reload_successful",
            "0 if the last reload was refused, otherwise 1.",
        );
        let (Ok(reloads), Ok(is_successful)) = (reloads, is_successful) else {
            unreachable!("the names are valid")
        };
        for outcome in ["success", "failure"] {
            reloads.with_label_values(&[outcome]).inc_by(0);
        }
        is_successful.set(1);
        Self {
            reloads,
            is_successful,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_users_is_told_without_their_hashes() {
        let users = |texts: &[&str]| -> Vec<_> {
            texts.iter().map(|text| Digest((*text).into())).collect()
        };
        let (before, now) = (users(&["a:1", "b:2", "c:3"]), users(&["b:2", "c:4", "d:5"]));
        assert_eq!(
            changed_users(&before, &now),
            [
                "users added: d",
                "users removed: a",
                "users with another password: c"
            ]
        );
        assert_eq!(changed_users(&now, &now), [""; 0]);
    }
}
