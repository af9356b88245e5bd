//! Compares the semaphore with its model: the grants are equal, and nothing is left at the end.

use std::collections::{BTreeMap, VecDeque};

use lockkeeper::LostReason;
use lockkeeper::testing::RequestKind;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::harness::model::{CLIENTS, Model, clients, model_tests};

const FIRST_TOTAL: u32 = 3;

/// One operation. Places index what exists, modulo its length.
#[derive(Clone, Debug)]
enum Step {
    Acquire { client: usize, count: u32 },
    Try { client: usize, count: u32 },
    Cancel { place: usize },
    Release { place: usize },
    ReleaseOne { place: usize },
    SetPermits { client: usize, total: u32 },
    Expire { client: usize },
    LoseRequest { client: usize, on: RequestKind },
    LoseReply { client: usize, on: RequestKind },
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    id: usize,
    client: usize,
    count: u32,
}

#[derive(Debug)]
struct Supply {
    total: u32,
    held: Vec<Asked>,
    queue: VecDeque<Asked>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Granted(Asked),
    Denied(Asked),
}

impl Supply {
    fn new() -> Self {
        Self {
            total: FIRST_TOTAL,
            held: Vec::new(),
            queue: VecDeque::new(),
        }
    }

    fn held(&self) -> u32 {
        self.held.iter().map(|asked| asked.count).sum()
    }

    fn has(&self, count: u32) -> bool {
        count <= self.total.saturating_sub(self.held())
    }

    fn serve(&mut self) -> Vec<End> {
        let mut ends = Vec::new();
        while let Some(head) = self.queue.front().copied() {
            if head.count > self.total {
                ends.push(End::Denied(head));
            } else if self.has(head.count) {
                self.held.push(head);
                ends.push(End::Granted(head));
            } else {
                break;
            }
            self.queue.pop_front();
        }
        ends
    }
}

struct Both {
    world: Ground,
    clients: Vec<Client>,
    model: Supply,
    requests: BTreeMap<usize, Request>,
    permits: BTreeMap<usize, Permit>,
    next_id: usize,
}

impl Model for Both {
    type Operation = Step;

    fn operation() -> impl Strategy<Value = Step> {
        let client = 0..CLIENTS;
        let on = select(vec![
            RequestKind::Enqueue,
            RequestKind::Multi,
            RequestKind::MultiRead,
            RequestKind::Delete,
            RequestKind::Exists,
            RequestKind::GetChildren,
            RequestKind::GetData,
            RequestKind::SetData,
        ]);
        prop_oneof![
            6 => (client.clone(), 1..5u32).prop_map(|(client, count)| Step::Acquire { client, count }),
            2 => (client.clone(), 1..5u32).prop_map(|(client, count)| Step::Try { client, count }),
            2 => (0..8usize).prop_map(|place| Step::Cancel { place }),
            4 => (0..8usize).prop_map(|place| Step::Release { place }),
            2 => (0..8usize).prop_map(|place| Step::ReleaseOne { place }),
            2 => (client.clone(), 0..6u32)
                .prop_map(|(client, total)| Step::SetPermits { client, total }),
            1 => client.clone().prop_map(|client| Step::Expire { client }),
            1 => (client.clone(), on.clone()).prop_map(|(client, on)| Step::LoseRequest { client, on }),
            2 => (client, on).prop_map(|(client, on)| Step::LoseReply { client, on }),
        ]
    }

    async fn start(env: Env) -> Self {
        let world = Ground::new(env, FIRST_TOTAL).await;
        Self {
            clients: clients(&world).await,
            world,
            model: Supply::new(),
            requests: BTreeMap::new(),
            permits: BTreeMap::new(),
            next_id: 0,
        }
    }

    async fn carry_out(&mut self, step: Step) {
        match step {
            Step::Acquire { client, count } => self.acquire(client, count).await,
            Step::Try { client, count } => self.try_acquire(client, count).await,
            Step::Cancel { place } => self.cancel(place),
            Step::Release { place } => self.release(place).await,
            Step::ReleaseOne { place } => self.release_one(place).await,
            Step::SetPermits { client, total } => {
                self.semaphore(client).set_permits(total).await.unwrap();
                self.model.total = total;
            }
            Step::Expire { client } => self.expire(client).await,
            Step::LoseRequest { client, on } => self.world.lose_request(&self.clients[client], on),
            Step::LoseReply { client, on } => self.world.lose_reply(&self.clients[client], on),
        }
    }

