//! Strategies for arbitrary records, for [`round_trips`](super::round_trips).

use proptest::prelude::*;

use crate::model::types::{SessionId, Stat, Zxid};
use crate::wire::*;

pub(super) fn text() -> impl Strategy<Value = Text<'static>> {
    prop_oneof![
        "/[a-z]{1,8}(/[a-zé€]{1,6}){0,3}",
        ".{0,12}",
        Just(String::new()),
    ]
    .prop_map(Text::Owned)
}

fn path() -> impl Strategy<Value = Path<'static>> {
    text().prop_map(Path)
}

/// Records borrow their data, so leak it.
fn data() -> impl Strategy<Value = Data<'static>> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| &*bytes.leak())
}

fn list<S: Strategy>(entry: S) -> impl Strategy<Value = Vec<S::Value>> {
    prop::collection::vec(entry, 0..4)
}

fn listed() -> impl Strategy<Value = NonNullList<Path<'static>>> {
    list(path()).prop_map(NonNullList)
}

fn acl() -> impl Strategy<Value = Vec<AclRecord<'static>>> {
    let entry = (any::<i32>(), text(), path());
    list(entry.prop_map(|(perms, scheme, id)| AclRecord { perms, scheme, id }))
}

pub(super) fn stat() -> impl Strategy<Value = Stat> {
    (any::<[i64; 6]>(), any::<[i32; 5]>()).prop_map(|(long, short)| Stat {
        czxid: Zxid(long[0]),
        mzxid: Zxid(long[1]),
        pzxid: Zxid(long[2]),
        ctime: long[3],
        mtime: long[4],
        version: short[0],
        cversion: short[1],
        aversion: short[2],
        ephemeral_owner: SessionId(long[5]),
        data_length: short[3],
        num_children: short[4],
    })
}

prop_compose! {
    fn create()(path in path(), data in data(), acl in acl(), flags in -1..8) -> Create<'static> {
        Create { path, data, acl, flags }
    }
}

prop_compose! {
    fn create_ttl()(create in create(), ttl_ms in any::<i64>()) -> CreateTtl<'static> {
        CreateTtl { create, ttl_ms }
    }
}

prop_compose! {
    fn versioned()(path in path(), version in any::<i32>()) -> Versioned<'static> {
        Versioned { path, version }
    }
}

prop_compose! {
    fn check_data()(path in path(), data in data()) -> CheckData<'static> {
        CheckData { path, data }
    }
}

prop_compose! {
    fn check_children()(path in path(), limit in any::<i32>()) -> CheckChildren<'static> {
        CheckChildren { path, limit }
    }
}

prop_compose! {
    fn look()(path in path(), watch in any::<bool>()) -> Read<'static> {
        Read { path, watch }
    }
}

prop_compose! {
    fn set_data()(path in text(), data in data(), version in any::<i32>()) -> SetData<'static> {
        SetData { path, data, version }
    }
}

prop_compose! {
    fn watches()(path in text(), kind in any::<i32>()) -> Watches<'static> {
        Watches { path, kind }
    }
}

prop_compose! {
    fn set_watches()(
        relative_zxid in any::<i64>(), data in listed(), exist in listed(), child in listed()
    ) -> SetWatches<'static> {
        SetWatches { relative_zxid, data, exist, child }
    }
}

prop_compose! {
    fn set_watches2()(
        first in set_watches(), persistent in listed(), recursive in listed()
    ) -> SetWatches2<'static> {
        let SetWatches { relative_zxid, data, exist, child } = first;
        SetWatches2 { relative_zxid, data, exist, child, persistent, recursive }
    }
}

prop_compose! {
    fn reconfig()(
        joining in prop::option::of(text()), leaving in prop::option::of(text()),
        members in prop::option::of(text()), config in any::<i64>()
    ) -> Reconfig<'static> {
        Reconfig { joining, leaving, members, config }
    }
}

fn named() -> impl Strategy<Value = Named<'static>> {
    path().prop_map(|path| Named { path })
}

fn writes() -> impl Strategy<Value = Vec<MultiOp<'static>>> {
    list(prop_oneof![
        create().prop_map(MultiOp::Create),
        create().prop_map(MultiOp::Create2),
        create().prop_map(MultiOp::CreateContainer),
        create_ttl().prop_map(MultiOp::CreateTtl),
        versioned().prop_map(MultiOp::Delete),
        set_data().prop_map(MultiOp::SetData),
        versioned().prop_map(MultiOp::Check),
        check_data().prop_map(MultiOp::CheckData),
        check_children().prop_map(MultiOp::CheckChildren),
    ])
}

