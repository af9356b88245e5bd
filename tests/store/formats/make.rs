//! Creates a data directory and a backup in this version's formats. `tests/store/formats/vN` contains its output for
//! format N, which `store::formats` opens in this and every later version. Run it once for each new format:
//!
//! ```text
//! cargo run -p lockkeeper-store --features file,server --example formats -- tests/store/formats/vN
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_store::{
    Acl, AclEntry, Create, CreateMode, Op, Server, ServerOptions, Session, Store, StoreOptions,
    ZnodePath, connect, disk,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let to = std::env::args_os().nth(1).ok_or("which folder?")?;
    let to = PathBuf::from(to);
    let dir = to.join("data");
    if dir.exists() {
        return Err(format!("{} is there already", dir.display()).into());
    }
    let options = StoreOptions::new().segment_bytes(1 << 16, 1 << 16);
    let store = Store::file_with(&dir, options)?;
    let client = store.connect().await?;
    let session = client.session().await?;
    fill(&session).await?;
    // Until there is a snapshot, and a write in the log after it.
    let turns: ZnodePath = "/turns".parse()?;
    let mut turn = 0;
    while disk::inspect(&dir)?.snapshots.is_empty() {
        for _ in 0..20 {
            turn += 1;
            let data = format!("{turn:>1000}");
            session.set_data(&turns, data, Some(turn - 1)).await?;
        }
    }
    session
        .set_data(&turns, format!("{}", turn + 1), None)
        .await?;
    session.close().await?;
    client.close().await?;
    drop((client, session));
    leave_a_session(&store).await?;
    drop(store);
    let made = disk::backup(&dir, to.join("backup"))?;
    println!("{made:?}\n{}", disk::inspect(&dir)?);
    Ok(())
}

/// Leaves an open session of another process in the files.
async fn leave_a_session(store: &Store) -> Result<(), Box<dyn Error>> {
    let options = ServerOptions::new().listen("127.0.0.1:0".parse()?);
    let server = Server::bind(store, options).await?;
    let address = server.local_addr().ok_or("it listens nowhere")?;
    let client = connect(format!("lockkeeper://{address}").as_str()).await?;
    let session = client.session().await?;
    let theirs = "/theirs".parse()?;
    session
        .create(&theirs, "of another process", CreateMode::Ephemeral)
        .await?;
    let entry = AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    };
    session.set_acl(&theirs, Acl::new([entry]), Some(0)).await?;
    server.shutdown().await;
    Ok(())
}

/// Creates one znode of every kind.
async fn fill(session: &Session) -> Result<(), Box<dyn Error>> {
    let create = async |path: &str, data: &'static str, mode| {
        session.create(&path.parse()?, data, mode).await
    };
    create("/config", "first", CreateMode::Persistent).await?;
    create("/turns", "0", CreateMode::Persistent).await?;
    create("/queue", "", CreateMode::Container).await?;
    create("/queue/n-", "one", CreateMode::PersistentSequential).await?;
    create("/queue/n-", "two", CreateMode::PersistentSequential).await?;
    create("/queue/gone-", "three", CreateMode::PersistentSequential).await?;
    let ttl = CreateMode::PersistentTtl(Duration::from_secs(1 << 30));
    create("/été", "with a time to live", ttl).await?;
    create("/mine", "of this process", CreateMode::Ephemeral).await?;
    session
        .delete(&"/queue/gone-0000000002".parse()?, None)
        .await?;
    let part = Create {
        path: "/config/part".parse()?,
        data: "of a multi".into(),
        mode: CreateMode::Persistent,
        acl: Acl::open(),
    };
    let set = Op::SetData {
        path: "/config".parse()?,
        data: "second".into(),
        version: Some(0),
    };
    session.multi(vec![set, Op::Create(part)]).await?;
    let entry = AclEntry {
        permissions: AclEntry::READ | AclEntry::ADMIN,
        scheme: "digest".into(),
        id: "someone:secret".into(),
    };
    let guarded = Create {
        path: "/guarded".parse()?,
        data: "for one alone".into(),
        mode: CreateMode::Persistent,
        acl: Acl::new([entry]),
    };
    session.multi(vec![Op::Create(guarded)]).await?;
    Ok(())
}
