//! The id of a store at a server: a persistent znode under the chroot, which the first client creates.
//!
//! The id is the znode's data and its czxid together, since a tool that copies the data to another store cannot copy
//! the czxid.

use bytes::Bytes;

use super::Backend;
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Reply, Request, unexpected};
use crate::model::types::{AclEntry, CreateMode, Zxid};
use crate::runtime::random::{hex, random};

/// Path of the znode.
pub(crate) const PATH: &str = "/lockkeeper.id";

/// Returns the id of the store at a ZooKeeper server that `backend` has a session at, and creates it if it is missing:
/// the persistent znode `/lockkeeper.id`, with `acl` and the permission to read for every client.
///
/// For a [`Connector`](crate::Connector) of its own, so that all clients of a store find the same id. A request that loses its
/// reply is sent again.
///
/// Cancel safe: an id that was created stays, and the next call finds it.
///
/// # Errors
/// Those of the requests: [`Error::NoAuth`] for a session that may not read or create the znode, [`Error::NoNode`] for a
/// chroot that does not exist.
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
        // Another client may create it at the same time: both read it then.
        match backend.submit(create.clone()).await {
            Ok(_) | Err(Error::NodeExists { .. } | Error::ConnectionLoss) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns data for a new one: 128 random bits in hexadecimal digits.
fn new_data() -> String {
    hex(random())
}

/// Returns the id.
fn text(data: &[u8], czxid: Zxid) -> String {
    format!("{}-{:x}", String::from_utf8_lossy(data), czxid.0)
}

/// Returns the list, with the permission to read for everybody: the id is no secret, and all clients must find the
/// same.
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
