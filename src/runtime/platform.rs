//! Differences between operating systems: clocks, thread priorities and files.
//!
//! Each system has a module with the same functions, and no other module refers to a system. Every system needs a clock
//! that includes suspended time. Otherwise a holder would still consider its lock held after the machine has slept past
//! the session timeout (invariant 6).

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use self::linux::*;
#[cfg(target_os = "macos")]
pub(crate) use self::macos::*;
#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub(crate) use self::windows::*;

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "macos",
    windows
)))]
compile_error!("lockkeeper-store does not know which clock of this system counts suspended time");

#[cfg(all(not(unix), feature = "server"))]
compile_error!("the feature `server` of lockkeeper-store needs a Unix system");

/// Returns bytes from the system's random source, because session passwords must not be guessable.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a source of randomness");
    bytes
}

pub(crate) fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clocks_run_forward_and_the_date_is_the_standard_librarys() {
        let (boot, awake) = (super::boot_nanos(), super::awake_nanos());
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(super::boot_nanos() >= boot + 2_000_000);
        assert!(super::awake_nanos() >= awake + 2_000_000);
        let date_ms = || {
            let date = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            date.as_millis() as i64
        };
        // A coarse date may lag by one system tick (10 ms).
        let (before, ours, after) = (date_ms(), super::unix_ms(), date_ms());
        assert!(
            (before - 1_000..=after).contains(&ours),
            "{before} {ours} {after}"
        );
    }
}
