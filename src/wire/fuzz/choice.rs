//! [`Choice`]: a request that is selected by four bytes of a fuzzer's input. Every value of the bytes is valid, so no
//! input is wasted.

use crate::model::data;
use crate::wire::*;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) op: u8,
    pub(crate) path: u8,
    pub(crate) detail: u8,
    pub(crate) flags: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) paths: Vec<String>,
    pub(crate) watches: Vec<i64>,
    pub(crate) mzxid: i64,
    pub(crate) seen: i64,
}

const OPS: [Op; 33] = [
    Op::Enqueue,
    Op::GetPredecessor,
    Op::GetQueue,
    Op::Withdraw,
    Op::ForgetWatch,
    Op::Create,
    Op::Create2,
    Op::CreateContainer,
    Op::CreateTtl,
    Op::Delete,
    Op::Exists,
    Op::GetData,
    Op::SetData,
    Op::GetAcl,
    Op::SetAcl,
    Op::GetChildren,
    Op::GetChildren2,
    Op::GetAllChildrenNumber,
    Op::Sync,
    Op::Ping,
    Op::Reconfig,
    Op::CheckWatches,
    Op::RemoveWatches,
    Op::Auth,
    Op::SetWatches,
    Op::SetWatches2,
    Op::AddWatch,
    Op::GetEphemerals,
    Op::WhoAmI,
    Op::Multi,
    Op::MultiRead,
    Op::Sasl,
    Op::CloseSession,
];

const PATHS: [&str; 12] = [
    "/",
    "/a",
    "/a/b",
    "/q",
    "/s",
    "/s/locks",
    "/s/leases",
    "/s/permits",
    "/deep/er/queue",
    "/zookeeper/quota",
    "not a path",
    "",
];

const NAMES: [&str; 8] = [
    "lock-",
    "_c_6f2b0c1e-5d0e-4a53-a3b4-0d0f3b1a7c55-lock-",
    "__READ__",
    "__WRIT__",
    "lease-",
    "number9",
    "",
    "a/b",
];

const TEXTS: [&[u8]; 6] = [
    b"",
    b"data",
    b"4",
    b"u:secret",
    &[0xff; 300],
    &[b'x'; 20_000],
];

const FIRST_KNOWN: u8 = 160;

impl Choice {
    pub(crate) fn of(op: Op, path: &str, detail: u8, flags: u8) -> Self {
        let place = OPS.iter().position(|other| *other == op);
        let path = PATHS.iter().position(|other| *other == path);
        Self {
            op: place.map_or(0, |place| place as u8),
            path: path.map_or(FIRST_KNOWN, |path| path as u8),
            detail,
            flags,
        }
    }

    pub(crate) fn bytes(self) -> [u8; 4] {
        [self.op, self.path, self.detail, self.flags]
    }

    #[cfg(feature = "client")]
    pub(crate) fn next(self) -> Self {
        Self {
            op: self.op.wrapping_add(self.flags),
            path: self.path.wrapping_add(1),
            ..self
        }
    }

    fn op(self) -> Op {
        OPS[usize::from(self.op) % OPS.len()]
    }

    fn flag(self, bit: u8) -> bool {
        self.flags & 1 << bit != 0
    }

    pub(crate) fn path(self, known: &Known) -> String {
        match self.path.checked_sub(FIRST_KNOWN) {
            Some(index) if !known.paths.is_empty() => {
                let back = usize::from(index) % known.paths.len();
                known.paths[known.paths.len() - 1 - back].clone()
            }
            _ => PATHS[usize::from(self.path) % PATHS.len()].to_owned(),
        }
    }

    fn new_path(self, known: &Known) -> String {
        let parent = self.path(known);
        match self.detail % 4 {
            0 | 1 => parent,
            2 => format!("{}/n-", parent.trim_end_matches('/')),
            _ => format!("{}/b", parent.trim_end_matches('/')),
        }
    }