    async fn agree(&mut self) {
        for end in self.model.serve() {
            match end {
                End::Granted(asked) => {
                    let request = self.requests.remove(&asked.id).unwrap();
                    let permit = permitted(request).await;
                    assert!(permit.is_held());
                    assert_eq!(permit.count(), asked.count);
                    self.permits.insert(asked.id, permit);
                }
                End::Denied(asked) => {
                    let request = self.requests.remove(&asked.id).unwrap();
                    self.deny(request, asked).await;
                }
            }
        }
        self.world.until_waiting(self.model.queue.len()).await;
        self.world.until_held(self.model.held() as usize).await;
        assert!(self.requests.values().all(|request| !request.is_finished()));
        assert!(self.permits.values().all(|permit| permit.is_held()));
        let tokens = |held: &[Asked]| -> Vec<_> {
            held.iter()
                .map(|asked| self.permits[&asked.id].fencing_token())
                .collect()
        };
        assert!(
            tokens(&self.model.held).is_sorted(),
            "in the order of grants"
        );
    }

    async fn end(mut self) {
        self.model.queue.clear();
        self.model.held.clear();
        for (_, request) in std::mem::take(&mut self.requests) {
            request.abort();
        }
        for (_, permit) in std::mem::take(&mut self.permits) {
            drop(permit);
        }
        self.world.heal();
        self.agree().await;
    }
}

impl Both {
    /// Returns a new handle, which knows the currently stored number.
    fn semaphore(&self, client: usize) -> Semaphore {
        Semaphore::open(&self.clients[client], QUOTA).unwrap()
    }

    fn asked(&mut self, client: usize, count: u32) -> Asked {
        self.next_id += 1;
        Asked {
            id: self.next_id,
            client,
            count,
        }
    }

    async fn acquire(&mut self, client: usize, count: u32) {
        let asked = self.asked(client, count);
        let semaphore = self.semaphore(client);
        let request = tokio::spawn(async move { semaphore.acquire_many(count).await });
        if count > self.model.total {
            // Immediately, whatever other requests wait.
            return self.deny(request, asked).await;
        }
        self.requests.insert(asked.id, request);
        self.model.queue.push_back(asked);
    }

    async fn deny(&self, request: Request, asked: Asked) {
        let too_many = LockError::TooManyPermits {
            path: path(QUOTA),
            wanted: asked.count,
            total: self.model.total,
        };
        assert_eq!(denied(request).await, too_many);
    }

    async fn try_acquire(&mut self, client: usize, count: u32) {
        let outcome = self.semaphore(client).try_acquire_many(count).await;
        if count > self.model.total {
            return assert!(matches!(outcome, Err(LockError::TooManyPermits { .. })));
        }
        let permit = outcome.unwrap();
        let expected = self.model.queue.is_empty() && self.model.has(count);
        assert_eq!(permit.is_some(), expected, "{:?}", self.model);
        if let Some(permit) = permit {
            let asked = self.asked(client, count);
            self.model.held.push(asked);
            self.permits.insert(asked.id, permit);
        }
    }

    fn cancel(&mut self, place: usize) {
        let waiting = self.model.queue.len();
        if waiting > 0 {
            let asked = self.model.queue.remove(place % waiting).unwrap();
            self.requests.remove(&asked.id).unwrap().abort();
        }
    }

    async fn release(&mut self, place: usize) {
        if self.model.held.is_empty() {
            return;
        }
        let asked = self.model.held.remove(place % self.model.held.len());
        let permit = self.permits.remove(&asked.id).unwrap();
        assert_eq!(permit.count(), asked.count);
        permit.release().await.unwrap();
    }

    async fn release_one(&mut self, place: usize) {
        let held = self.model.held.len();
        if held == 0 {
            return;
        }
        let asked = &mut self.model.held[place % held];
        if let Some(one) = self.permits.get_mut(&asked.id).unwrap().split(1) {
            asked.count -= 1;
            one.release().await.unwrap();
        }
    }

    async fn expire(&mut self, client: usize) {
        self.world.end_session(&self.clients[client]).await;
        let (gone, stays): (Vec<_>, Vec<_>) = self
            .model
            .held
            .drain(..)
            .partition(|asked| asked.client == client);
        self.model.held = stays;
        for asked in gone {
            let permit = self.permits.remove(&asked.id).unwrap();
            assert_eq!(permit.lost().await, LostReason::SessionExpired);
        }
        let (gone, stays): (VecDeque<_>, VecDeque<_>) = self
            .model
            .queue
            .drain(..)
            .partition(|asked| asked.client == client);
        self.model.queue = stays;
        for asked in gone {
            let error = denied(self.requests.remove(&asked.id).unwrap()).await;
            assert!(error.is_session_end(), "{error}");
        }
    }
}

model_tests! {
    Both,
    memory: in_memory_the_grants_are_the_models(150),
    file: in_a_folder_the_grants_are_the_models(15),
    served: on_a_served_store_the_grants_are_the_models(12),
    zookeeper: on_zookeeper_the_grants_are_the_models(12),
    lent: with_a_lent_client_the_grants_are_the_models(3),
    foreign: for_a_foreign_client_the_grants_are_the_models(4),
}
