//! The read-write lock.

mod convert;
mod endings;
pub(crate) mod gate;
mod known_bugs;
mod model;
mod order;
mod races;
mod wakes;

use lockkeeper::{Client, Guard, LockOptions, ReadGuard, RwLock, Upgrade, WriteGuard};

use crate::common::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}
use Side::{Read, Write};

pub(crate) enum Had {
    Reader(ReadGuard),
    Writer(WriteGuard),
}

impl Had {
    fn side(&self) -> Side {
        match self {
            Self::Reader(_) => Read,
            Self::Writer(_) => Write,
        }
    }

    fn guard(&self) -> &Guard {
        match self {
            Self::Reader(guard) => guard,
            Self::Writer(guard) => guard,
        }
    }

    fn into_guard(self) -> Guard {
        match self {
            Self::Reader(guard) => guard.into_guard(),
            Self::Writer(guard) => guard.into_guard(),
        }
    }
}

async fn lock(world: &World) -> RwLock {
    lock_of(&world.client().await)
}

fn lock_of(client: &Client) -> RwLock {
    RwLock::new(client, LOCK).unwrap()
}

async fn take(lock: &RwLock, side: Side) -> Guard {
    match side {
        Read => lock.read().await.unwrap().into_guard(),
        Write => lock.write().await.unwrap().into_guard(),
    }
}

async fn queue_up(world: &World, lock: &RwLock, side: Side) -> Waiter {
    queue_up_with(world, lock, side, LockOptions::new()).await
}

async fn queue_up_with(world: &World, lock: &RwLock, side: Side, options: LockOptions) -> Waiter {
    let lock = lock.clone();
    let wait = async move {
        match side {
            Read => Ok(lock.read_with(options).await?.into_guard()),
            Write => Ok(lock.write_with(options).await?.into_guard()),
        }
    };
    world.queue_up_at(LOCK, wait).await
}

async fn queue_up_all<const N: usize>(world: &World, sides: [Side; N]) -> [Waiter; N] {
    let mut waiters = Vec::new();
    for side in sides {
        waiters.push(queue_up(world, &lock(world).await, side).await);
    }
    waiters.try_into().expect("as many as there are sides")
}

/// Waits until all messages to and from a client have arrived, including their consequences.
async fn settled(world: &World, locks: &[RwLock]) {
    loop {
        let mut before = Vec::new();
        for lock in locks {
            before.push(world.traffic_of(lock.client()));
        }
        for lock in locks {
            let session = lock.client().current_session();
            session.exists(&path(LOCK)).await.unwrap();
        }
        tokio::task::yield_now().await;
        let quiet = locks.iter().zip(before).all(|(lock, before)| {
            let between = world.traffic_of(lock.client()) - before;
            let asked = between.requests(lockkeeper::testing::RequestKind::Any);
            (asked, between.replies, between.events) == (1, 1, 0)
        });
        if quiet {
            return;
        }
    }
}

fn upgraded(upgrade: Upgrade) -> WriteGuard {
    match upgrade {
        Upgrade::Upgraded(guard) => guard,
        Upgrade::Refused(guard) => panic!("{guard:?} was refused"),
    }
}

fn refused_upgrade(upgrade: Upgrade) -> ReadGuard {
    match upgrade {
        Upgrade::Refused(guard) => guard,
        Upgrade::Upgraded(guard) => panic!("{guard:?} was upgraded"),
    }
}
