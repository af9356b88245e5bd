//! Seed corpus of the fuzzers. It contains a request of every kind, encoded by our own encoder.

use crate::wire::*;

pub(crate) type Inputs = Vec<(&'static str, Vec<u8>)>;

const OPEN: [AclRecord<'static>; 1] = [AclRecord {
    perms: 31,
    scheme: Text::Borrowed("world"),
    id: Path(Text::Borrowed("anyone")),
}];

pub(crate) fn requests() -> Inputs {
    let mut inputs: Inputs = every_request()
        .into_iter()
        .map(|(name, request)| (name, frame(&request)))
        .collect();
    let mut cut = frame(&create_of("/a/b", 1));
    cut.truncate(cut.len() - 6);
    inputs.push(("cut", cut));
    inputs.push(("multi-conditions", frame(&conditions())));
    inputs
}

fn conditions() -> Request<'static> {
    Request::Multi(vec![
        MultiOp::CheckData(CheckData {
            path: "/a/b".into(),
            data: b"data",
        }),
        MultiOp::CheckChildren(CheckChildren {
            path: "/a".into(),
            limit: 2,
        }),
    ])
}

pub(crate) fn handshakes() -> Inputs {
    let whole = |read_only| {
        let mut bytes = Vec::new();
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0x17,
            timeout_ms: 30_000,
            session: 0x0100_0000_0000_002a,
            password: &[7; PASSWORD_BYTES],
            read_only,
        };
        request.put(&mut bytes);
        bytes
    };
    let mut cut = whole(None);
    cut.truncate(30);
    vec![
        ("new", whole(Some(false))),
        ("old", whole(None)),
        ("read-only", whole(Some(true))),
        ("cut", cut),
    ]
}

pub(crate) fn streams() -> Inputs {
    let stream = |piece: u8| {
        let mut bytes = vec![piece];
        for (_, request) in every_request().iter().take(5) {
            put_frame(&mut bytes, |to| request.put_with_header(7, to));
        }
        bytes
    };
    let mut cut = stream(9);
    cut.truncate(100);
    let mut huge = stream(3);
    huge[1] = 0x7f;
    vec![
        ("bytes", stream(1)),
        ("pieces", stream(13)),
        ("whole", stream(255)),
        ("cut", cut),
        ("damaged", huge),
    ]
}

/// Whole connections. A byte before each connection sets the size of the pieces in which its bytes and its responses
/// arrive.
pub(crate) fn connections() -> Inputs {
    let connection = |piece: u8, requests: &[Request<'_>]| {
        let mut bytes = vec![piece];
        let handshake = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 30_000,
            session: 0,
            password: &[0; PASSWORD_BYTES],
            read_only: Some(false),
        };
        put_frame(&mut bytes, |to| handshake.put(to));
        for (xid, request) in (1..).zip(requests) {
            put_frame(&mut bytes, |to| request.put_with_header(xid, to));
        }
        bytes
    };
    // Leave out sasl, because a refused sasl packet ends the connection.
    let mut every = every_request();
    every.retain(|(name, _)| !["sasl", "closeSession"].contains(name));
    every.push(("closeSession", Request::CloseSession));
    let every: Vec<_> = every.into_iter().map(|(_, request)| request).collect();
    let locks = [
        Request::Create(create("/a", 0)),
        create_of("/a/lock-", 3),
        create_of("/a/b", 1),
        Request::GetChildren2(look()),
        Request::Exists(look()),
        Request::SetData(set_data()),
        Request::CloseSession,
    ];
    let mut cut = connection(7, &locks);
    cut.truncate(cut.len() - 30);
    let mut huge = connection(200, &every);
    huge[1 + 49] = 0x7f;
    vec![
        ("every", connection(255, &every)),
        ("bytes", connection(1, &every)),
        ("locks", connection(20, &locks)),
        ("cut", cut),
        ("damaged", huge),
    ]
}

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.put_with_header(7, &mut bytes);
    bytes
}

fn every_request() -> Vec<(&'static str, Request<'static>)> {
    let mut requests = of_one_znode();
    requests.extend(of_a_connection());
    requests.extend(multis());
    requests
}

