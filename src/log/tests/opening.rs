//! Opening of folders: refusals, and logs of older versions.

use std::sync::Arc;

use crate::core::Core;
use crate::log::disk::Disk;
use crate::log::fuzz;
use crate::log::open::Opened;
use crate::log::sim::SimDisk;
use crate::log::testing::TestLog;
use crate::log::{self, Options, Record, Sizes};
use crate::model::error::{Error, Result};
use crate::runtime::clock::Clock;

fn opened(disk: &SimDisk) -> Result<Opened> {
    let options = Options {
        syncs: true,
        keeps_sessions: true,
        longest_timeout_ms: 40_000,
        sizes: Sizes::new(1 << 16, 1 << 16),
    };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    log::open(
        &disk,
        &options,
        &|| Core::new(fuzz::options()),
        &Clock::new_virtual(),
    )
}

/// Old versions wrote no session terms, and may have granted longer timeouts than they recorded.
#[test]
fn a_log_that_does_not_say_what_it_keeps_is_not_trusted_after_a_kill() {
    let disk = SimDisk::new();
    TestLog::new(disk.clone());
    for start in 1..=2 {
        let remote = opened(&disk).unwrap().remote;
        assert!(!remote.live_on && remote.owe_pause(), "start {start}");
        assert_eq!(remote.longest_timeout_ms, 40_000, "start {start}");
        assert_eq!(remote.ended, 1, "start {start}");
    }
    let disk = SimDisk::new();
    TestLog::new(disk.clone()).record(&Record::Clean);
    let remote = opened(&disk).unwrap().remote;
    assert!(remote.live_on && !remote.owe_pause());
    assert_eq!((remote.longest_timeout_ms, remote.ended), (30_000, 0));
}

#[test]
fn a_folder_of_other_things_is_no_store_and_stays_as_it_is() {
    let disk = SimDisk::new();
    disk.put("thesis.txt", b"years of work".to_vec());
    match opened(&disk) {
        Err(Error::NotAStore { path, reason }) => {
            assert_eq!(path, disk.path(""));
            assert!(reason.contains("thesis.txt"), "{reason}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
    assert_eq!(disk.list().unwrap(), ["thesis.txt"]);
    assert_eq!(disk.content("thesis.txt").unwrap(), b"years of work");
}