    fn data(self) -> Data<'static> {
        match usize::from(self.flags >> 4) {
            index if index < TEXTS.len() => TEXTS[index],
            6 => data::null(),
            _ => b"short",
        }
    }

    fn version(self) -> i32 {
        [-1, -1, 0, 1, -7, i32::MAX][usize::from(self.detail >> 2) % 6]
    }

    fn acl(self) -> Vec<AclRecord<'static>> {
        let record = |perms, scheme: &'static str, id: &'static str| AclRecord {
            perms,
            scheme: scheme.into(),
            id: id.into(),
        };
        match self.detail >> 4 {
            0..8 => vec![record(31, "world", "anyone")],
            8 | 9 => vec![record(31, "auth", "")],
            10 => vec![record(1, "world", "anyone")],
            11 => vec![record(30, "world", "anyone")],
            12 => vec![
                record(31, "ip", "127.0.0.1"),
                record(31, "digest", "u:8xJeoMakDQaA8NkfWetBIBym4mk="),
            ],
            13 => vec![record(0, "auth", ""), record(31, "auth", "")],
            14 => vec![record(31, "ip", "10.0.0.0/8")],
            _ => Vec::new(),
        }
    }

    fn blockers(self) -> BlockersRecord {
        BlockersRecord(match self.detail % 8 {
            0..3 | 4..7 => 0,
            3 => 1,
            _ => i32::from(self.flags),
        })
    }

    fn conditions(self, known: &Known) -> Conditions<'static> {
        let near = |by| {
            let path = self.path.wrapping_add(by);
            Self { path, ..self }.path(known).into()
        };
        let data = || {
            let (path, data) = (near(1), self.data());
            MultiOp::CheckData(CheckData { path, data })
        };
        let children = || {
            let (path, limit) = (near(self.flags >> 7), i32::from(self.flags >> 6) - 1);
            MultiOp::CheckChildren(CheckChildren { path, limit })
        };
        Conditions(match self.detail % 8 {
            4 => vec![data(), children()],
            5 => vec![children(), data()],
            6 => vec![children()],
            _ => Vec::new(),
        })
    }

    pub(crate) fn request(
        self,
        known: &Known,
        more: &mut impl FnMut() -> Option<Choice>,
    ) -> Request<'static> {
        match self.op() {
            Op::Enqueue | Op::GetPredecessor | Op::GetQueue | Op::Withdraw | Op::ForgetWatch => {
                self.of_a_queue(known)
            }
            Op::Multi | Op::MultiRead => {
                let mut parts = Vec::new();
                while parts.len() < usize::from(self.detail % 5)
                    && let Some(part) = more()
                {
                    parts.push(match self.op() {
                        Op::Multi => part.write(known),
                        _ => part.read(known),
                    });
                }
                match self.op() {
                    Op::Multi => Request::Multi(parts),
                    _ => Request::MultiRead(parts),
                }
            }
            Op::CheckWatches | Op::RemoveWatches | Op::SetWatches | Op::SetWatches2 => {
                self.of_watches(known)
            }
            Op::Auth | Op::Sync | Op::Reconfig | Op::AddWatch | Op::GetEphemerals => {
                self.of_a_connection(known)
            }
            Op::WhoAmI => Request::WhoAmI,
            Op::CloseSession => Request::CloseSession,
            Op::Sasl => Request::Sasl(Sasl { token: b"token" }),
            Op::Ping => Request::Ping,
            _ => self.of_a_znode(known),
        }
    }

    fn of_a_queue(self, known: &Known) -> Request<'static> {
        match self.op() {
            Op::Enqueue => Request::Enqueue(Enqueue {
                parent: self.path(known).into(),
                name: NAMES[usize::from(self.detail >> 3) % NAMES.len()].into(),
                data: self.data(),
                acl: self.acl(),
                blockers: self.blockers(),
                count: self.flag(0),
                queue_data: self.flag(1).then_some(&b"4"[..]),
                conditions: self.conditions(known),
            }),
            Op::GetPredecessor => Request::GetPredecessor(GetPredecessor {
                entry: self.path(known).into(),
                blockers: self.blockers(),
                count: self.flag(0),
                conditions: self.conditions(known),
            }),
            Op::GetQueue => Request::GetQueue(GetQueue {
                parent: self.path(known).into(),
                limit: [0, 1, 2, -1][usize::from(self.detail % 4)],
            }),
            Op::Withdraw => Request::Withdraw(Named {
                path: self.path(known).into(),
            }),
            _ => {
                let count = known.watches.len().max(1);
                let chosen = known.watches.get(usize::from(self.detail) % count);
                Request::ForgetWatch(ForgetWatch {
                    watch: chosen.copied().unwrap_or(i64::from(self.flags)),
                })
            }
        }
    }

    fn of_a_znode(self, known: &Known) -> Request<'static> {
        let path = || self.path(known);
        let named = || Named {
            path: path().into(),
        };
        let read = || self.looking(known);
        match self.op() {
            Op::Create => Request::Create(self.create(known)),
            Op::Create2 => Request::Create2(self.create(known)),
            Op::CreateContainer => Request::CreateContainer(Create {
                flags: 4,
                ..self.create(known)
            }),
            Op::CreateTtl => Request::CreateTtl(self.create_ttl(known)),
            Op::Delete => Request::Delete(self.versioned(known)),
            Op::Exists => Request::Exists(read()),
            Op::GetData => Request::GetData(read()),
            Op::SetData => Request::SetData(self.set_data(known)),
            Op::SetAcl => Request::SetAcl(SetAcl {
                path: path().into(),
                acl: self.acl(),
                version: self.version(),
            }),
            Op::GetChildren => Request::GetChildren(read()),
            Op::GetChildren2 => Request::GetChildren2(read()),
            Op::GetAllChildrenNumber => Request::GetAllChildrenNumber(named()),
            _ => Request::GetAcl(named()),
        }
    }

    fn of_watches(self, known: &Known) -> Request<'static> {
        let path = self.path(known);
        let list = |bit| match (self.flag(bit), self.flag(bit + 1)) {
            (false, _) => NonNullList(Vec::new()),
            (true, false) => NonNullList(vec![path.clone().into()]),
            (true, true) => NonNullList(PATHS[..8].iter().map(|path| (*path).into()).collect()),
        };
        let relative_zxid = [known.seen, 0, i64::MAX, known.mzxid][usize::from(self.detail % 4)];
        let watches = Watches {
            path: path.clone().into(),
            kind: i32::from(self.detail % 8),
        };
        match self.op() {
            Op::CheckWatches => Request::CheckWatches(watches),
            Op::RemoveWatches => Request::RemoveWatches(watches),
            Op::SetWatches => Request::SetWatches(SetWatches {
                relative_zxid,
                data: list(0),
                exist: list(2),
                child: list(4),
            }),
            _ => Request::SetWatches2(SetWatches2 {
                relative_zxid,
                data: list(0),
                exist: list(1),
                child: list(2),
                persistent: list(4),
                recursive: list(6),
            }),
        }
    }

    fn of_a_connection(self, known: &Known) -> Request<'static> {
        let path = self.path(known);
        match self.op() {
            Op::Auth => Request::Auth(Auth {
                kind: 0,
                scheme: ["digest", "digest", "digest", "world", "sasl"]
                    [usize::from(self.detail % 5)]
                .into(),
                auth: [&b"u:secret"[..], b"other:secret", b"none"][usize::from(self.flags % 3)],
            }),
            Op::Sync => Request::Sync(Sync {
                path: self.flag(0).then(|| path.into()),
            }),
            Op::Reconfig => Request::Reconfig(Reconfig {
                joining: None,
                leaving: None,
                members: Some(path.into()),
                config: -1,
            }),
            Op::AddWatch => Request::AddWatch(AddWatch {
                path: path.into(),
                mode: i32::from(self.detail % 3),
            }),
            _ => Request::GetEphemerals(Prefix {
                prefix: path.into(),
            }),
        }
    }

    fn write(self, known: &Known) -> MultiOp<'static> {
        match self.op % 9 {
            0 => MultiOp::Create(self.create(known)),
            1 => MultiOp::Create2(self.create(known)),
            2 => MultiOp::CreateContainer(Create {
                flags: 4,
                ..self.create(known)
            }),
            3 => MultiOp::CreateTtl(self.create_ttl(known)),
            4 => MultiOp::Delete(self.versioned(known)),
            5 => MultiOp::SetData(self.set_data(known)),
            6 => MultiOp::Check(self.versioned(known)),
            7 => MultiOp::CheckData(CheckData {
                path: self.path(known).into(),
                data: self.data(),
            }),
            _ => MultiOp::CheckChildren(CheckChildren {
                path: self.path(known).into(),
                limit: i32::from(self.detail % 4) - 1,
            }),
        }
    }

    fn read(self, known: &Known) -> MultiOp<'static> {
        match self.op % 4 {
            0 => MultiOp::GetData(self.looking(known)),
            2 => MultiOp::GetEntry(self.looking(known)),
            _ => MultiOp::GetChildren(self.looking(known)),
        }
    }

    fn looking(self, known: &Known) -> Read<'static> {
        Read {
            path: self.path(known).into(),
            watch: self.flag(0),
        }
    }

    fn create(self, known: &Known) -> Create<'static> {
        Create {
            path: self.new_path(known).into(),
            data: self.data(),
            acl: self.acl(),
            flags: i32::from(self.flags % 8),
        }
    }

    fn create_ttl(self, known: &Known) -> CreateTtl<'static> {
        CreateTtl {
            create: Create {
                flags: 5 + i32::from(self.flags % 3),
                ..self.create(known)
            },
            ttl_ms: [1, 5_000, 0, i64::MAX][usize::from(self.flags >> 2 & 3)],
        }
    }

    fn versioned(self, known: &Known) -> Versioned<'static> {
        Versioned {
            path: self.path(known).into(),
            version: self.version(),
        }
    }

    fn set_data(self, known: &Known) -> SetData<'static> {
        SetData {
            path: self.path(known).into(),
            data: self.data(),
            version: self.version(),
        }
    }
}