fn of_one_znode() -> Vec<(&'static str, Request<'static>)> {
    let versioned = |version| Versioned {
        path: "/a/b".into(),
        version,
    };
    let set_acl = SetAcl {
        path: "/a/b".into(),
        acl: OPEN.into(),
        version: 0,
    };
    vec![
        ("create", create_of("/a/b", 1)),
        ("create2", Request::Create2(create("/a/n-", 3))),
        ("createContainer", Request::CreateContainer(create("/c", 4))),
        ("createTTL", Request::CreateTtl(create_ttl())),
        ("delete", Request::Delete(versioned(-1))),
        ("exists", Request::Exists(look())),
        ("getData", Request::GetData(look())),
        ("setData", Request::SetData(set_data())),
        ("getACL", Request::GetAcl(named())),
        ("setACL", Request::SetAcl(set_acl)),
        ("getChildren", Request::GetChildren(look())),
        ("getChildren2", Request::GetChildren2(look())),
        (
            "getAllChildrenNumber",
            Request::GetAllChildrenNumber(named()),
        ),
    ]
}

fn of_a_connection() -> Vec<(&'static str, Request<'static>)> {
    let prefix = Prefix {
        prefix: "/a".into(),
    };
    let reconfig = Reconfig {
        joining: None,
        leaving: None,
        members: Some("server.1=a:1:2;3".into()),
        config: -1,
    };
    let watches = |kind| Watches {
        path: "/a/b".into(),
        kind,
    };
    let auth = Auth {
        kind: 0,
        scheme: "digest".into(),
        auth: b"user:secret",
    };
    let add_watch = AddWatch {
        path: "/a".into(),
        mode: 1,
    };
    let sync = Sync {
        path: Some("/a".into()),
    };
    vec![
        ("sync", Request::Sync(sync)),
        ("ping", Request::Ping),
        ("reconfig", Request::Reconfig(reconfig)),
        ("checkWatches", Request::CheckWatches(watches(3))),
        ("removeWatches", Request::RemoveWatches(watches(1))),
        ("auth", Request::Auth(auth)),
        ("setWatches", Request::SetWatches(set_watches())),
        ("sasl", Request::Sasl(Sasl { token: b"token" })),
        ("getEphemerals", Request::GetEphemerals(prefix)),
        ("setWatches2", Request::SetWatches2(set_watches2())),
        ("addWatch", Request::AddWatch(add_watch)),
        ("whoAmI", Request::WhoAmI),
        ("closeSession", Request::CloseSession),
    ]
}

fn multis() -> Vec<(&'static str, Request<'static>)> {
    let versioned = |version| Versioned {
        path: "/a/b".into(),
        version,
    };
    let writes = vec![
        MultiOp::Check(versioned(3)),
        MultiOp::Create(create("/a/b", 0)),
        MultiOp::Create2(create("/a/n-", 2)),
        MultiOp::CreateContainer(create("/c", 4)),
        MultiOp::CreateTtl(create_ttl()),
        MultiOp::SetData(set_data()),
        MultiOp::Delete(versioned(-1)),
    ];
    let reads = vec![MultiOp::GetData(look()), MultiOp::GetChildren(look())];
    vec![
        ("multi", Request::Multi(writes)),
        ("multi-empty", Request::Multi(Vec::new())),
        ("multiRead", Request::MultiRead(reads)),
    ]
}

fn create_of(path: &'static str, flags: i32) -> Request<'static> {
    Request::Create(create(path, flags))
}

fn create(path: &'static str, flags: i32) -> Create<'static> {
    Create {
        path: path.into(),
        data: b"some data",
        acl: OPEN.into(),
        flags,
    }
}

fn create_ttl() -> CreateTtl<'static> {
    CreateTtl {
        create: create("/t", 5),
        ttl_ms: 60_000,
    }
}

fn look() -> Read<'static> {
    Read {
        path: "/a/b".into(),
        watch: true,
    }
}

fn named() -> Named<'static> {
    Named {
        path: "/a/b".into(),
    }
}

fn set_data() -> SetData<'static> {
    SetData {
        path: "/a/b".into(),
        data: b"other data",
        version: 3,
    }
}

fn set_watches() -> SetWatches<'static> {
    let list =
        |paths: &[&'static str]| NonNullList(paths.iter().map(|path| Path::from(*path)).collect());
    SetWatches {
        relative_zxid: 0x17,
        data: list(&["/a", "/a/b"]),
        exist: list(&["/later"]),
        child: list(&[]),
    }
}

fn set_watches2() -> SetWatches2<'static> {
    let SetWatches {
        relative_zxid,
        data,
        exist,
        child,
    } = set_watches();
    SetWatches2 {
        relative_zxid,
        data,
        exist,
        child,
        persistent: NonNullList(vec!["/a".into()]),
        recursive: NonNullList(vec!["/".into()]),
    }
}
