//! The memory of the machine.

use rustix::system::sysinfo;

pub(super) fn bytes() -> u64 {
    let machine = sysinfo();
    u64::from(machine.mem_unit).saturating_mul(machine.totalram)
}
