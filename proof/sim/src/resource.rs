//! [`Resource`]: what a lock guards. It notices failures of the lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Client, Clock, FencingGate, FencingToken, LockError};
use testkit::recipe::{Held, Recipe};

use crate::memory::answer;
use crate::permits::Permits;
use crate::register::Register;
use crate::world::World;

pub(crate) struct Resource {
    world: World,
    pub(crate) path: String,
    pub(crate) recipe: Recipe,
    pub(crate) register: Register,
    pub(crate) permits: Permits,
    gate: RefCell<FencingGate>,
    /// The newest exclusively granted token.
    granted: Cell<Option<FencingToken>>,
    holders: RefCell<Vec<TokenHolder>>,
    /// Number of permits and of leases in a store in memory, when last counted.
    number: Cell<u32>,
    leases: Cell<usize>,
}

/// The holder of an active guard.
struct TokenHolder {
    name: String,
    held: Rc<Held>,
    clock: Clock,
}

impl TokenHolder {
    /// Returns `true` if it believes that it holds. On a stopped host it cannot believe anything.
    fn believes(&self, world: &World) -> bool {
        !world.time().is_stopped(&self.clock) && self.held.is_held()
    }
}

impl Resource {
    pub(crate) fn new(world: &World, path: &str, recipe: Recipe) -> Self {
        Self {
            world: world.clone(),
            path: path.to_owned(),
            recipe,
            register: Register::new(world, &format!("{path}-data")),
            permits: Permits::new(recipe.capacity()),
            gate: RefCell::default(),
            granted: Cell::default(),
            holders: RefCell::default(),
            number: Cell::new(recipe.capacity()),
            leases: Cell::new(0),
        }
    }

    /// Forgets acknowledged writes, because a backup has restored an earlier state.
    pub(crate) fn forget(&self) {
        self.register.forget();
        self.permits.forget();
    }

    /// Records a grant to a wait that started at `since`. An exclusive token must exceed all earlier exclusive ones,
    /// and not too many may believe that they hold.
    pub(crate) fn enter(
        self: &Rc<Self>,
        who: &str,
        held: &Rc<Held>,
        (clock, since): (&Clock, Duration),
    ) -> CriticalSection {
        let (world, path, token) = (&self.world, &self.path, held.token());
        world.count("grants");
        world.tell(format_args!("{who} holds {path} by {token}"));
        let is_newest = held.is_shared() || self.is_newest(held);
        if !is_newest && world.beliefs_exclude() {
            world.violate(format_args!(
                "tokens: {path} was granted by {token} after a newer one"
            ));
        }
        // A later writer is granted only after this reader has left.
        let is_passed = matches!(**held, Held::Read(_)) && self.granted.get() > Some(token);
        if is_passed && held.is_held() && world.beliefs_exclude() {
            world.violate(format_args!(
                "order: {who} reads {path} after a later writer"
            ));
        }
        self.holders.borrow_mut().push(TokenHolder {
            name: who.to_owned(),
            held: held.clone(),
            clock: clock.clone(),
        });
        let capacity = self.permits.most_since(since);
        self.check_against(capacity);
        CriticalSection {
            resource: self.clone(),
            held: held.clone(),
        }
    }

    /// Records an exclusive token. Returns `false` if it is not newer than all before. For an owner that is already
    /// inside, returns `false` if it differs from the owner's first token.
    fn is_newest(&self, held: &Held) -> bool {
        let token = Some(held.token());
        let before = self.granted.replace(token);
        match held.owner() {
            None => before < token,
            Some(_) => match self.inside(held.owner()).first() {
                None => before <= token,
                Some(other) => {
                    self.world.count("re-entries");
                    before == token && Some(other.token()) == token
                }
            },
        }
    }

    fn inside(&self, owner: Option<u64>) -> Vec<Rc<Held>> {
        let holders = self.holders.borrow();
        let held = holders.iter().map(|holder| &holder.held);
        held.filter(|held| held.owner() == owner).cloned().collect()
    }

    /// Fails the run if an owner is refused although none of its entries is lost.
    pub(crate) fn check_refusal(&self, owner: u64) {
        self.world.count("re-entries refused");
        let inside = self.inside(Some(owner));
        if inside.iter().all(|entry| entry.is_held()) {
            let path = &self.path;
            self.world.violate(format_args!(
                "error: an owner is refused {path}, and has lost nothing"
            ));
        }
    }