fn reads() -> impl Strategy<Value = Vec<MultiOp<'static>>> {
    list(prop_oneof![
        look().prop_map(MultiOp::GetData),
        look().prop_map(MultiOp::GetChildren),
        look().prop_map(MultiOp::GetEntry),
    ])
}

fn of_one_znode() -> BoxedStrategy<Request<'static>> {
    let set_acl = (text(), acl(), any::<i32>());
    let set_acl = set_acl.prop_map(|(path, acl, version)| SetAcl { path, acl, version });
    prop_oneof![
        create().prop_map(Request::Create),
        create().prop_map(Request::Create2),
        create().prop_map(Request::CreateContainer),
        create_ttl().prop_map(Request::CreateTtl),
        versioned().prop_map(Request::Delete),
        versioned().prop_map(Request::Check),
        check_data().prop_map(Request::CheckData),
        check_children().prop_map(Request::CheckChildren),
        look().prop_map(Request::Exists),
        look().prop_map(Request::GetData),
        look().prop_map(Request::GetChildren),
        look().prop_map(Request::GetEntry),
        look().prop_map(Request::GetChildren2),
        set_data().prop_map(Request::SetData),
        named().prop_map(Request::GetAcl),
        set_acl.prop_map(Request::SetAcl),
        named().prop_map(Request::GetAllChildrenNumber),
        prop::option::of(text()).prop_map(|path| Request::Sync(Sync { path })),
        text().prop_map(|prefix| Request::GetEphemerals(Prefix { prefix })),
    ]
    .boxed()
}

fn of_a_connection() -> BoxedStrategy<Request<'static>> {
    let auth = (any::<i32>(), text(), data());
    let auth = auth.prop_map(|(kind, scheme, auth)| Auth { kind, scheme, auth });
    let add_watch = (text(), any::<i32>()).prop_map(|(path, mode)| AddWatch { path, mode });
    prop_oneof![
        reconfig().prop_map(Request::Reconfig),
        watches().prop_map(Request::CheckWatches),
        watches().prop_map(Request::RemoveWatches),
        auth.prop_map(Request::Auth),
        set_watches().prop_map(Request::SetWatches),
        set_watches2().prop_map(Request::SetWatches2),
        data().prop_map(|token| Request::Sasl(Sasl { token })),
        add_watch.prop_map(Request::AddWatch),
        writes().prop_map(Request::Multi),
        reads().prop_map(Request::MultiRead),
        Just(Request::Ping),
        Just(Request::WhoAmI),
        Just(Request::CloseSession),
    ]
    .boxed()
}

fn blockers() -> impl Strategy<Value = BlockersRecord> {
    // Leave out 2, because its record has more fields and is read back as 0.
    any::<i32>().prop_filter_map("2", |number| {
        (number != 2).then_some(BlockersRecord(number))
    })
}

fn conditions() -> impl Strategy<Value = Conditions<'static>> {
    let condition = prop_oneof![
        check_data().prop_map(MultiOp::CheckData),
        check_children().prop_map(MultiOp::CheckChildren),
    ];
    prop::collection::vec(condition, 0..3).prop_map(Conditions)
}

prop_compose! {
    fn enqueue()(
        parent in path(), name in text(), data in data(), acl in acl(), blockers in blockers(),
        count in any::<bool>(), queue_data in prop::option::of(data()), conditions in conditions()
    ) -> Enqueue<'static> {
        Enqueue { parent, name, data, acl, blockers, count, queue_data, conditions }
    }
}

prop_compose! {
    fn get_predecessor()(
        entry in path(), blockers in blockers(), count in any::<bool>(), conditions in conditions()
    ) -> GetPredecessor<'static> {
        GetPredecessor { entry, blockers, count, conditions }
    }
}

fn of_a_queue() -> BoxedStrategy<Request<'static>> {
    let get_queue = (path(), any::<i32>()).prop_map(|(parent, limit)| GetQueue { parent, limit });
    prop_oneof![
        enqueue().prop_map(Request::Enqueue),
        get_predecessor().prop_map(Request::GetPredecessor),
        get_queue.prop_map(Request::GetQueue),
        named().prop_map(Request::Withdraw),
        any::<i64>().prop_map(|watch| Request::ForgetWatch(ForgetWatch { watch })),
    ]
    .boxed()
}

