//! The resource that a recipe protects, and that notices when it does not.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use lockkeeper::{FencingGate, FencingToken, Guard};

use super::Counters;

/// A guard of some recipe.
pub(crate) trait Holding {
    fn is_held(&self) -> bool;

    /// Returns true if both may be held at the same moment.
    fn is_compatible(&self, _other: &Self) -> bool {
        false
    }
}

/// A guard with a fencing token that a gate checks.
pub(crate) trait Fenced: Holding {
    fn fencing_token(&self) -> FencingToken;

    /// Returns true if others may be admitted with the same right at once.
    fn is_shared(&self) -> bool {
        false
    }
}

impl Holding for Guard {
    fn is_held(&self) -> bool {
        self.is_held()
    }
}

impl Fenced for Guard {
    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

/// A watched resource: it fails the run when two incompatible guards are held at the same moment, when a holder
/// is refused, and when tokens go backwards.
pub(crate) struct Resource<H> {
    gate: RefCell<FencingGate>,
    holders: RefCell<Vec<Rc<H>>>,
    newest: Cell<Option<FencingToken>>,
    counters: Counters,
}

impl<H: Holding> Resource<H> {
    pub(crate) fn new(counters: &Counters) -> Self {
        Self {
            gate: RefCell::default(),
            holders: RefCell::default(),
            newest: Cell::default(),
            counters: counters.clone(),
        }
    }

    pub(crate) fn holders(&self) -> Ref<'_, Vec<Rc<H>>> {
        self.holders.borrow()
    }

    /// Fails if two that are not compatible believe to hold.
    pub(crate) fn check(&self) {
        let holders = self.holders();
        let held: Vec<_> = holders.iter().filter(|one| one.is_held()).collect();
        for (place, one) in held.iter().enumerate() {
            let mut others = held[..place].iter();
            assert!(
                others.all(|other| one.is_compatible(other)),
                "{} believe to hold at the same moment",
                held.len()
            );
        }
    }

    pub(crate) fn enter(&self, holding: H) -> Rc<H> {
        let holding = Rc::new(holding);
        self.holders.borrow_mut().push(holding.clone());
        self.check();
        holding
    }

    /// Counts in `lost` if it is lost by now.
    pub(crate) fn leave(&self, holding: Rc<H>) -> H {
        self.holders
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &holding));
        self.counters.add("lost", u64::from(!holding.is_held()));
        Rc::into_inner(holding).expect("nobody else has it")
    }
}

impl<H: Fenced> Resource<H> {
    /// The newest token that was granted exclusively.
    pub(crate) fn newest(&self) -> Option<FencingToken> {
        self.newest.get()
    }

    /// Fails if a guard that was granted just now is lost, older than another, or not alone.
    pub(crate) fn granted(&self, holding: &H) {
        self.counters.assert_granted(holding.is_held());
        self.advance(holding);
        let holders = self.holders();
        let mut others = holders.iter().filter(|other| other.is_held());
        assert!(
            !holding.is_held() || others.all(|other| holding.is_compatible(other)),
            "another still believes to hold when it is granted"
        );
    }

    /// Fails if an exclusive guard is older than another before.
    pub(crate) fn advance(&self, holding: &H) {
        if !holding.is_shared() {
            let token = Some(holding.fencing_token());
            let before = self.newest.replace(token);
            assert!(before < token, "the tokens of grants go backwards");
        }
    }

    /// Writes, with the token checked: a holder must not be refused. Counts in `late` if another is.
    pub(crate) fn write(&self, holding: &H) {
        let held = holding.is_held();
        let token = holding.fencing_token();
        let admitted = match holding.is_shared() {
            true => self.gate.borrow_mut().admit_shared(token),
            false => self.gate.borrow_mut().admit(token),
        };
        if let Err(refusal) = &admitted {
            assert!(!held, "a holder is refused: {refusal}");
        }
        self.counters.add("late", u64::from(admitted.is_err()));
    }
}