    /// Fails the run if a store in memory has more leases than permits, apart from leases that existed before the
    /// number was lowered.
    fn check_leases(&self) {
        let (Some(memory), Recipe::Semaphore { .. }) = (self.world.memory(), self.recipe) else {
            return;
        };
        let leases = format!("{}/leases", self.path).parse().expect("a path");
        let (count, path) = (memory.count_children(&leases), &self.path);
        let allowed = self.leases.replace(count).max(self.number.get() as usize);
        if count > allowed {
            self.world.violate(format_args!(
                "exclusion: {path} has {count} leases, and {allowed} permits"
            ));
        }
    }

    /// Changes the number of permits. In a store in memory this takes no time, so that the leases can be counted
    /// before and after. The errors are those of [`Permits::change`].
    pub(crate) async fn change_permits(
        &self,
        client: &Client,
        permits: u32,
    ) -> Result<(), LockError> {
        let inspector = match self.world.memory() {
            Some(memory) => Some(memory.inspector().await),
            None => None,
        };
        self.check_leases();
        let client = (inspector.as_ref().unwrap_or(client), self.path.as_str());
        let changing = self.permits.change(&self.world, client, permits);
        if inspector.is_none() {
            return changing.await;
        }
        let changed = answer(changing);
        self.number.set(permits);
        self.check_leases();
        changed
    }

    /// Fails the run if too many believe that they hold. A smaller number of permits revokes none, so only a
    /// [grant](Self::enter) is checked against the number at its time.
    pub(crate) fn check(&self) {
        self.check_against(self.permits.most_since(Duration::ZERO));
    }

    fn check_against(&self, capacity: u32) {
        self.check_leases();
        let holders = self.holders.borrow();
        let believers = holders.iter().filter(|holder| holder.believes(&self.world));
        let held: Vec<_> = believers.collect();
        for holder in &*holders {
            self.check_belief(&holder.held);
        }
        // All entries of an owner count as one.
        let weights = held.iter().enumerate().map(|(place, holder)| {
            let owner = holder.held.owner();
            let mut before = held[..place].iter();
            match owner.is_some() && before.any(|other| other.held.owner() == owner) {
                true => 0,
                false => u64::from(holder.held.weight()),
            }
        });
        let is_too_much = weights.sum::<u64>() > u64::from(capacity);
        if is_too_much && self.world.beliefs_exclude() {
            let names: Vec<_> = held.iter().map(|holder| holder.name.as_str()).collect();
            let (names, path) = (names.join(" and "), &self.path);
            self.world
                .violate(format_args!("exclusion: {names} believe to hold {path}"));
        }
    }

    /// Fails the run if the state of an election contradicts its leadership, or if a store in memory lacks the entry
    /// of a believed hold, because others may have the lock then.
    fn check_belief(&self, held: &Held) {
        let path = &self.path;
        if !held.agrees_with_its_state() {
            self.world.violate(format_args!(
                "state: {path} has another one than its leader"
            ));
        }
        if let Some(memory) = self.world.memory()
            && held.is_held()
            && !held.paths().iter().all(|entry| memory.has(entry))
        {
            self.world.violate(format_args!(
                "exclusion: {path} is believed to be held without an entry"
            ));
        }
    }

    /// Writes with a token. A holder must not be refused.
    pub(crate) fn write(&self, who: &str, held: &Held) {
        self.world.count("writes");
        let token = held.token();
        let admitted = match held {
            Held::Permit(_) => return,
            Held::Read(_) => self.gate.borrow_mut().admit_shared(token),
            _ => self.gate.borrow_mut().admit(token),
        };
        let Err(refusal) = admitted else { return };
        self.world.count("writes refused by their tokens");
        if held.is_held() && self.world.beliefs_exclude() {
            let path = &self.path;
            self.world.violate(format_args!(
                "exclusion: {who} holds {path} and is refused: {refusal}"
            ));
        }
    }
}

/// A holder's use of a resource. It ends when dropped.
pub(crate) struct CriticalSection {
    resource: Rc<Resource>,
    held: Rc<Held>,
}

impl Drop for CriticalSection {
    fn drop(&mut self) {
        self.resource.check();
        if self.resource.world.memory().is_some() {
            // Write even if the lock is lost, because then the token must protect.
            self.resource.write("a holder that leaves", &self.held);
        }
        if !self.held.is_held() {
            self.resource.world.count("grants that were lost");
        }
        let mut holders = self.resource.holders.borrow_mut();
        holders.retain(|other| !Rc::ptr_eq(&other.held, &self.held));
    }
}
