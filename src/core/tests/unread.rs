//! Watches on a znode that the client may not read reveal no more about it than exists and getData do.

use super::*;
use crate::model::types::AclEntry;

fn unread() -> Acl {
    Acl::new([AclEntry {
        permissions: AclEntry::ALL - AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }])
}

/// Returns five requests, each with `/secret` in another list of watches.
fn lists(since: i64) -> [SetWatches; 5] {
    let of = |list: fn(&mut SetWatches) -> &mut Vec<ZnodePath>| {
        let mut asked = SetWatches {
            since: Zxid(since),
            ..SetWatches::default()
        };
        list(&mut asked).push(path("/secret"));
        asked
    };
    [
        of(|asked| &mut asked.data),
        of(|asked| &mut asked.exist),
        of(|asked| &mut asked.child),
        of(|asked| &mut asked.persistent),
        of(|asked| &mut asked.recursive),
    ]
}

const WHICH: [WatchFilter; 5] = [
    WatchFilter::Data,
    WatchFilter::Child,
    WatchFilter::Mode(WatchMode::Persistent),
    WatchFilter::Mode(WatchMode::PersistentRecursive),
    WatchFilter::Any,
];

struct World {
    store: Harness,
    owner: SessionRef,
    spy: SessionRef,
}

impl World {
    fn new(acl: Acl) -> Self {
        let mut store = Harness::new();
        let (owner, spy) = (store.remote(), store.remote());
        let super_user = Identity::superuser();
        store.core.add_identity(owner, super_user).unwrap();
        for at in ["/secret", "/other"] {
            let mut create = create(at, Persistent);
            create.acl = acl.clone();
            store.submit(owner, Request::Create(create)).unwrap();
        }
        Self { store, owner, spy }
    }

    fn set_watches(&mut self, asked: &SetWatches) {
        let (now, effects) = (self.store.now, &mut self.store.effects);
        let set = self.store.core.set_watches(self.spy, asked, now, effects);
        set.unwrap();
    }

    fn events(&mut self) -> Vec<(EventKind, String)> {
        let fired = self.store.fired().into_iter();
        fired.map(|(_, kind, at)| (kind, at)).collect()
    }

    fn has(&mut self, which: WatchFilter) -> bool {
        !self.find(which).is_empty()
    }

    fn remove(&mut self, which: WatchFilter) -> bool {
        let found = self.find(which);
        self.store.core.remove_watches(&found)
    }

    fn find(&mut self, which: WatchFilter) -> Vec<WatchKey> {
        let found = self.store.find_watches(self.spy, "/secret", which);
        found.unwrap()
    }

    fn change(&mut self, at: &str, how: usize) {
        let (store, owner) = (&mut self.store, self.owner);
        let child = format!("{at}/child");
        match how % 3 {
            0 => drop(store.set(owner, at, None).unwrap()),
            1 => {
                let mut create = create(&child, Persistent);
                create.acl = unread();
                store.submit(owner, Request::Create(create)).unwrap();
                store.delete(owner, &child).unwrap();
            }
            _ => {
                store.delete(owner, at).unwrap();
                let mut create = create(at, Persistent);
                create.acl = unread();
                store.submit(owner, Request::Create(create)).unwrap();
            }
        }
    }

    fn step(&mut self, step: usize, since: i64) -> (bool, Vec<(EventKind, String)>) {
        let answer = match step {
            0..5 => {
                self.set_watches(&lists(since)[step]);
                true
            }
            5..10 => self.has(WHICH[step - 5]),
            10..15 => self.remove(WHICH[step - 10]),
            step => {
                let add = |mode| Request::AddWatch {
                    path: path("/secret"),
                    mode,
                };
                let request = match step {
                    15 => add(WatchMode::Persistent),
                    16 => add(WatchMode::PersistentRecursive),
                    17 => exists("/secret"),
                    18 => get_data("/secret"),
                    _ => get_children("/secret"),
                };
                self.store.submit(self.spy, request).is_ok()
            }
        };
        (answer, self.events())
    }
}

