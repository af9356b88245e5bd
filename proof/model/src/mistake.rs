//! [`Mistake`]: classic mistakes in a queued lock. A property must detect each of them.

use clap::ValueEnum;

use crate::config::{Budgets, Config, NONE, StoreKind};

/// A change of one rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Mistake {
    /// The waiter takes the deletion of the entry that it watched for its turn.
    GrantWithoutConfirming,
    /// The waiter sleeps on after a reconnection, although its watch ended with the connection.
    SleepOnAfterReconnection,
    /// The waiter sleeps although the entry to watch went between the list and the watch.
    IgnoreMissingPredecessor,
    /// A create without a reply is sent again without a search for its entry.
    CreateAgain,
    /// After a lost reply, absence from a list counts without a write committed before it.
    ListWithoutBarrier,
    /// A create without a reply loses its place: the entry is deleted, and another created.
    ReenterAfterLostReply,
    /// The waiter watches the head of the queue instead of its predecessor.
    WatchHead,
    /// The release marker counts below any parent, not only below the one that it names.
    TrustForeignMarker,
    /// A waiter that gives up moves the release marker on to its entry, as a holder does.
    MarkAbandonedWait,
    /// An entry counts as the waiter's own by its name alone, whatever its session.
    IgnoreOwner,
    /// After a reconnection a list that shows the entry's name counts, whatever the entry's session.
    RecheckByName,
    /// The entries ahead are read after the own entry, and not with it.
    ReadAheadOnly,
    /// A wait that is dropped while its create is under way sends no delete.
    ForgetCreateUnderWay,
    /// The lease ends only after the session has expired.
    LeaseOutlivesSession,
    /// A turn is taken whatever is left of the lease.
    GrantWithoutLease,
    /// The fencing token is the entry's number, which begins again below a new parent.
    TokenFromNumber,
}

impl Mistake {
    /// Returns a small configuration in which the mistake is visible.
    pub fn demonstration(self) -> Config {
        use StoreKind::{Ensemble, Index, List};
        let one = |store, clients, budgets| Config::new(store, clients, 1).with(budgets);
        let lost = Budgets {
            disconnects: 1,
            ..NONE
        };
        let given_up = Budgets {
            cancellations: 1,
            ..NONE
        };
        let config = match self {
            Self::GrantWithoutConfirming => one(List, 3, given_up),
            Self::SleepOnAfterReconnection => one(Index, 2, lost),
            Self::IgnoreMissingPredecessor => one(List, 2, NONE),
            Self::CreateAgain => one(Index, 2, lost),
            Self::ListWithoutBarrier => one(Ensemble, 2, Budgets { lags: 1, ..lost }),
            Self::ReenterAfterLostReply => one(List, 2, lost),
            Self::WatchHead => one(List, 3, NONE),
            Self::TrustForeignMarker => Config {
                begins_as_copy: true,
                ..one(List, 3, given_up)
            },
            Self::MarkAbandonedWait => one(
                List,
                4,
                Budgets {
                    cancellations: 2,
                    ..NONE
                },
            ),
            Self::IgnoreOwner => one(
                List,
                2,
                Budgets {
                    takeovers: 1,
                    ..lost
                },
            ),
            Self::RecheckByName => one(
                List,
                2,
                Budgets {
                    takeovers: 1,
                    ..lost
                },
            ),
            Self::ReadAheadOnly => one(
                List,
                3,
                Budgets {
                    removals: 1,
                    cancellations: 1,
                    ..NONE
                },
            ),
            Self::ForgetCreateUnderWay => one(Index, 2, given_up),
            Self::LeaseOutlivesSession => one(
                Index,
                2,
                Budgets {
                    expiries: 1,
                    ..NONE
                },
            ),
            Self::GrantWithoutLease => one(
                Index,
                2,
                Budgets {
                    lapses: 1,
                    expiries: 1,
                    ..NONE
                },
            ),
            Self::TokenFromNumber => Config::new(List, 2, 2).with(Budgets {
                recreations: 1,
                ..NONE
            }),
        };
        Config {
            mistake: Some(self),
            ..config
        }
    }
}
