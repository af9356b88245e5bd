//! [`Resource`]: the thing that a lock guards, and that notices when it does not.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Clock, FencingGate, FencingToken};

use crate::permits::Permits;
use crate::recipe::{Held, Recipe};
use crate::register::Register;
use crate::world::World;

/// A resource that checks tokens, and remembers the guards that are out.
pub(crate) struct Resource {
    world: World,
    pub(crate) path: String,
    pub(crate) recipe: Recipe,
    pub(crate) register: Register,
    /// The numbers of permits of a semaphore.
    pub(crate) permits: Permits,
    gate: RefCell<FencingGate>,
    /// The newest token that was granted exclusively.
    granted: Cell<Option<FencingToken>>,
    holders: RefCell<Vec<Holder>>,
}

/// One whose guard is out.
struct Holder {
    name: String,
    held: Rc<Held>,
    clock: Clock,
}

impl Holder {
    /// Returns true if it believes to hold. Nobody believes anything on a host that is stopped.
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
        }
    }

    /// Forgets what the store has acknowledged: a backup has brought back an earlier state.
    pub(crate) fn forget(&self) {
        self.register.forget();
        self.permits.forget();
    }

    /// Records a grant, to a wait that began at `since`. An exclusive token is newer than all exclusive ones before, and no
    /// more than may believe to hold.
    pub(crate) fn enter(
        self: &Rc<Self>,
        who: &str,
        held: &Rc<Held>,
        (clock, since): (&Clock, Duration),
    ) -> Stay {
        let (world, path, token) = (&self.world, &self.path, held.token());
        world.count("grants");
        world.tell(format_args!("{who} holds {path} by {token}"));
        let is_newest = held.is_shared() || self.granted.replace(Some(token)) < Some(token);
        if !is_newest && world.beliefs_exclude() {
            world.violate(format_args!(
                "tokens: {path} was granted by {token} after a newer one"
            ));
        }
        // A later writer is granted only once this reader has gone.
        let is_passed = matches!(**held, Held::Read(_)) && self.granted.get() > Some(token);
        if is_passed && held.is_held() && world.beliefs_exclude() {
            world.violate(format_args!(
                "order: {who} reads {path} after a later writer"
            ));
        }
        self.holders.borrow_mut().push(Holder {
            name: who.to_owned(),
            held: held.clone(),
            clock: clock.clone(),
        });
        self.check_against(self.permits.most_since(since));
        Stay {
            resource: self.clone(),
            held: held.clone(),
        }
    }

    /// Fails the run if more believe to hold than may. A smaller number of permits revokes none: only a
    /// [grant](Self::enter) counts against the number of its moment.
    pub(crate) fn check(&self) {
        self.check_against(self.permits.most_since(Duration::ZERO));
    }

    fn check_against(&self, capacity: u32) {
        let holders = self.holders.borrow();
        let believers = holders.iter().filter(|holder| holder.believes(&self.world));
        let held: Vec<_> = believers.collect();
        let weights = held.iter().map(|holder| u64::from(holder.held.weight()));
        let is_too_much = weights.sum::<u64>() > u64::from(capacity);
        if is_too_much && self.world.beliefs_exclude() {
            let names: Vec<_> = held.iter().map(|holder| holder.name.as_str()).collect();
            let (names, path) = (names.join(" and "), &self.path);
            self.world
                .violate(format_args!("exclusion: {names} believe to hold {path}"));
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

/// A holder's time at a resource. It ends when this is dropped.
pub(crate) struct Stay {
    resource: Rc<Resource>,
    held: Rc<Held>,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.resource.check();
        if !self.held.is_held() {
            self.resource.world.count("grants that were lost");
        }
        let mut holders = self.resource.holders.borrow_mut();
        holders.retain(|other| !Rc::ptr_eq(&other.held, &self.held));
    }
}