#[test]
fn watches_brought_back_tell_nothing_of_a_znode_that_may_not_be_read() {
    let mut world = World::new(unread());
    world.change("/secret", 0);
    for since in 0..10 {
        for asked in lists(since) {
            world.set_watches(&asked);
            assert_eq!(world.events(), [], "since {since}: {asked:?}");
        }
    }
    for which in WHICH {
        assert!(world.has(which), "{which:?}: all of them are armed");
    }
    for how in 0..3 {
        world.change("/secret", how);
        assert_eq!(world.events(), [], "change {how}");
    }
}

#[test]
fn watches_brought_back_tell_missed_changes_to_sessions_that_may_read() {
    let mut world = World::new(Acl::open());
    world.change("/secret", 0);
    let told = |kind| vec![(kind, "/secret".to_owned())];
    let [data, exist, child, persistent, recursive] = lists(0);
    for (asked, expected) in [
        (data, told(NodeDataChanged)),
        (exist, told(NodeCreated)),
        (child, told(NodeChildrenChanged)),
        (persistent, vec![]),
        (recursive, vec![]),
    ] {
        world.set_watches(&asked);
        assert_eq!(world.events(), expected, "{asked:?}");
    }
    let mut world = World::new(unread());
    let owner = world.owner;
    world.store.delete(owner, "/secret").unwrap();
    world.set_watches(&lists(0)[0]);
    assert_eq!(world.events(), told(NodeDeleted));
}

#[test]
fn no_search_in_several_steps_tells_that_a_znode_has_changed() {
    const STEPS: usize = 20;
    for first in 0..STEPS {
        for second in 0..STEPS {
            for how in 0..3 {
                let mut worlds = [World::new(unread()), World::new(unread())];
                let mut seen = worlds.each_mut().map(|world| vec![world.step(first, 1)]);
                for (world, at) in worlds.iter_mut().zip(["/secret", "/other"]) {
                    world.change(at, how);
                }
                for (world, seen) in worlds.iter_mut().zip(&mut seen) {
                    let events = world.events();
                    seen.push((true, events));
                    seen.push(world.step(second, 3));
                    seen.extend((5..10).map(|which| world.step(which, 0)));
                }
                let [one, other] = seen;
                assert_eq!(one, other, "{first}, change {how}, {second}");
            }
        }
    }
}

/// The watches are restored twice, so the session has watches of several kinds on the znode.
#[test]
fn a_watch_is_not_used_up_beside_another_that_was_told_nothing() {
    for how in 0..3 {
        let mut worlds = [World::new(unread()), World::new(unread())];
        let seen = worlds.each_mut().map(|world| {
            for asked in lists(0).iter().rev().chain(&lists(0)) {
                world.set_watches(asked);
            }
            world.events()
        });
        assert_eq!(seen, [vec![], vec![]]);
        for (world, at) in worlds.iter_mut().zip(["/secret", "/other"]) {
            world.change(at, how);
        }
        for world in &mut worlds {
            let seen: Vec<_> = (5..10).map(|which| world.step(which, 0)).collect();
            assert_eq!(seen, vec![(true, vec![]); 5], "change {how}");
        }
    }
}

#[test]
fn a_watch_that_was_used_up_unseen_tells_nothing_until_it_is_armed_again() {
    let mut world = World::new(Acl::open());
    let (owner, spy) = (world.owner, world.spy);
    let set_acl = |acl| Request::SetAcl {
        path: path("/secret"),
        acl,
        version: None,
    };
    world.store.submit(spy, get_data("/secret")).unwrap();
    world.store.submit(owner, set_acl(unread())).unwrap();
    world.store.set(owner, "/secret", None).unwrap();
    world.store.submit(owner, set_acl(Acl::open())).unwrap();
    world.store.set(owner, "/secret", None).unwrap();
    assert_eq!(world.events(), []);
    world.store.submit(spy, get_data("/secret")).unwrap();
    world.store.set(owner, "/secret", None).unwrap();
    assert_eq!(world.events(), [(NodeDataChanged, "/secret".to_owned())]);
}
