//! Salvage of a damaged data directory: what can be read of it, up to the first damage, as a new directory.
//!
//! The content is that of the store at an earlier moment, never a mixture of moments. The new store's fencing tokens
//! continue above those of the lost part, too (invariant 5), and its sessions end when it is opened.

mod lost;
mod sectors;
mod show;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use self::lost::Seen;
use self::sectors::{Sectors, Unreadable};
use super::backup::{self, Summary, check_empty, check_outside, create_store, now_ms, summary};
use super::disk::{Disk, View, damaged, failed};
use super::inspect::Problem;
use super::lock::{self, Holder};
use super::recovery::{self, Completeness, Facts, Source, Start, Tail, Undamaged, bare_core};
use super::segment::{Header, log_name, log_number};
use super::snapshot::{self, Form, Head, Loaded, snapshot_zxid};
use super::{epoch, identity};
use crate::core::{Core, Damage};
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

/// Result of a salvage. Its text (`to_string()`) is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvage {
    /// Summary of the new store.
    pub summary: Summary,
    /// The last transaction of the original that the new store has.
    pub read_to: Zxid,
    /// The snapshot that the content begins with; `None` if it was read from the log alone.
    pub snapshot: Option<String>,
    /// Places that cannot be read. Those of a snapshot lose nothing if the log has its content.
    pub problems: Vec<Problem>,
    /// The lost part; `None` if everything was read.
    pub loss: Option<Loss>,
    /// True if a process had the original open.
    pub in_use: bool,
}

/// Part of a store that a salvage lost, as far as it can be known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The first damage: everything after it is lost.
    pub damage: Problem,
    /// The last transaction that is known to be lost. `None` if none is known: the damage may have hidden some.
    pub last_zxid: Option<Zxid>,
    /// Number of transactions behind the damage that can still be read. Those in the damaged place itself come on top.
    pub transactions: u64,
    /// The lost places, in order.
    pub places: Vec<LostPlace>,
}

/// A place of which nothing was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPlace {
    /// The file.
    pub file: PathBuf,
    /// The offset of its first lost byte.
    pub offset: u64,
    /// Number of bytes up to the end of what was written there, as far as it can be known. `None` if the file is missing.
    pub bytes: Option<u64>,
}

