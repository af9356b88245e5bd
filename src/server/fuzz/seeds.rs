//! The seed corpus of the fuzzer `conversation`.

use super::conversation::{Action, FuzzStep, REQUIRES_AUTH, TIGHT};
use crate::wire::Op;
use crate::wire::fuzz::{Choice, Inputs};

const LAST: &str = "";

const EPHEMERAL: u8 = 1;
const ENTRY: u8 = 3;

struct Script(Vec<u8>);

impl Script {
    fn new(flags: u8) -> Self {
        Self(vec![flags])
    }

    fn step(mut self, action: Action, client: u8, details: [u8; 5]) -> Self {
        self.0
            .extend_from_slice(&FuzzStep::of(action, client, details).bytes());
        self
    }

    fn clients(self, count: u8) -> Self {
        (0..count).fold(self, |script, client| {
            script.step(Action::Connect, client, [0, 0, 4, 0, 0])
        })
    }

    fn reattach(self, client: u8) -> Self {
        self.step(Action::Connect, client, [7, 0, 1, 0, 0])
    }

    fn ask(self, client: u8, op: Op, path: &str, detail: u8, flags: u8) -> Self {
        self.choose(Action::Request, client, Choice::of(op, path, detail, flags))
    }

    fn pipeline(self, client: u8, op: Op, path: &str, detail: u8, flags: u8) -> Self {
        self.choose(
            Action::Pipeline,
            client,
            Choice::of(op, path, detail, flags),
        )
    }

    fn choose(self, action: Action, client: u8, choice: Choice) -> Self {
        let [op, path, detail, flags] = choice.bytes();
        self.step(action, client, [0, op, path, detail, flags])
    }

    /// Adds one operation of a multi. `number` selects the kind of operation: its index in the list of kinds that a
    /// multi can contain.
    fn part(self, number: u8, path: &str, detail: u8, flags: u8) -> Self {
        let choice = Choice::of(Op::Create, path, detail, flags);
        let choice = Choice {
            op: number,
            ..choice
        };
        self.choose(Action::Request, 0, choice)
    }

    fn pass(self, millis: u8) -> Self {
        self.step(Action::Time, 0, [millis, 0, 0, 0, 0])
    }
}

pub(crate) fn conversations() -> Inputs {
    let scripts = [
        ("locks", locks(0)),
        ("locks-in-pieces", locks(2 << 2)),
        ("semaphore", semaphore()),
        ("sessions", sessions()),
        ("watches", watches()),
        ("multis", multis()),
        ("limits", limits()),
        ("proofs", proofs()),
        ("operator", operator()),
        ("plain", plain()),
        ("slow", slow()),
        ("cut", Script::new(0).step(Action::Raw, 0, [0; 5])),
    ];
    scripts.map(|(name, script)| (name, script.0)).into()
}

fn locks(flags: u8) -> Script {
    Script::new(flags)
        .clients(3)
        .ask(0, Op::Enqueue, "/q", 0, 2)
        .ask(1, Op::Enqueue, "/q", 0, 1)
        .ask(2, Op::Enqueue, "/q", 3, 1)
        .ask(1, Op::GetQueue, "/q", 0, 0)
        .ask(2, Op::GetPredecessor, LAST, 0, 1)
        .ask(2, Op::ForgetWatch, LAST, 1, 0)
        .ask(2, Op::Withdraw, LAST, 0, 0)
        .step(Action::Close, 0, [0; 5])
        .pass(5)
        .pass(6)
        .ask(1, Op::GetQueue, "/q", 1, 0)
        .ask(1, Op::CloseSession, "/", 0, 0)
}

fn semaphore() -> Script {
    Script::new(0)
        .clients(2)
        .ask(0, Op::Create2, "/s", 0, 0)
        .ask(0, Op::Create2, "/s/locks", 0, 0)
        .ask(0, Op::Create2, "/s/leases", 0, 0)
        .ask(0, Op::Create2, "/s/permits", 0, 2 << 4)
        .ask(0, Op::Create2, "/s/leases", 2, EPHEMERAL)
        .ask(1, Op::Enqueue, "/s/locks", 4, 0)
        .ask(1, Op::GetPredecessor, LAST, 4, 0)
        .ask(0, Op::Multi, "/", 3, 0)
        .part(7, "/s/permits", 0, 2 << 4)
        .part(8, "/s/leases", 2, 0)
        .part(0, "/s/leases", 2, ENTRY)
        .ask(0, Op::SetData, "/s/permits", 0, 1 << 4)
        .ask(0, Op::CloseSession, "/", 0, 0)
        .ask(1, Op::GetPredecessor, LAST, 4, 0)
}

fn sessions() -> Script {
    Script::new(0)
        .clients(2)
        .ask(0, Op::Create, "/a", 0, EPHEMERAL)
        .ask(1, Op::Exists, "/a", 0, 1)
        .step(Action::Cut, 0, [9, 5, 1, 0, 0])
        .reattach(0)
        .reattach(0)
        .ask(0, Op::GetEphemerals, "/", 0, 0)
        // A wrong password, another client's session, and a session that never existed.
        .step(Action::Connect, 2, [6, 0, 1, 0, 0])
        .step(Action::Connect, 0, [2, 0, 1, 0, 0])
        .step(Action::Connect, 0, [4, 0, 1, 0, 0])
        .step(Action::Reset, 2, [0; 5])
        .pass(3)
        .pass(5)
        .pass(6)
        .ask(1, Op::GetData, "/a", 0, 0)
        .step(Action::Connect, 0, [7, 0, 0, 0, 0])
        .clients(1)
        .ask(0, Op::Ping, "/", 0, 0)
}

