//! Runs the real command.

mod access;
mod backups;
mod bench;
mod completions;
mod config;
#[cfg(target_os = "linux")]
mod dashboard;
mod digest;
mod disk;
mod docs;
#[cfg(target_os = "linux")]
mod elect;
mod idle;
#[cfg(target_os = "linux")]
mod local;
mod locks;
mod metrics;
mod operators;
mod permits;
#[cfg(target_os = "linux")]
mod quiet;
mod revoke;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod running;
mod salvage;
#[cfg(target_os = "linux")]
mod secured;
mod serve;
mod server;
mod stops;
mod stores;
mod support;
mod tls;
#[cfg(target_os = "linux")]
mod top;
mod unix;
mod urls;
#[cfg(target_os = "linux")]
mod waiter;
mod warden;
#[cfg(target_os = "linux")]
mod watchdog;

use std::process::Command;

use support::*;

#[test]
fn wrong_usage_is_told_from_failure() {
    for arguments in [&["backup", "only-one"][..], &["burn"], &[], &["inspect"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        let output = command.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    let help = success(&lockkeeper(&[&"--help"]));
    assert!(
        help.contains("backup") && help.contains("inspect"),
        "{help}"
    );
}