pub(super) fn request() -> impl Strategy<Value = Request<'static>> {
    prop_oneof![of_one_znode(), of_a_connection(), of_a_queue()]
}

fn ahead() -> impl Strategy<Value = Ahead<'static>> {
    prop_oneof![
        Just(Ahead::Clear),
        (path(), any::<i64>(), any::<i32>()).prop_map(|(by, watch, count)| Ahead::Blocked {
            by,
            watch,
            count
        }),
        Just(Ahead::Gone),
        list(text()).prop_map(Ahead::Listed),
        Just(Ahead::Unknown),
    ]
}

fn result() -> impl Strategy<Value = MultiResult<'static>> {
    prop_oneof![
        path().prop_map(|path| Ok((Op::Create, Response::Path(path)))),
        (path(), stat()).prop_map(|(path, stat)| Ok((Op::Create2, Response::Created(path, stat)))),
        Just(Ok((Op::Delete, Response::Empty))),
        stat().prop_map(|stat| Ok((Op::SetData, Response::Stat(stat)))),
        Just(Ok((Op::Check, Response::Empty))),
        list(text()).prop_map(|names| Ok((Op::GetChildren, Response::Names(names)))),
        (data(), stat()).prop_map(|(data, stat)| Ok((Op::GetData, Response::Data(data, stat)))),
        (data(), stat(), any::<i64>())
            .prop_map(|(data, stat, at)| Ok((Op::GetEntry, Response::Entry(data, stat, at)))),
        any::<i32>().prop_map(Err),
    ]
}

pub(super) fn response() -> impl Strategy<Value = (Op, Response<'static>)> {
    let info = (text(), text()).prop_map(|(scheme, user)| ClientInfo { scheme, user });
    prop_oneof![
        path().prop_map(|path| (Op::Create, Response::Path(path))),
        prop::option::of(text()).prop_map(|path| (Op::Sync, Response::Synced(path))),
        (path(), stat()).prop_map(|(path, stat)| (Op::CreateTtl, Response::Created(path, stat))),
        stat().prop_map(|stat| (Op::SetAcl, Response::Stat(stat))),
        (data(), stat()).prop_map(|(data, stat)| (Op::GetData, Response::Data(data, stat))),
        (acl(), stat()).prop_map(|(acl, stat)| (Op::GetAcl, Response::Acl(acl, stat))),
        list(text()).prop_map(|names| (Op::GetEphemerals, Response::Names(names))),
        (list(text()), stat())
            .prop_map(|(names, stat)| (Op::GetChildren2, Response::Children(names, stat))),
        any::<i32>().prop_map(|count| (Op::GetAllChildrenNumber, Response::Count(count))),
        any::<i32>().prop_map(|code| (Op::AddWatch, Response::Watching(code))),
        list(result()).prop_map(|results| (Op::MultiRead, Response::Multi(results))),
        prop::option::of(data()).prop_map(|token| (Op::Sasl, Response::Token(token))),
        list(info).prop_map(|infos| (Op::WhoAmI, Response::WhoAmI(infos))),
        Just((Op::Delete, Response::Empty)),
        (path(), any::<i64>(), ahead())
            .prop_map(|(path, czxid, ahead)| (Op::Enqueue, Response::Enqueued(path, czxid, ahead))),
        ahead().prop_map(|ahead| (Op::GetPredecessor, Response::Ahead(ahead))),
        (list(text()), any::<bool>())
            .prop_map(|(names, sorted)| (Op::GetQueue, Response::Queue(names, sorted))),
    ]
}

prop_compose! {
    pub(super) fn connect_request()(
        protocol_version in any::<i32>(), last_zxid_seen in any::<i64>(), timeout_ms in any::<i32>(),
        session in any::<i64>(), password in data(), read_only in any::<Option<bool>>()
    ) -> ConnectRequest<'static> {
        ConnectRequest { protocol_version, last_zxid_seen, timeout_ms, session, password, read_only }
    }
}

prop_compose! {
    pub(super) fn event()(kind in 1..5, path in path()) -> WatcherEvent<'static> {
        WatcherEvent { kind, state: 3, path }
    }
}
