//! Entry points for the fuzzers in the folder `fuzz/`. Each function reads arbitrary bytes as if a client or a server
//! had sent them. No input may cause a panic, and accepted input must stay the same when it is written and read again.

use crate::client::served::fuzz as served;
use crate::server::fuzz as server;
use crate::wire::{Op, fuzz};

/// Reads bytes as a request's frame without the length field. Returns true if the frame is valid.
///
/// # Panics
/// If the value differs after being written and read again.
pub fn request(bytes: &[u8]) -> bool {
    fuzz::request(bytes)
}

/// Reads bytes as a client's first frame. Returns true if the frame is valid.
///
/// # Panics
/// If the value differs after being written and read again.
pub fn handshake(bytes: &[u8]) -> bool {
    fuzz::connect(bytes)
}

/// Reads bytes as a connection's stream, in pieces. Returns true if the whole stream consists of frames. The first byte
/// sets the size of the pieces.
///
/// # Panics
/// If the frames depend on the size of the pieces.
pub fn stream(bytes: &[u8]) -> bool {
    fuzz::stream(bytes)
}

/// Sends bytes over a connection, including the handshake, to a server with a new store. Returns true if the bytes form
/// a session and the server answers all its requests. The first byte sets the size of the pieces.
///
/// # Panics
/// If the server does not answer the requests in order, or if the connection hangs.
pub fn connection(bytes: &[u8]) -> bool {
    server::connection(bytes)
}

/// Plays a conversation of several clients with one server in virtual time. The first byte selects limits, and each
/// group of six bytes after it is a step. Returns true if any request is answered.
///
/// # Panics
/// If a reply is missing or out of order, if an event is late, or if a replay gives a different store.
pub fn conversation(bytes: &[u8]) -> bool {
    server::conversation(bytes)
}

/// Plays a session of `lockkeeper://` against a server that may send anything. Each group of six bytes is a step.
/// Returns true if the server answers any request.
///
/// # Panics
/// If a request is answered twice or never, or if the session violates the protocol.
pub fn client(bytes: &[u8]) -> bool {
    served::client(bytes)
}

/// A function that a fuzzer calls.
pub type Target = fn(&[u8]) -> bool;

macro_rules! targets {
    ($($name:ident $op:ident $called:literal,)*) => {
        $(
            #[doc = concat!("Reads bytes as the record of a ", $called, "; whether it is one.")]
            /// # Panics
            /// If the value differs after being written and read again.
            pub fn $name(bytes: &[u8]) -> bool {
                fuzz::record(Op::$op.number(), bytes)
            }
        )*

        /// The functions that fuzz the records of requests, each with the name of its operation.
        pub const RECORDS: &[(&str, Target)] = &[$(($called, $name),)*];
    };
}

targets! {
    create Create "create",
    create2 Create2 "create2",
    create_container CreateContainer "createContainer",
    create_ttl CreateTtl "createTTL",
    delete Delete "delete",
    exists Exists "exists",
    get_data GetData "getData",
    set_data SetData "setData",
    get_acl GetAcl "getACL",
    set_acl SetAcl "setACL",
    get_children GetChildren "getChildren",
    get_children2 GetChildren2 "getChildren2",
    get_all_children_number GetAllChildrenNumber "getAllChildrenNumber",
    sync Sync "sync",
    reconfig Reconfig "reconfig",
    check_watches CheckWatches "checkWatches",
    remove_watches RemoveWatches "removeWatches",
    auth Auth "auth",
    set_watches SetWatches "setWatches",
    sasl Sasl "sasl",
    get_ephemerals GetEphemerals "getEphemerals",
    set_watches2 SetWatches2 "setWatches2",
    add_watch AddWatch "addWatch",
    multi Multi "multi",
    multi_read MultiRead "multiRead",
}

/// Returns the seed corpus of the target with this name.
pub fn corpus(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "request" => fuzz::requests(),
        "handshake" => fuzz::handshakes(),
        "stream" => fuzz::streams(),
        "connection" => fuzz::connections(),
        "client" => served::sessions(),
        "conversation" => server::conversations(),
        _ => record_of(target).into_iter().collect(),
    }
}

fn record_of(target: &str) -> Option<(&'static str, Vec<u8>)> {
    const HEADER_BYTES: usize = 8;
    let mut requests = fuzz::requests().into_iter();
    let (name, frame) = requests.find(|(name, _)| *name == target)?;
    RECORDS
        .iter()
        .any(|(record, _)| *record == name)
        .then(|| (name, frame[HEADER_BYTES..].to_vec()))
}
