//! Free ports of loopback for servers and proxies.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns an address that is free, and that nobody is given again.
///
/// The ports lie below those that the system gives to clients by itself: a client that connects again and again to a server
/// that is down could be given that very port, and be connected with itself.
pub(crate) fn free() -> SocketAddr {
    const FIRST: u16 = 12_000;
    const BLOCK: u16 = 64;
    const BLOCKS: u32 = 110;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let block = (std::process::id() % BLOCKS) as u16 * BLOCK;
    loop {
        let port = FIRST + block + NEXT.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
