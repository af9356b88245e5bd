//! [`Config`]: the size of a model, its store, and its possible faults.

use std::fmt;

use clap::ValueEnum;

use crate::mistake::Mistake;

/// Kind of the store, as a waiter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum StoreKind {
    /// Answers with the predecessor from an index, and states in the event that the turn has come.
    Index,
    /// One ZooKeeper server: lists names, and tells of deletions alone.
    List,
    /// An ensemble of ZooKeeper servers: a follower's answers may be behind, and only writes prove life.
    Ensemble,
}

/// Numbers of faults that may still occur. They bound the number of states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budgets {
    /// Connections that break.
    pub disconnects: u8,
    /// Leases that end during a wait or a hold.
    pub lapses: u8,
    /// Sessions that expire, each after its lease.
    pub expiries: u8,
    /// Waits that are cancelled.
    pub cancellations: u8,
    /// Entries that an operator deletes.
    pub removals: u8,
    /// Entries that a stranger, a session outside the model, replaces by one of the same name.
    pub takeovers: u8,
    /// Followers that fall behind.
    pub lags: u8,
    /// Parents that are deleted while the queue is empty, and recreated with a copy of their data.
    pub recreations: u8,
}

/// A model to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Number of clients.
    pub clients: u8,
    /// Number of times that each client asks for the lock.
    pub rounds: u8,
    /// Kind of the store.
    pub store: StoreKind,
    /// Faults that may occur.
    pub budgets: Budgets,
    /// False if a session may expire at any time, as with a clock that drifts beyond the stated margin. Then only
    /// tokens protect.
    pub clocks_keep_margin: bool,
    /// True if the queue starts as a copy, whose parent has the release marker of another queue.
    pub begins_as_copy: bool,
    /// True to follow each state without further faults until all waits end. This also finds cycles of waits.
    pub follow_to_end: bool,
    /// A deliberate mistake in the protocol, which a property should detect.
    pub mistake: Option<Mistake>,
}

impl Config {
    /// Creates a model without faults.
    pub fn new(store: StoreKind, clients: u8, rounds: u8) -> Self {
        Self {
            clients,
            rounds,
            store,
            budgets: Budgets::default(),
            clocks_keep_margin: true,
            begins_as_copy: false,
            follow_to_end: false,
            mistake: None,
        }
    }

    /// Returns the same model with these faults.
    pub fn with(self, budgets: Budgets) -> Self {
        Self { budgets, ..self }
    }

    pub(crate) fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Returns `true` if the store returns predecessors.
    pub(crate) fn has_index(&self) -> bool {
        self.store == StoreKind::Index
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = match self.store {
            StoreKind::Index => "index",
            StoreKind::List => "list",
            StoreKind::Ensemble => "ensemble",
        };
        write!(
            f,
            "{store}, {} clients x {} rounds",
            self.clients, self.rounds
        )?;
        let Budgets {
            disconnects,
            lapses,
            expiries,
            cancellations,
            removals,
            takeovers,
            lags,
            recreations,
        } = self.budgets;
        for (count, name) in [
            (disconnects, "disconnects"),
            (lapses, "lapses"),
            (expiries, "expiries"),
            (cancellations, "cancellations"),
            (removals, "removals"),
            (takeovers, "takeovers"),
            (lags, "lags"),
            (recreations, "recreations"),
        ] {
            if count > 0 {
                write!(f, ", {count} {name}")?;
            }
        }
        if self.begins_as_copy {
            write!(f, ", a copied queue")?;
        }
        if !self.clocks_keep_margin {
            write!(f, ", clocks beyond the margin")?;
        }
        Ok(())
    }
}

/// No faults, as a base for struct updates.
pub(crate) const NONE: Budgets = Budgets {
    disconnects: 0,
    lapses: 0,
    expiries: 0,
    cancellations: 0,
    removals: 0,
    takeovers: 0,
    lags: 0,
    recreations: 0,
};

impl Config {
    /// Returns the configurations that the command checks for this number of clients. Faults are combined in groups
    /// that take at most a few minutes for three clients.
    pub fn standard(clients: u8) -> Vec<Self> {
        use StoreKind::{Ensemble, Index, List};
        let mut configs = Vec::new();
        for store in [Index, List, Ensemble] {
            configs
                .extend(faults_of(store).map(|faults| Self::new(store, clients, 1).with(faults)));
        }
        // A second wait after the first, with its leftovers: the marker, the queue, the order.
        for store in [Index, List] {
            let again = Budgets {
                disconnects: 1,
                ..NONE
            };
            configs.push(Self::new(store, clients, 2).with(again));
        }
        let copied = Budgets {
            recreations: 1,
            cancellations: 1,
            ..NONE
        };
        configs.push(Self::new(List, clients, 2).with(copied));
        let given_up = Self::new(List, clients, 1).with(Budgets {
            disconnects: 1,
            cancellations: 1,
            ..NONE
        });
        configs.push(Self {
            begins_as_copy: true,
            ..given_up
        });
        for store in [Index, List] {
            let late = Budgets {
                expiries: 1,
                lapses: 1,
                disconnects: 1,
                ..NONE
            };
            configs.push(Self {
                clocks_keep_margin: false,
                ..Self::new(store, clients, 1).with(late)
            });
        }
        configs
            .iter_mut()
            .for_each(|config| config.follow_to_end = true);
        configs
    }
}

/// Returns the groups of faults for a kind of store. Only followers of an ensemble lag.
fn faults_of(store: StoreKind) -> impl Iterator<Item = Budgets> {
    let lags = u8::from(store == StoreKind::Ensemble);
    let cancellations = 1 - lags;
    let groups = [
        Budgets {
            disconnects: 2,
            cancellations: 1,
            ..NONE
        },
        Budgets {
            disconnects: 1,
            lapses: 2,
            expiries: 1,
            ..NONE
        },
        Budgets {
            disconnects: 1,
            cancellations,
            removals: 1,
            ..NONE
        },
        Budgets {
            disconnects: 1,
            cancellations,
            takeovers: 1,
            ..NONE
        },
    ];
    groups
        .into_iter()
        .map(move |faults| Budgets { lags, ..faults })
}
