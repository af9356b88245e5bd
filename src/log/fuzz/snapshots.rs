//! Fuzzer of snapshots: loads any bytes as a snapshot.

use super::{STORE, options};
use crate::core::{Core, Effects, Now};
use crate::log::disk::Disk;
use crate::log::header::header_crc;
use crate::log::recovery::{Facts, Start};
use crate::log::segment::HEADER_BYTES;
use crate::log::sim::SimDisk;
use crate::log::snapshot::{self, Form, Head};
use crate::model::acl::Acl;
use crate::model::identity::Identity;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Request};
use crate::model::types::{AclEntry, CreateMode, SessionId};

/// Loads bytes as a snapshot with corrected checksums. Returns true for a valid snapshot, whose content must survive a
/// round trip.
pub(crate) fn snapshot(bytes: &[u8]) -> bool {
    let Some((head, mut core)) = loaded(with_valid_checksums(bytes)) else {
        return false;
    };
    let (head_again, again) =
        loaded(written(Form::Snapshot, &head, &core)).expect("what was written can be loaded");
    assert_eq!(head_again, head);
    assert!(again.node_images().eq(core.node_images()));
    assert!(again.session_images().eq(core.session_images()));
    delete_everything(&mut core);
    true
}

fn loaded(bytes: Vec<u8>) -> Option<(Head, Core)> {
    let disk = SimDisk::new();
    disk.put("it", bytes);
    let file = disk.open("it").expect("it was put there");
    let mut core = Core::new(options());
    let loaded = snapshot::load(&*file, Form::Snapshot, &mut core, &mut || Ok(()));
    loaded.ok().map(|loaded| (loaded.head, core))
}

pub(super) fn written(form: Form, head: &Head, core: &Core) -> Vec<u8> {
    let disk = SimDisk::new();
    let file = disk.create("it").expect("the disk does not fail");
    let written = snapshot::write(&*file, form, head, core, &mut || Ok(()));
    written.expect("the disk does not fail");
    disk.content("it").unwrap_or_default()
}

pub(super) fn with_valid_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let header = bytes.first_chunk().map(header_crc);
    if let Some(crc) = header {
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let mut rest = bytes.get_mut(HEADER_BYTES as usize..).unwrap_or_default();
    while let Some((head, _)) = rest.split_first_chunk::<8>() {
        let [.., a, b, c, d] = *head;
        let end = 8 + u32::from_le_bytes([a, b, c, d]) as usize;
        let Some((chunk, after)) = rest.split_at_mut_checked(end) else {
            break;
        };
        let crc = crc32fast::hash(&chunk[4..]);
        chunk[..4].copy_from_slice(&crc.to_le_bytes());
        rest = after;
    }
    bytes
}

fn delete_everything(core: &mut Core) {
    let (now, effects) = (Now::default(), &mut Effects::default());
    for session in core.session_images().collect::<Vec<_>>() {
        core.expire_session(session.id, now, effects);
    }
    let opened = core.open_session(SessionId(1), [0; 16], None, true, now);
    let (me, _) = opened.expect("there is no session left");
    let added = core.add_identity(me, Identity::superuser());
    added.expect("it is the only identity");
    let mut paths: Vec<_> = core.node_images().map(|node| node.path).collect();
    while let Some(path) = paths.pop() {
        let version = None;
        let _ = core.submit(me, Request::Delete { path, version }, now, effects);
    }
    assert_eq!(core.node_count(), 4);
}

pub(crate) fn snapshots() -> super::corpus::Inputs {
    let empty = Core::new(options());
    let full = filled();
    let all = written(Form::Snapshot, &head(&full), &full);
    let cut = all[..all.len() - 20].to_vec();
    vec![
        ("empty", written(Form::Snapshot, &head(&empty), &empty)),
        ("all", all),
        ("cut", cut),
    ]
}

pub(super) fn head(core: &Core) -> Head {
    Head {
        store: STORE,
        start: Start {
            segment: 3,
            facts: Facts {
                chain: 20,
                zxid: core.last_zxid(),
                epoch: 1,
                longest_timeout_ms: 40_000,
                is_clean: false,
                ..Facts::default()
            },
        },
        made: 5,
    }
}

pub(super) fn filled() -> Core {
    let mut core = Core::new(options());
    let (now, effects) = (Now::default(), &mut Effects::default());
    let open = |core: &mut Core, id, is_local| {
        let opened = core.open_session(SessionId(id), [id as u8; 16], None, is_local, now);
        opened.expect("there is room for it").0
    };
    let (one, other) = (open(&mut core, 5, true), open(&mut core, 6, false));
    let entry = AclEntry {
        permissions: AclEntry::READ,
        scheme: "digest".into(),
        id: "someone:hash".into(),
    };
    let ttl = CreateMode::PersistentTtl(std::time::Duration::from_secs(1));
    for (session, path, mode, acl) in [
        (one, "/a", CreateMode::Persistent, Acl::open()),
        (one, "/a/é", CreateMode::Persistent, Acl::new([entry])),
        (one, "/a/n-", CreateMode::EphemeralSequential, Acl::open()),
        (other, "/a/n-", CreateMode::EphemeralSequential, Acl::open()),
        (other, "/e", CreateMode::Ephemeral, Acl::open()),
        (other, "/c", CreateMode::Container, Acl::open()),
        (
            other,
            "/c/n-",
            CreateMode::PersistentSequential,
            Acl::open(),
        ),
        (other, "/t", ttl, Acl::open()),
    ] {
        let create = Request::Create(Create {
            path: ZnodePath::trusted(path),
            data: path.into(),
            mode,
            acl,
        });
        let made = core.submit(session, create, now, effects);
        made.expect("it can be made");
    }
    core
}
