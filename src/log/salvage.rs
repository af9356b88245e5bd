//! Salvage of a damaged data directory: copies everything up to the first damage into a new directory.
//!
//! The new store is the original as it was at one earlier moment. Its fencing tokens continue above all tokens of the
//! original, including those in the lost part (invariant 5).

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
use super::lock::{self, LockOwner};
use super::recovery::{self, Completeness, Facts, LogSource, Start, Tail, Undamaged, bare_core};
use super::segment::{Header, log_name, log_number};
use super::snapshot::{self, Form, Head, Loaded, snapshot_zxid};
use super::{epoch, identity};
use crate::core::{Core, Damage};
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

/// Result of a salvage. `to_string()` formats it for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvage {
    /// Summary of the new store.
    pub summary: Summary,
    /// The last transaction of the original that the new store has.
    pub read_to: Zxid,
    /// The snapshot that the content is based on. `None` if the content was read only from the log.
    pub snapshot: Option<String>,
    /// Places that cannot be read. Damage in a snapshot causes no loss if the log has the same content.
    pub problems: Vec<Problem>,
    /// The lost part. `None` if everything was read.
    pub loss: Option<Loss>,
    /// True if a process had the original open.
    pub in_use: bool,
}

/// The part of a store that is known to be lost. The damage may hide further losses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The first damage. Everything after it is lost.
    pub damage: Problem,
    /// The last transaction known to be lost.
    pub last_zxid: Option<Zxid>,
    /// Number of lost transactions that can still be read after the damage. The damaged place itself may contain more.
    pub transactions: u64,
    /// The lost places, ordered by file.
    pub places: Vec<LostPlace>,
}

/// A part of a file that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPlace {
    /// The file.
    pub file: PathBuf,
    /// Offset of the first lost byte.
    pub offset: u64,
    /// Number of bytes from `offset` to the end of the written part of the file. `None` if the file is missing.
    pub bytes: Option<u64>,
}

/// Copies the readable content of the store in the directory `dir`, up to the first damage, into the directory `new`,
/// which must be empty or missing. Only reads `dir`.
///
/// Starts with the newest readable snapshot and continues with the log, up to the first frame that is damaged, missing
/// or unreadable. Leaves out all later frames, because they may depend on this frame.
///
/// The store in `new` continues above all zxids that the original can have assigned, including the lost part. Opening
/// `new` ends the sessions of other processes, as after a [`restore`](crate::disk::restore).
///
/// Blocks the thread, and needs as much memory as the store's content.
///
/// # Errors
/// Nothing is left in `new` after an error.
///
/// - [`Error::BadArguments`] if `new` is not empty or is inside `dir`.
/// - [`Error::NotAStore`] or [`Error::StoreTooNew`] if `dir` is not a store or is from a newer version.
/// - [`Error::StoreDamaged`] if nothing can be salvaged, because no snapshot is readable and the log does not reach
///   back to the store's start.
/// - [`Error::DiskFull`] or [`Error::StoreFailed`] if `new` cannot be written. [`Error::StoreFailed`] is also returned
///   if permission to read a file in `dir` is missing.
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
    // Check before the long read of the directory. `create_store` checks again under the lock.
    check_empty(new, "")?;
    let is_whole = |read: &Result<Reading>| matches!(read, Ok(read) if read.damage.is_none());
    let read = recovery::read_in_use(&view, is_whole, || Reading::of(&Sectors::new(view.clone())))?;
    let facts = read.facts_of_copy(dir, latest_ms(&view))?;
    let head = backup::head(read.store, facts, epoch::of_clock(now_ms()));
    let bytes = create_store(new, &head, &read.core)?;
    // Two salvages in the same millisecond would assign the same zxids, so wait until this millisecond is over.
    std::thread::sleep(Duration::from_millis(1));
    Ok(Salvage {
        summary: summary(&head, &read.core, bytes),
        read_to: read.facts.zxid,
        loss: read.loss(&view),
        snapshot: read.snapshot,
        problems: read.problems,
        in_use: !matches!(lock::holder(dir), Ok(LockOwner::Unlocked) | Err(_)),
    })
}

/// Salvages a simulated disk. Returns false and writes nothing if the readable content lacks the znode `is_needed`.
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

struct Reading {
    store: [u8; 16],
    core: Core,
    snapshot: Option<String>,
    facts: Facts,
    tail: Tail,
    damage: Option<Problem>,
    problems: Vec<Problem>,
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
        let source = LogSource { disk, store, start };
        let Undamaged {
            facts,
            tail,
            damage,
        } = recovery::recover_undamaged(&source, &mut |txn| core.replay(txn))?;
        let damage = damage.map(damage_of).transpose()?;
        let snapshot = loaded.map(|(name, _)| name);
        if damage.is_some() {
            // Read again up to the last good frame, because the core may have some transactions of the damaged frame.
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

    fn facts_of_copy(&self, dir: &Path, now_ms: i64) -> Result<Facts> {
        let Seen { facts: seen, .. } = &self.seen;
        // The lost part may have reserved later epochs, so use the highest epoch found anywhere. If that reservation
        // cannot be read, the highest zxid shows at least the epoch in use.
        let reserved = self.facts.epoch.max(seen.epoch).max(epoch::of(seen.zxid));
        let zxid = epoch::beyond(reserved, epoch::of_clock(now_ms), now_ms).max(seen.zxid);
        epoch::check(zxid, || dir.to_owned())?;
        let known = self.facts.allowed_timeout_ms;
        let allowed_timeout_ms = match self.damage {
            // 0 means that the store was never served. After damage this is uncertain, because a lost record may state
            // another value.
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
            // The lost part may contain releases and acquisitions of locks, so no session lives on.
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

fn damage_of(error: Error) -> Result<Problem> {
    match error {
        // A newer version has written this file and can read it, so the file is not damaged.
        error @ Error::StoreTooNew { .. } => Err(error),
        other => Ok(Problem::from(other)),
    }
}

/// Missing permissions are not damage, so check that every file may be read.
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

/// Reads the id of the store from `STORE`, or else takes the most frequent id in the other files.
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

/// Returns a problem if an unreadable place after the end of the log may hide frames.
fn unreadable_behind(disk: &dyn Disk, tail: Tail, unreadable: &[Unreadable]) -> Option<Problem> {
    let is_behind = |place: &&Unreadable| {
        let number = log_number(&place.name);
        number > Some(tail.segment) || number == Some(tail.segment) && place.end() > tail.offset
    };
    Some(unreadable.iter().find(is_behind)?.problem(disk))
}

/// Longest time that the clock may plausibly have been ahead. A file date further in the future is ignored.
const MAX_CLOCK_ERROR_MS: i64 = 365 * 24 * 60 * 60 * 1000;

/// Returns the current time, or the newest file's date if that is later, because the clock may have been ahead when the
/// original reserved its last epochs.
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
