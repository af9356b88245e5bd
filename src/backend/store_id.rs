//! The id of a store at a server. The first client creates a persistent znode for the id under the chroot.
//!
//! The id consists of the znode's data and its czxid. A tool can copy the data to another store, but not the czxid, so
//! a copy has a different id.

use bytes::Bytes;

use super::Backend;
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Reply, Request, unexpected};
use crate::model::types::{AclEntry, CreateMode, Zxid};
use crate::runtime::platform::{hex, random};

pub(crate) const PATH: &str = "/lockkeeper.id";

/// Returns the id of the store at the ZooKeeper server of `backend`'s session. If the store has no id, creates the
/// persistent znode `/lockkeeper.id` with `acl` plus read permission for every client.
///
/// Use this function in your own [`Connector`](crate::Connector), so that all clients of a store find the same id.
///
/// Cancel safe. If the call is dropped after it has created the id, the next call finds that id.
///
/// # Errors
/// Errors of the requests: [`Error::NoAuth`] if the session may not read or create the znode, and [`Error::NoNode`] if
/// the chroot does not exist.
pub async fn read_or_create_store_id(backend: &dyn Backend, acl: &Acl) -> Result<String> {
    let path = ZnodePath::new(PATH)?;
    let create = Request::Create(Create {
        path: path.clone(),
        data: Bytes::from(new_data()),
        mode: CreateMode::Persistent,
        acl: readable(acl),
    });
    let watch = false;
    let read = Request::GetData { path, watch };
    loop {
        match backend.submit(read.clone()).await {
            Ok(Reply::Data { data, stat, .. }) => return Ok(text(&data, stat.czxid)),
            Ok(_) => return unexpected("getData"),
            Err(Error::ConnectionLoss) => continue,
            Err(Error::NoNode { .. }) => {}
            Err(error) => return Err(error),
        }
        // Another client may create the id at the same time.
        match backend.submit(create.clone()).await {
            Ok(_) | Err(Error::NodeExists { .. } | Error::ConnectionLoss) => {}
            Err(error) => return Err(error),
        }
    }
}

fn new_data() -> String {
    hex(random())
}

fn text(data: &[u8], czxid: Zxid) -> String {
    format!("{}-{:x}", String::from_utf8_lossy(data), czxid.0)
}

fn readable(acl: &Acl) -> Acl {
    let Some(entries) = acl.entries() else {
        return Acl::open();
    };
    let anyone = AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    };
    Acl::new([entries, &[anyone]].concat())
}
