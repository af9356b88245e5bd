//! Locks for the tests of live views.

use std::sync::OnceLock;

use lockkeeper::{
    FencingToken, LockChange, LockInfo, LockOptions, LockPath, LockQueue, Mutex, SessionId,
    ZnodePath, list_locks, lock_queue,
};

pub(crate) const NOW_MS: i64 = 1_800_000_000_000;

/// Returns a lock and its queue from a store in memory. Tests modify copies, because only the library can construct
/// these types.
pub(crate) fn sample() -> &'static (LockInfo, LockQueue) {
    static SAMPLE: OnceLock<(LockInfo, LockQueue)> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let read = async {
            let client = lockkeeper::connect("memory:samples").await?;
            let options = LockOptions::new().label("sample").backtrace();
            let mutex = Mutex::new(&client, "/locks/a")?;
            let _guard = mutex.lock_with(options).await.expect("it is free");
            let mut list = list_locks(&client, "/").await?;
            let queue = lock_queue(&client, "/locks/a").await?;
            Ok::<_, lockkeeper::Error>((list.locks.remove(0), queue))
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(read).unwrap()
    })
}

pub(crate) fn path(name: &str) -> ZnodePath {
    let path = LockPath::new("/locks").unwrap().key(name);
    path.as_znode().clone()
}

pub(crate) fn token(number: i64) -> FencingToken {
    FencingToken::from_i64(number).unwrap()
}

/// Returns a lock whose only holder has held it for `held_s` seconds and expects to hold it for 30 s.
pub(crate) fn lock(name: &str, number: i64, held_s: i64, waiters: usize) -> LockInfo {
    let mut lock = sample().0.clone();
    lock.path = path(name);
    lock.waiters = waiters;
    let holder = &mut lock.holders[0];
    holder.path = lock.path.join(&format!("_c_{number}-lock-0")).unwrap();
    holder.fencing_token = token(number);
    // The real session id has random digits, which a filter for numbers might match.
    holder.owner = SessionId(0x1_0000_0000_0000);
    // The minute that the holder waited before the grant is not hold time.
    holder.joined_at_ms = NOW_MS - (held_s + 60) * 1_000;
    holder.granted_at_ms = Some(NOW_MS - held_s * 1_000);
    let metadata = holder.metadata.as_mut().unwrap();
    (metadata.host, metadata.pid) = (Some("db1".into()), Some(48_213));
    metadata.label = Some(format!("label of {name}"));
    metadata.expected_hold_ms = Some(30_000);
    lock
}

pub(crate) fn change(locks: impl IntoIterator<Item = LockInfo>, freed: &[&str]) -> LockChange {
    let mut change = LockChange::default();
    change.changed = locks.into_iter().collect();
    change.freed = freed.iter().map(|name| path(name)).collect();
    change
}