/// Writes what can be read of the store in the directory `dir`, up to the first damage, into the directory `new`, which
/// is created if it is missing and must be empty otherwise. `dir` is only read.
///
/// The content begins with the newest snapshot that can be read and goes on with the log, up to the first frame that
/// is damaged or missing. Places that the disk fails to read are damage. Frames behind it are left out, even if they can be read: they may depend on the missing one.
///
/// The store that is opened in `new` continues above all zxids that the original can have assigned, also in the lost
/// part, and ends the sessions of other processes, as after a [`restore`](crate::disk::restore).
///
/// It needs as much memory as the store's content while it runs, and blocks the thread.
///
/// # Errors
/// [`Error::BadArguments`] when `new` is not empty or inside `dir`; [`Error::NotAStore`]; [`Error::StoreTooNew`];
/// [`Error::StoreDamaged`] when no snapshot can be read and the log does not reach back to the store's beginning: then
/// nothing can be salvaged; [`Error::DiskFull`] and [`Error::StoreFailed`], also where a file may not be read. After an
/// error nothing is left in `new`.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("lockkeeper-salvage-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let (dir, new) = (folder.join("data"), folder.join("new"));
/// use lockkeeper_store::{Store, disk};
///
/// drop(Store::file(&dir)?);
/// let salvaged = disk::salvage(&dir, &new)?;
/// assert!(salvaged.loss.is_none() && salvaged.read_to < salvaged.summary.zxid);
/// println!("{salvaged}");
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), lockkeeper_store::Error>(())
/// ```
pub fn salvage(dir: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<Salvage> {
    let (dir, new) = (dir.as_ref(), new.as_ref());
    let view = View::new(dir);
    check_readable(&view)?;
    check_outside(dir, new)?;
    // Before the directory is read, which may take long, and again under the lock.
    check_empty(new, "")?;
    let is_whole = |read: &Result<Reading>| matches!(read, Ok(read) if read.damage.is_none());
    let read = recovery::read_in_use(&view, is_whole, || Reading::of(&Sectors::new(view.clone())))?;
    let facts = read.facts_of_copy(dir, latest_ms(&view))?;
    let head = backup::head(read.store, facts, epoch::of_clock(now_ms()));
    let bytes = create_store(new, &head, &read.core)?;
    // Two salvages of one directory must not assign the same zxids, and the millisecond is what distinguishes them.
    std::thread::sleep(Duration::from_millis(1));
    Ok(Salvage {
        summary: summary(&head, &read.core, bytes),
        read_to: read.facts.zxid,
        loss: read.loss(&view),
        snapshot: read.snapshot,
        problems: read.problems,
        in_use: !matches!(lock::holder(dir), Ok(Holder::Unlocked) | Err(_)),
    })
}

/// Writes what can be read of the store on one disk, up to the first damage, to another, which is empty. Returns false, and
/// writes nothing, if `is_needed` is not a path of it.
///
/// # Errors
/// Those of [`salvage`].
#[cfg(any(test, feature = "simulation"))]
pub(crate) fn salvage_on(
    from: &super::sim::SimDisk,
    to: &dyn Disk,
    is_needed: &str,
    now_ms: i64,
) -> Result<bool> {
    let read = Reading::of(&Sectors::new(from.clone()))?;
    if !read
        .core
        .node_images()
        .any(|image| image.path.as_str() == is_needed)
    {
        return Ok(false);
    }
    let facts = read.facts_of_copy(&from.path(""), now_ms)?;
    let head = backup::head(read.store, facts, epoch::of_clock(now_ms));
    backup::fill(to, &head, &read.core).map(|_| true)
}

/// Content of a directory up to its first damage.
struct Reading {
    store: [u8; 16],
    core: Core,
    snapshot: Option<String>,
    /// Facts at the end of what was read.
    facts: Facts,
    tail: Tail,
    /// The first damage of the log.
    damage: Option<Problem>,
    /// All places that cannot be read, this one included.
    problems: Vec<Problem>,
    /// The frames that can be seen behind the end.
    seen: Seen,
}

impl Reading {
    fn of<D: Disk>(disk: &Sectors<D>) -> Result<Self> {
        let mut problems = Vec::new();
        let store = store_of(disk, &mut problems)?;
        let (mut core, loaded) = newest_snapshot(disk, store, &mut problems)?;
        let start = loaded
            .as_ref()
            .map_or_else(Start::default, |(_, loaded)| loaded.head.start);
        let source = Source { disk, store, start };
        let Undamaged {
            facts,
            tail,
            damage,
        } = recovery::recover_undamaged(&source, &mut |txn| core.replay(txn))?;
        let damage = damage.map(damage_of).transpose()?;
        let snapshot = loaded.map(|(name, _)| name);
        if damage.is_some() {
            // Read again up to the last good frame: the core may have the beginning of a damaged one.
            core = bare_core();
            if let Some(name) = &snapshot {
                load(disk, name, &mut core)?;
            }
            recovery::recover_undamaged(&source, &mut |txn| match txn.zxid > facts.zxid {
                true => Err(Damage("it is beyond the damage".into())),
                false => core.replay(txn),
            })?;
        }
        let tail = tail.unwrap_or(Tail {
            segment: start.segment,
            offset: super::segment::HEADER_BYTES,
        });
        let seen = Seen::behind(disk, &store, tail, facts.chain)?;
        let unreadable = disk.unreadable();
        let damage = damage
            .or_else(|| short_of_a_snapshot(disk, &facts, tail))
            .or_else(|| unreadable_behind(disk, tail, &unreadable));
        problems.extend(damage.clone());
        for place in &unreadable {
            let problem = place.problem(disk);
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        Ok(Self {
            store,
            core,
            snapshot,
            facts,
            tail,
            damage,
            problems,
            seen,
        })
    }

    /// Returns the facts with which the store begins that is salvaged from this directory.
    ///
    /// # Errors
    /// `StoreFailed` if it could not be opened, since zxids end.
    fn facts_of_copy(&self, dir: &Path, now_ms: i64) -> Result<Facts> {
        let Seen { facts: seen, .. } = &self.seen;
        // The lost part may have reserved later epochs than any that can be read.
        let reserved = self.facts.epoch.max(seen.epoch).max(epoch::of(seen.zxid));
        // Above everything that the original may have assigned, so that tokens do not go back (invariant 5).
        let zxid = epoch::beyond(reserved, epoch::of_clock(now_ms), now_ms).max(seen.zxid);
        epoch::check(zxid, || dir.to_owned())?;
        let known = self.facts.allowed_timeout_ms;
        let allowed_timeout_ms = match self.damage {
            // "Never served" holds for the part that was read alone.
            Some(_) => known
                .max(seen.allowed_timeout_ms)
                .filter(|allowed| *allowed > 0),
            None => known,
        };
        Ok(Facts {
            chain: 0,
            zxid,
            epoch: epoch::of(zxid) - 1,
            longest_timeout_ms: self.facts.longest_timeout_ms.max(seen.longest_timeout_ms),
            // Locks may have been released and acquired since, so no session lives on.
            is_clean: false,
            completeness: Completeness::Restored,
            allowed_timeout_ms,
        })
    }

    fn loss(&self, disk: &dyn Disk) -> Option<Loss> {
        let damage = self.damage.clone()?;
        let last = self.seen.facts.zxid;
        Some(Loss {
            places: self.seen.places(disk, self.tail, &damage),
            last_zxid: (last > self.facts.zxid).then_some(last),
            transactions: self.seen.txns,
            damage,
        })
    }
}

/// Returns the damage that an error of reading is; an error that is none ends the salvage.
fn damage_of(error: Error) -> Result<Problem> {
    match error {
        // A newer version has written it, and can read it.
        error @ Error::StoreTooNew { .. } => Err(error),
        other => Ok(Problem::from(other)),
    }
}

/// Checks that every file may be read: what this user may not read is not damaged.
fn check_readable(view: &View) -> Result<()> {
    let not_a_store = |error: io::Error| Error::NotAStore {
        path: view.path(""),
        reason: error.to_string(),
    };
    for name in view.list().map_err(not_a_store)? {
        let is_needed =
            log_number(&name).is_some() || snapshot_zxid(&name).is_some() || name == identity::NAME;
        match File::open(view.path(&name)) {
            Err(error) if is_needed && error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(view.path(&name), "cannot be opened", &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the id of the store: that of its file `STORE` or, where that cannot be read, of most other files.
fn store_of(disk: &dyn Disk, problems: &mut Vec<Problem>) -> Result<[u8; 16]> {
    match identity::read(disk) {
        Ok(Some(identity)) => return Ok(identity.store),
        Ok(None) => {}
        Err(error) => problems.push(damage_of(error)?),
    }
    let names = disk.list().unwrap_or_default();
    let ids: Vec<_> = names
        .iter()
        .filter_map(|name| {
            let file = disk.open(name).ok()?;
            if log_number(name).is_some() {
                return Some(Header::read(&*file).ok()?.ok()?.store);
            }
            snapshot_zxid(name)?;
            Some(Head::read(&*file, Form::Snapshot).ok()?.store)
        })
        .collect();
    let count = |id: &[u8; 16]| ids.iter().filter(|other| *other == id).count();
    let store = ids.iter().max_by_key(|id| count(id)).copied();
    let store = store.ok_or_else(|| Error::NotAStore {
        path: disk.path(""),
        reason: "no file in it tells the id of a store".into(),
    })?;
    if problems.is_empty() {
        problems.push(Problem {
            file: disk.path(identity::NAME),
            offset: 0,
            reason: "the file is missing".into(),
        });
    }
    Ok(store)
}

fn load(disk: &dyn Disk, name: &str, core: &mut Core) -> Result<Loaded> {
    let opened = disk.open(name).map_err(snapshot::Unreadable::from);
    opened
        .and_then(|file| snapshot::load(&*file, Form::Snapshot, core, &mut || Ok(())))
        .map_err(|unreadable| unreadable.of(disk.path(name)))
}

/// Loads the newest snapshot that can be read. Without any the log must reach back to the store's beginning.
fn newest_snapshot(
    disk: &dyn Disk,
    store: [u8; 16],
    problems: &mut Vec<Problem>,
) -> Result<(Core, Option<(String, Loaded)>)> {
    let mut newest_trouble = None;
    for name in recovery::snapshot_names(disk)? {
        let mut core = bare_core();
        let error = match load(disk, &name, &mut core) {
            Ok(loaded) if loaded.head.store == store => return Ok((core, Some((name, loaded)))),
            Ok(_) => damaged(disk, &name, 16, "it is a snapshot of another store"),
            Err(error) => error,
        };
        problems.push(damage_of(error.clone())?);
        newest_trouble.get_or_insert(error);
    }
    let begins = disk.open(&log_name(0)).is_ok();
    match newest_trouble {
        Some(trouble) if !begins => Err(trouble),
        None if !begins => Err(damaged(
            disk,
            &log_name(0),
            0,
            "the file is missing, and there is no snapshot",
        )),
        _ => Ok((bare_core(), None)),
    }
}

/// Returns the damage of a log that ends before a snapshot that cannot be read.
fn short_of_a_snapshot(disk: &dyn Disk, facts: &Facts, tail: Tail) -> Option<Problem> {
    let names = recovery::snapshot_names(disk).unwrap_or_default();
    let newest = names.first().and_then(|name| snapshot_zxid(name))?;
    let reason = format!(
        "the log ends at zxid {}, and a snapshot that cannot be read goes up to {newest}",
        facts.zxid
    );
    (newest > facts.zxid).then(|| Problem {
        file: disk.path(&log_name(tail.segment)),
        offset: tail.offset,
        reason,
    })
}

/// Returns the damage of a log with a place behind its end that cannot be read: it may hide frames.
fn unreadable_behind(disk: &dyn Disk, tail: Tail, unreadable: &[Unreadable]) -> Option<Problem> {
    let is_behind = |place: &&Unreadable| {
        let number = log_number(&place.name);
        number > Some(tail.segment) || number == Some(tail.segment) && place.end() > tail.offset
    };
    Some(unreadable.iter().find(is_behind)?.problem(disk))
}

/// A file that was changed later than this from now on tells nothing about a clock.
const MAX_CLOCK_ERROR_MS: i64 = 365 * 24 * 60 * 60 * 1000;

/// Returns the time of the salvage, or that of the newest change of a file if it is later: the clock may have been ahead
/// when the original reserved its last epochs, and have gone back since.
fn latest_ms(view: &View) -> i64 {
    let now_ms = now_ms();
    let changed = |name: &String| {
        let modified = fs::metadata(view.path(name)).ok()?.modified().ok()?;
        let since = modified.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    };
    let names = view.list().unwrap_or_default();
    let changes = names.iter().filter_map(changed);
    changes
        .filter(|ms| *ms < now_ms + MAX_CLOCK_ERROR_MS)
        .fold(now_ms, i64::max)
}
