//! Recovery of whole, torn and damaged logs.

mod bytes;
mod crashes;
mod refusals;
mod whole;

use super::writing::*;
use super::*;
use crate::log::disk::Disk;
use crate::log::segment::log_name;
use crate::log::sim::SimDisk;
use crate::model::error::Error;

fn goes_on(disk: &SimDisk, context: &str) {
    let mut log = Writing::open(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    log.commit(&[5, 30]);
    let (txns, recovered) = recovered(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(txns, log.txns, "{context}");
    assert_eq!(recovered.facts.zxid, log.zxid(), "{context}");
}

fn refused(disk: &SimDisk, context: &str) -> (String, u64) {
    match recovered(disk) {
        Err(Error::StoreDamaged { file, offset, .. }) => {
            let name = file.file_name().unwrap().to_str().unwrap();
            (name.to_owned(), offset)
        }
        Err(other) => panic!("{context}: {other}"),
        Ok((txns, _)) => panic!("{context}: {} transactions were read", txns.len()),
    }
}
