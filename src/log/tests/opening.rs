//! Folders that are not opened.

use std::sync::Arc;

use crate::core::Core;
use crate::error::Error;
use crate::log::disk::Disk;
use crate::log::fuzz;
use crate::log::sim::SimDisk;
use crate::log::{self, Options, Sizes};

#[test]
fn a_folder_of_other_things_is_no_store_and_stays_as_it_is() {
    let disk = SimDisk::new();
    disk.put("thesis.txt", b"years of work".to_vec());
    let options = Options {
        syncs: true,
        keeps_sessions: true,
        longest_timeout_ms: 40_000,
        sizes: Sizes::default(),
    };
    let same: Arc<dyn Disk> = Arc::new(disk.clone());
    match log::open(&same, &options, &|| Core::new(fuzz::options()), 0) {
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