fn watches() -> Script {
    Script::new(1 << 2)
        .clients(3)
        .ask(0, Op::AddWatch, "/", 1, 0)
        .ask(1, Op::AddWatch, "/a", 0, 0)
        .ask(2, Op::Exists, "/a", 0, 1)
        .ask(0, Op::Create, "/a", 0, 0)
        .ask(2, Op::GetChildren2, "/a", 0, 1)
        .ask(2, Op::GetData, "/a", 0, 1)
        .ask(1, Op::CheckWatches, "/a", 4, 0)
        .ask(1, Op::Create, "/a/b", 0, EPHEMERAL)
        .ask(0, Op::SetData, "/a", 0, 1 << 4)
        .ask(1, Op::RemoveWatches, "/a", 3, 0)
        .reattach(2)
        .ask(2, Op::SetWatches2, "/a", 1, 0x55)
        .ask(2, Op::SetWatches, "/a/b", 0, 0x35)
        .ask(1, Op::Delete, "/a/b", 0, 0)
}

fn multis() -> Script {
    Script::new(0)
        .clients(2)
        .ask(0, Op::Multi, "/", 4, 0)
        .part(0, "/a", 0, 0)
        .part(5, "/a", 0, 1 << 4)
        .part(7, "/a", 0, 1 << 4)
        .part(0, "/a/b", 0, EPHEMERAL)
        .ask(0, Op::MultiRead, "/", 2, 0)
        .part(0, "/a", 0, 0)
        .part(1, "/q", 0, 0)
        .ask(1, Op::GetData, "/a/b", 0, 1)
        .ask(0, Op::Multi, "/", 3, 0)
        .part(4, "/a/b", 0, 0)
        .part(6, "/a", 12, 0)
        .part(8, "/a", 0, 0)
        .ask(0, Op::CreateTtl, "/q", 0, 4)
        .ask(0, Op::CreateContainer, "/s", 0, 0)
        .pass(6)
        .pass(7)
}

fn limits() -> Script {
    let mut script = Script::new(TIGHT)
        .clients(3)
        .clients(3)
        .ask(0, Op::Create, "/a", 0, 5 << 4)
        .ask(0, Op::Create, "/q", 0, 5 << 4)
        .ask(1, Op::AddWatch, "/", 1, 0)
        .ask(1, Op::SetWatches2, "/", 0, 0xff);
    for _ in 0..20 {
        script = script.pipeline(2, Op::Create, "/", 2, ENTRY | 4 << 4);
        script = script.pipeline(0, Op::GetData, "/a", 0, 1);
    }
    script
        .ask(2, Op::GetChildren2, "/", 0, 1)
        .ask(2, Op::Enqueue, "/q", 0, 0)
}

fn proofs() -> Script {
    Script::new(REQUIRES_AUTH)
        .clients(3)
        .ask(0, Op::Create, "/a", 0x80, 0)
        .ask(1, Op::Auth, "/", 0, 0)
        .ask(1, Op::Create, "/a", 0x80, 0)
        .ask(1, Op::SetAcl, "/a", 0xc0, 0)
        .ask(1, Op::GetAcl, "/a", 0, 0)
        .ask(1, Op::WhoAmI, "/", 0, 0)
        .ask(2, Op::Auth, "/", 0, 1)
        .ask(2, Op::GetData, "/a", 0, 1)
        .ask(2, Op::Auth, "/", 3, 2)
        .pass(3)
}

fn operator() -> Script {
    (0..15)
        .fold(Script::new(0).clients(2), |script, word| {
            script.step(Action::Word, 2, [word, 0, 0, 0, 0])
        })
        .ask(0, Op::Create, "/a", 0, EPHEMERAL)
        .ask(1, Op::GetData, "/a", 0, 1)
        .step(Action::Kick, 0, [0; 5])
        .ask(1, Op::Sync, "/", 0, 1)
}

fn plain() -> Script {
    Script::new(3 << 2)
        .step(Action::Connect, 0, [0, 5, 4, 6, 0])
        .step(Action::Connect, 1, [0, 5, 4, 5, 64])
        .ask(0, Op::Create, "/q", 2, ENTRY)
        .ask(1, Op::GetChildren, "/q", 0, 1)
        .ask(1, Op::Reconfig, "/", 0, 0)
        .ask(0, Op::GetAllChildrenNumber, "/", 0, 0)
        .ask(0, Op::Enqueue, "/q", 0, 2)
        .ask(1, Op::Sasl, "/", 0, 0)
}

fn slow() -> Script {
    let mut script = Script::new(0)
        .clients(2)
        .ask(0, Op::Create, "/a", 0, 5 << 4)
        .ask(1, Op::AddWatch, "/", 1, 0)
        .step(Action::Stall, 1, [0; 5]);
    for _ in 0..30 {
        script = script.pipeline(1, Op::GetData, "/a", 0, 1);
        script = script.pipeline(0, Op::SetData, "/a", 0, 5 << 4);
    }
    script
        .ask(1, Op::Sync, "/", 0, 0)
        .pass(2)
        .step(Action::Stall, 1, [0; 5])
        .ask(1, Op::Ping, "/", 0, 0)
}
