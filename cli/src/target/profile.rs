//! Profiles: named stores in `~/.config/lockkeeper/config.toml` and `/etc/lockkeeper/client.toml`.
//!
//! ```toml
//! [profile.prod]
//! url = "lockkeeper+tls://locks.example:2281"
//! auth = "ann:secret"
//! ca = "ca.pem"
//! ```

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::local::home;

pub(super) const NAMES: [&str; 6] = ["url", "auth", "ca", "cert", "key", "server-name"];

const PATHS: [&str; 3] = ["ca", "cert", "key"];

const DEFAULT: &str = "default";

const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) values: BTreeMap<&'static str, OsString>,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "profile {} in {}", self.name, self.file.display())
    }
}

pub(super) fn files() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|it| !it.is_empty());
    let absolute = |path: &PathBuf| path.is_absolute();
    // Ignore relative paths, as the XDG Base Directory Specification requires.
    let config = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(absolute);
    let config = config.or_else(|| {
        let home = home().ok().filter(absolute);
        home.map(|home| home.join(".config"))
    });
    let own = config.map(|config| config.join("lockkeeper/config.toml"));
    own.into_iter()
        .chain(["/etc/lockkeeper/client.toml".into()])
        .collect()
}

/// Returns the profile with this name. Without a name, returns the profile `default` if it exists.
///
/// An unreadable file is an error even if another file has the profile, because skipping the file could select a
/// different store than other commands use.
pub(super) fn find(name: Option<&str>, files: &[PathBuf]) -> Result<Option<Profile>, String> {
    let mut known = Vec::new();
    for file in files {
        for profile in read(file)? {
            if profile.name == name.unwrap_or(DEFAULT) {
                return Ok(Some(profile));
            }
            known.push(profile.name);
        }
    }
    let Some(name) = name else { return Ok(None) };
    let files: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let known = match known.is_empty() {
        true => String::new(),
        false => format!(": there is {}", known.join(", ")),
    };
    Err(format!(
        "no profile \"{}\" in {}{known}",
        name.escape_debug(),
        files.join(" or ")
    ))
}

fn read(path: &Path) -> Result<Vec<Profile>, String> {
    let shown = path.display();
    let unreadable = |error| {
        format!(
            "{shown} cannot be read: {error}; name a store with --url, or use no profile with --profile="
        )
    };
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        file => file.map_err(unreadable)?,
    };
    // Check the opened file, because the path may lead to another file by now.
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() || about.len() > MAX_FILE_BYTES {
        return Err(format!("{shown} is not a configuration file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    let profiles = parse(path, &text)?;
    check_access(path, &about, &profiles)?;
    Ok(profiles)
}

/// Checks that no other user can choose the store or read a password.
fn check_access(path: &Path, about: &Metadata, profiles: &[Profile]) -> Result<(), String> {
    let (shown, mode) = (path.display(), about.mode() & 0o777);
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&about.uid()) {
        return Err(format!(
            "{shown} belongs to user {}, and this process to user {own}: is this the environment of another user, as with `sudo \
             -E`? Set HOME and XDG_CONFIG_HOME, or name a store with --url",
            about.uid()
        ));
    }
    if mode & 0o002 != 0 {
        return Err(format!(
            "{shown} can be written by every user (mode {mode:03o}), who could name another store: `chmod o-w {shown}`"
        ));
    }
    // Root may let a group read the machine's file, for example the group of a service.
    let others = if about.uid() == 0 { 0o007 } else { 0o077 };
    match profiles
        .iter()
        .find(|profile| profile.values.contains_key("auth"))
    {
        Some(profile) if mode & others != 0 => Err(format!(
            "{shown} has a password (`auth` of the profile {}) and can be read by other users (mode {mode:03o}): `chmod \
             go= {shown}`",
            profile.name
        )),
        _ => Ok(()),
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Profile>, String> {
    let at = |span: Range<usize>| {
        let line = text[..span.start].matches('\n').count() + 1;
        format!("{}:{line}", path.display())
    };
    let table = DeTable::parse(text).map_err(|error| {
        let place = at(error.span().unwrap_or_default());
        format!("{place}: {}", error.message())
    })?;
    let mut profiles = Vec::new();
    for (key, value) in table.get_ref() {
        let place = at(key.span());
        let DeValue::Table(named) = value.get_ref() else {
            return Err(unknown(&place, key.get_ref(), "[profile.NAME]"));
        };
        if key.get_ref() != "profile" {
            return Err(unknown(&place, key.get_ref(), "[profile.NAME]"));
        }
        for (name, values) in named {
            let place = at(name.span());
            let DeValue::Table(values) = values.get_ref() else {
                return Err(unknown(&place, name.get_ref(), "[profile.NAME]"));
            };
            let mut profile = Profile {
                name: name.get_ref().to_string(),
                file: path.to_owned(),
                values: BTreeMap::new(),
            };
            for (key, value) in values {
                let place = at(key.span());
                let known = NAMES.into_iter().find(|name| key.get_ref() == name);
                let name =
                    known.ok_or_else(|| unknown(&place, key.get_ref(), &NAMES.join(", ")))?;
                let value = match value.get_ref() {
                    DeValue::String(text) => checked(name, text, path),
                    _ => Err("a text is expected"),
                };
                let value = value.map_err(|why| format!("{place}: {name}: {why}"))?;
                profile.values.insert(name, value);
            }
            profiles.push(profile);
        }
    }
    Ok(profiles)
}

fn unknown(place: &str, key: &str, expected: &str) -> String {
    format!(
        "{place}: unknown key \"{}\": expected {expected}",
        key.escape_debug()
    )
}

/// Returns a value in its final form. A relative path is resolved in the folder of the file, not in the working
/// directory.
fn checked(name: &str, text: &str, file: &Path) -> Result<OsString, &'static str> {
    let is_path = PATHS.contains(&name);
    match text {
        "" => Err("a text that is not empty is expected"),
        _ if is_path && text.starts_with('~') => Err(
            "`~` is expanded by shells, and not here: write the whole path, or one from this file's folder",
        ),
        // With a relative path, each working directory would have its own store.
        _ if name == "url"
            && text
                .strip_prefix("file:")
                .is_some_and(|path| !path.starts_with('/')) =>
        {
            Err("the path of a folder is absolute here: file:/var/lib/app")
        }
        _ if is_path => {
            let folder = file.parent().unwrap_or(Path::new("/"));
            Ok(folder.join(text).into_os_string())
        }
        _ => Ok(OsStr::new(text).to_owned()),
    }
}
