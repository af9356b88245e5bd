//! Round trips, and loading of arbitrary bytes.

use std::time::Duration;

use super::*;
use crate::core::{Core, CoreOptions, Effects, Limits, Now, SessionRef};
use crate::log::disk::Disk;
use crate::log::header::header_crc;
use crate::log::recovery::Completeness;
use crate::log::sim::SimDisk;
use crate::log::testing::content;
use crate::model::acl::Acl;
use crate::model::identity::Identity;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Op, Request};
use crate::model::types::{AclEntry, CreateMode, SessionId};

fn core() -> Core {
    Core::new(CoreOptions {
        last_zxid: 0,
        tick: Duration::from_secs(2),
        shortest_timeout: Duration::from_secs(4),
        longest_timeout: Duration::from_secs(40),
        allow_ttl: true,
        reaper_interval: Duration::from_secs(60),
        unused_container: Duration::from_secs(300),
        limits: Limits {
            znodes: 1 << 22,
            bytes: usize::MAX,
            sessions: 1 << 20,
            watches_per_session: 1,
            txn_bytes: crate::model::size::MAX_TXN_BYTES,
        },
        hash_seed: 1,
        super_digest: None,
        not_queues: &[],
    })
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn mode(of: u64) -> CreateMode {
    [
        CreateMode::Persistent,
        CreateMode::PersistentSequential,
        CreateMode::Ephemeral,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
        CreateMode::PersistentTtl(Duration::from_millis(77)),
    ][of as usize]
}

fn grown(seed: u64, steps: usize) -> Core {
    let random = &mut Random(seed);
    let mut core = core();
    let mut now = Now {
        unix_ms: 1_790_000_000_000,
        ..Now::default()
    };
    let sessions: Vec<SessionRef> = (1..=3)
        .map(|id| {
            let timeout = (id > 1).then(|| Duration::from_secs(10));
            let opened = core.open_session(SessionId(id), [id as u8; 16], timeout, id == 1, now);
            opened.unwrap().0
        })
        .collect();
    let parents = ["", "/a", "/a/é", "/a/é/c", "/d", "/é"];
    for _ in 0..steps {
        now.unix_ms += random.below(1000) as i64;
        let name = ["a", "é", "c", "d", "n-", "_c_1-lock-"][random.below(6) as usize];
        let parent = parents[random.below(6) as usize];
        let path = ZnodePath::new(format!("{parent}/{name}")).unwrap();
        let data = vec![7; random.below(40) as usize].into();
        let request = match random.below(8) {
            0 => Request::Delete {
                path,
                version: None,
            },
            1 => Request::SetData {
                path,
                data,
                version: None,
            },
            2 => Request::Multi(vec![Op::SetData {
                path,
                data,
                version: None,
            }]),
            _ => Request::Create(Create {
                path,
                data,
                mode: mode(random.below(6)),
                acl: if random.below(4) == 0 {
                    Acl::new([AclEntry {
                        permissions: 3,
                        scheme: "digest".into(),
                        id: "me:x".into(),
                    }])
                } else {
                    Acl::open()
                },
            }),
        };
        let session = sessions[random.below(3) as usize];
        let _ = core.submit(session, request, now, &mut Effects::default());
    }
    core
}

fn head(core: &Core) -> Head {
    Head {
        store: [7; 16],
        start: Start {
            segment: 3,
            facts: Facts {
                chain: 99,
                zxid: core.last_zxid(),
                epoch: 5,
                longest_timeout_ms: 40_000,
                is_clean: true,
                completeness: Completeness::Complete,
                allowed_timeout_ms: Some(50_000),
            },
        },
        made: 6,
    }
}

fn written(core: &Core, form: Form) -> Vec<u8> {
    let disk = SimDisk::new();
    let file = disk.create("it").unwrap();
    let bytes = write(&*file, form, &head(core), core, &mut || Ok(())).unwrap();
    let content = disk.content("it").unwrap();
    assert_eq!(content.len() as u64, bytes);
    content
}

fn loaded(bytes: &[u8], form: Form) -> Result<(Loaded, Core), Unreadable> {
    let disk = SimDisk::new();
    disk.put("it", bytes.to_vec());
    let mut core = core();
    let loaded = load(&*disk.open("it").unwrap(), form, &mut core, &mut || Ok(()))?;
    Ok((loaded, core))
}

#[test]
fn a_snapshot_brings_everything_back() {
    for seed in 0..100 {
        let core = grown(seed, 300);
        for form in [Form::Snapshot, Form::Backup] {
            let bytes = written(&core, form);
            let (loaded, copy) = loaded(&bytes, form).unwrap();
            assert_eq!(content(&copy), content(&core), "seed {seed}");
            assert_eq!(copy.last_zxid(), core.last_zxid());
            assert_eq!(loaded.head, head(&core));
            assert_eq!(loaded.bytes, bytes.len() as u64);
        }
    }
}

#[test]
fn a_snapshot_of_many_chunks_comes_back_and_pauses_between_them() {
    let mut core = core();
    let session = core.open_session(SessionId(1), [1; 16], None, false, Now::default());
    let session = session.unwrap().0;
    for number in 0..3_000 {
        let create = Create {
            path: ZnodePath::new(format!("/{}-{number:05}", "p".repeat(50))).unwrap(),
            data: vec![number as u8; 200].into(),
            mode: CreateMode::Persistent,
            acl: Acl::open(),
        };
        let effects = &mut Effects::default();
        core.submit(session, Request::Create(create), Now::default(), effects)
            .unwrap();
    }
    let disk = SimDisk::new();
    let mut pauses = 0;
    let file = disk.create("it").unwrap();
    let pause = &mut || {
        pauses += 1;
        Ok(())
    };
    write(&*file, Form::Snapshot, &head(&core), &core, pause).unwrap();
    assert!(pauses >= 4, "{pauses}");
    let (_, copy) = loaded(&disk.content("it").unwrap(), Form::Snapshot).unwrap();
    assert_eq!(content(&copy), content(&core));
}

#[test]
fn a_written_snapshot_is_synced() {
    let core = grown(1, 100);
    let disk = SimDisk::new();
    let file = disk.create("it").unwrap();
    disk.sync_folder().unwrap();
    write(&*file, Form::Snapshot, &head(&core), &core, &mut || Ok(())).unwrap();
    disk.crash_keeping(|| false);
    let (_, copy) = loaded(&disk.content("it").unwrap(), Form::Snapshot).unwrap();
    assert_eq!(content(&copy), content(&core));
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed_and_placed() {
    let bytes = written(&grown(3, 60), Form::Snapshot);
    let offset = |bytes: &[u8]| match loaded(bytes, Form::Snapshot) {
        Err(Unreadable::Damaged { offset, .. }) => offset,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was not noticed"),
    };
    for at in 0..bytes.len() {
        assert!(offset(&bytes[..at]) <= at as u64);
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(offset(&changed) <= at as u64);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(offset(&longer), bytes.len() as u64);
}

#[test]
fn what_has_the_right_checksums_and_makes_no_sense_is_an_error() {
    let random = &mut Random(5);
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..40 {
        let good = written(&grown(seed, 40), Form::Snapshot);
        for _ in 0..250 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(3) {
                let at = HEADER_BYTES
                    + 8
                    + random.below((bytes.len() - HEADER_BYTES - 8) as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            let crc = crc32fast::hash(&bytes[HEADER_BYTES + 4..]);
            bytes[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
            match loaded(&bytes, Form::Snapshot) {
                Ok((_, mut core)) => {
                    taken += 1;
                    delete_everything(&mut core);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 100 && taken > 100, "{refused} {taken}");
}

fn delete_everything(core: &mut Core) {
    let now = Now::default();
    let effects = &mut Effects::default();
    for session in core.session_images().collect::<Vec<_>>() {
        let opened = core.reattach(
            session.id,
            &session.password,
            Duration::from_secs(9),
            now,
            effects,
        );
        if let Ok((session, _)) = opened {
            let _ = core.submit(session, Request::Close, now, effects);
        }
    }
    let me = core.open_session(SessionId(i64::MIN), [0; 16], None, true, now);
    let Ok((me, _)) = me else { return };
    core.add_identity(me, Identity::superuser()).unwrap();
    let mut paths: Vec<_> = core.node_images().map(|image| image.path).collect();
    while let Some(path) = paths.pop() {
        let delete = Request::Delete {
            path,
            version: None,
        };
        let _ = core.submit(me, delete, now, effects);
    }
    assert_eq!(core.node_count(), 4);
}

#[test]
fn a_later_format_is_refused_and_both_versions_are_named() {
    let mut bytes = written(&grown(1, 10), Form::Backup);
    bytes[8] = 9;
    let header = bytes.first_chunk().unwrap();
    let crc = header_crc(header);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let refused = loaded(&bytes, Form::Backup).map(|_| ()).unwrap_err();
    let said = refused.of("file".into()).to_string();
    assert!(
        said.contains("format 9") && said.contains("up to 2"),
        "{said}"
    );
}

#[test]
fn a_backup_is_no_snapshot() {
    let bytes = written(&grown(1, 10), Form::Backup);
    let refused = loaded(&bytes, Form::Snapshot).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Unreadable::Damaged { offset: 0, .. }));
}

#[test]
fn names_come_back() {
    for zxid in [Zxid(0), Zxid(0x1234_5678_9abc), Zxid(i64::MAX)] {
        assert_eq!(snapshot_zxid(&snapshot_name(zxid)), Some(zxid));
    }
    for name in [
        "snapshot-",
        "snapshot-1",
        "snapshot-ffffffffffffffff",
        "snapshot.new",
        "log-0000000000000000",
    ] {
        assert_eq!(snapshot_zxid(name), None, "{name}");
    }
}
