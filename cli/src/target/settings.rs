//! [`Settings`]: the values needed to reach a store, each from the source with the highest rank.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};
use lockkeeper::ClientTls;

use super::profile::{self, NAMES, Profile};
use crate::locks::names::escaped;

#[derive(Clone, Debug)]
struct Value {
    value: OsString,
    source: SettingSource,
}

#[derive(Clone, Debug)]
struct SettingSource {
    rank: Rank,
    name: String,
}

/// Kinds of sources. A later variant overrides an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Default,
    Profile,
    Variable,
    Flag,
}

impl SettingSource {
    fn default() -> Self {
        Self {
            rank: Rank::Default,
            name: "default".into(),
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

const PROFILE: &str = "profile";

/// The sources of the values on the command line and in the environment. This type adds no arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources(BTreeMap<&'static str, SettingSource>);

impl FromArgMatches for Sources {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let source = |name: &'static str| {
            let source = match matches.value_source(&name.replace('-', "_"))? {
                ValueSource::CommandLine => (Rank::Flag, format!("--{name}")),
                ValueSource::EnvVariable => (Rank::Variable, variable(name)),
                _ => return None,
            };
            let (rank, shown) = source;
            Some((name, SettingSource { rank, name: shown }))
        };
        let names = NAMES.into_iter().chain([PROFILE]);
        Ok(Self(names.filter_map(source).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Sources {
    fn group_id() -> Option<Id> {
        None
    }

    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

pub(super) fn variable(name: &str) -> String {
    format!("LOCKKEEPER_{}", name.replace('-', "_").to_uppercase())
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, Value>,
    files: Vec<PathBuf>,
}

impl Settings {
    /// Adds the values of a profile to the given values.
    ///
    /// Uses the named profile. If neither a profile nor a URL is given, uses the profile `default`. If a flag or
    /// variable gives the URL and no profile is named, no profile is used. A profile's password is therefore never sent
    /// to a server that the profile does not name.
    pub(super) fn resolve(
        given: impl IntoIterator<Item = (&'static str, Option<OsString>)>,
        sources: &Sources,
    ) -> Result<Self, String> {
        let given = given.into_iter().filter_map(|(name, value)| {
            let (value, source) = (value?, sources.0.get(name)?.clone());
            // An empty flag means "none". An empty variable means that the variable is not set.
            let is_set = !value.is_empty() || source.rank == Rank::Flag;
            is_set.then_some((name, Value { value, source }))
        });
        let mut values: BTreeMap<_, _> = given.collect();
        let named = values.get(PROFILE).map(Value::text).transpose()?;
        let files = match named {
            Some("") => Vec::new(),
            None if values.contains_key("url") => Vec::new(),
            _ => profile::files(),
        };
        let named = named.filter(|name| !name.is_empty());
        if let Some(profile) = profile::find(named, &files)? {
            add(&mut values, &profile);
        }
        let mut settings = Self { values, files };
        settings.check()?;
        Ok(settings)
    }

    /// Returns the URL, or `None` for the per-user store.
    pub(super) fn url(&self) -> Option<&str> {
        self.text("url")
    }

    pub(super) fn auth(&self) -> Option<&str> {
        self.text("auth")
    }

    fn text(&self, name: &str) -> Option<&str> {
        let value = self.values.get(name)?;
        // The option is a string, so the value is always UTF-8.
        value.value.to_str().filter(|it| !it.is_empty())
    }

    pub(super) fn tls(&self) -> Result<Option<ClientTls>, lockkeeper::Error> {
        let path = |name| {
            self.values
                .get(name)
                .map(|it: &Value| PathBuf::from(&it.value))
        };
        let Some(authority) = path("ca") else {
            return Ok(None);
        };
        let mut tls = ClientTls::new().ca_file(authority)?;
        if let (Some(certificate), Some(key)) = (path("cert"), path("key")) {
            tls = tls.client_certificate_files(certificate, key)?;
        }
        if let Some(name) = self.text("server-name") {
            tls = tls.server_name(name);
        }
        Ok(Some(tls))
    }

    /// Checks that the URL and the TLS options match. If a flag replaces a profile's URL with a URL without TLS, drops
    /// the profile's TLS options.
    fn check(&mut self) -> Result<(), String> {
        self.values
            .retain(|name, it| !it.value.is_empty() || ["url", PROFILE].contains(name));
        if let Some(auth) = self.values.get("auth") {
            let parts = auth.text()?.split_once(':');
            // Do not repeat the value, because it may be a password.
            if !parts.is_some_and(|(user, password)| !user.is_empty() && !password.is_empty()) {
                return Err(format!(
                    "auth ({}) must be USER:PASSWORD, and neither may be empty",
                    auth.source
                ));
            }
        }
        let (url, source) = match self.values.get("url") {
            Some(url) => (url.text()?.to_owned(), url.source.clone()),
            None => (String::new(), SettingSource::default()),
        };
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        if !scheme.ends_with("+tls") {
            for name in ["ca", "cert", "key", "server-name"] {
                let Some(value) = self.values.get(name) else {
                    continue;
                };
                if value.source.rank >= source.rank {
                    return Err(format!(
                        "{name} ({}) is for a server with TLS: give a URL that asks for it, such as \
                         lockkeeper+tls://HOST:PORT",
                        value.source
                    ));
                }
                self.values.remove(name);
            }
            return Ok(());
        }
        let has = |name| self.values.contains_key(name);
        if !has("ca") {
            return Err(format!(
                "the URL ({source}) asks for TLS, and there is no certificate authority by which to verify the server: \
                 give it with --ca, LOCKKEEPER_CA or `ca` in a profile"
            ));
        }
        for (name, missing) in [("cert", "key"), ("key", "cert")] {
            if has(name) && !has(missing) {
                let source = &self.values[name].source;
                return Err(format!(
                    "{name} ({source}) needs {missing}: give both, or neither"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn shown(&self, local: Option<&str>) -> String {
        let mut rows = Vec::new();
        if let Some(url) = local {
            rows.push((
                "url",
                escaped(url),
                "default: this user's own store on this machine".into(),
            ));
        }
        for name in [PROFILE].into_iter().chain(NAMES) {
            let Some(Value { value, source }) = self.values.get(name) else {
                continue;
            };
            let text = value.to_string_lossy();
            let text = match name {
                "url" if local.is_some() => continue,
                "auth" => match text.split_once(':') {
                    Some((user, _)) => format!("{}:(hidden)", escaped(user)),
                    None => "(hidden)".into(),
                },
                _ => escaped(&text),
            };
            rows.push((name, text, source.to_string()));
        }
        let width = rows.iter().map(|(_, text, _)| text.chars().count()).max();
        let width = width.unwrap_or_default().min(60);
        let rows = rows.iter().map(|(name, text, source)| {
            let fill = width.saturating_sub(text.chars().count());
            format!("{name:<11}  {text}{:fill$}  {}\n", "", escaped(source))
        });
        rows.collect()
    }

    pub(super) fn shown_files(&self) -> String {
        let rows = self.files.iter().map(|file| {
            let found = match file.exists() {
                true => "exists",
                false => "does not exist",
            };
            format!(
                "{:<11}  {}  {found}\n",
                "file",
                escaped(&file.display().to_string())
            )
        });
        rows.collect()
    }

    pub(super) fn hand_down(&self, command: &mut std::process::Command) {
        for name in NAMES {
            match self.values.get(name) {
                Some(value) => command.env(variable(name), &value.value),
                None => command.env_remove(variable(name)),
            };
        }
        // Prevent the child from adding the values of a profile.
        command.arg("--profile=");
        if self.url().is_none() {
            command.arg("--url=");
        }
    }
}

impl Value {
    fn text(&self) -> Result<&str, String> {
        let text = self.value.to_str();
        text.ok_or_else(|| format!("{} is not UTF-8", self.source))
    }
}

fn add(values: &mut BTreeMap<&'static str, Value>, profile: &Profile) {
    let source = SettingSource {
        rank: Rank::Profile,
        name: profile.to_string(),
    };
    for (name, value) in &profile.values {
        values.entry(*name).or_insert_with(|| Value {
            value: value.clone(),
            source: source.clone(),
        });
    }
}
