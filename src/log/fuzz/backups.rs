//! Fuzzer of backups: restores any bytes as a backup.

use super::corpus::Inputs;
use super::snapshots::{filled, head, with_valid_checksums, written};
use crate::core::Core;
use crate::log::backup::{SIMULATED, backup_on, restore_on};
use crate::log::disk::Disk;
use crate::log::epoch;
use crate::log::sim::SimDisk;
use crate::log::snapshot::{Form, Head};

const NOW_MS: i64 = 1_700_000_000_000;

#[cfg(feature = "simulation")]
pub(super) fn restored(bytes: &[u8]) -> Option<SimDisk> {
    let (from, restored) = (SimDisk::new(), SimDisk::new());
    from.put(SIMULATED, with_valid_checksums(bytes));
    restore_on(&from, &restored, NOW_MS).ok()?;
    Some(restored)
}

/// Restores bytes as a backup with corrected checksums. Returns true for a valid backup.
pub(crate) fn backup(bytes: &[u8]) -> bool {
    let from = SimDisk::new();
    from.put(SIMULATED, with_valid_checksums(bytes));
    let restored = SimDisk::new();
    if restore_on(&from, &restored, NOW_MS).is_err() {
        let created = restored.list().expect("the disk does not fail");
        assert!(created.is_empty(), "a refused restore creates {created:?}");
        return false;
    }
    let (again, last) = (SimDisk::new(), SimDisk::new());
    backup_on(&restored, &again, NOW_MS).expect("what was restored can be backed up");
    if let Err(error) = restore_on(&again, &last, NOW_MS + 1) {
        assert!(
            is_at_the_end(&again),
            "its backup cannot be restored: {error}"
        );
    }
    true
}

/// Returns true if a backup is close to the last possible zxid. Restoring it may fail, because each restore skips many
/// epochs.
fn is_at_the_end(backup: &SimDisk) -> bool {
    let bytes = backup.content(SIMULATED).unwrap_or_default();
    let head =
        Head::decode(&bytes, Form::Backup).expect("a backup that was written begins with a head");
    epoch::is_nearly_exhausted(head.start.facts.zxid)
}

pub(crate) fn backups() -> Inputs {
    let (empty, full) = (Core::new(super::options()), filled());
    let all = written(Form::Backup, &head(&full), &full);
    let cut = all[..all.len() - 20].to_vec();
    vec![
        ("empty", written(Form::Backup, &head(&empty), &empty)),
        ("all", all),
        ("cut", cut),
    ]
}
