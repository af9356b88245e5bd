//! Mistaken and hostile use of directories is refused with a clear error and loses no data.

use std::fs;
use std::path::{Path, PathBuf};

use lockkeeper_store::{
    CreateMode, Error, Session, Store, StoreOptions, Target, TargetError, connect,
};
use testkit::{TempFolder, within_reason};

use crate::common::*;

fn refusal(path: impl AsRef<Path>) -> Error {
    match Store::file(path.as_ref()) {
        Err(error) => {
            let (said, path) = (error.to_string(), path.as_ref().display().to_string());
            assert!(said.contains(&path), "{said:?} does not say {path}");
            error
        }
        Ok(store) => panic!("{store:?} should not be there"),
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_url_without_a_path_is_refused_in_words() {
    for url in ["file:", "file://"] {
        let refused = connect(url).await.unwrap_err();
        assert!(matches!(
            refused,
            Error::Target(TargetError::BadPart { part: "folder", .. })
        ));
        assert!(
            refused.to_string().contains("a path is missing"),
            "{refused}"
        );
    }
}

#[test]
fn a_file_in_the_place_of_the_folder_or_above_it_is_refused_and_left_alone() {
    let folder = TempFolder::new("hostile");
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    for path in [file.clone(), file.join("below")] {
        let refused = refusal(&path);
        assert!(matches!(refused, Error::StoreFailed { .. }), "{refused:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

/// Not even root can create anything in /proc.
#[test]
fn a_folder_that_cannot_be_made_is_refused() {
    let refused = refusal("/proc/lockkeeper-data");
    assert!(matches!(refused, Error::StoreFailed { .. }), "{refused:?}");
}

#[test]
fn a_folder_of_other_things_is_refused_and_left_as_it_is() {
    for foreign in ["notes.txt", "log-0000000000000000", "store"] {
        let folder = TempFolder::new("hostile");
        fs::write(folder.path().join(foreign), "mine").unwrap();
        for _ in 0..2 {
            let refused = refusal(folder.path());
            assert!(matches!(refused, Error::NotAStore { .. }), "{refused:?}");
            assert!(refused.to_string().contains(foreign), "{refused}");
            assert_eq!(names_in(folder.path()), [foreign]);
        }
        assert_eq!(fs::read(folder.path().join(foreign)).unwrap(), b"mine");
    }
}

#[tokio::test]
async fn a_foreign_file_beside_a_store_is_left_alone() {
    let folder = TempFolder::new("hostile");
    drop(Store::file(folder.path()).unwrap());
    let notes = folder.path().join("notes.txt");
    fs::write(&notes, "mine").unwrap();
    let session = session_at(&Store::file(folder.path()).unwrap()).await;
    make(&session, "/a").await;
    assert_eq!(fs::read(&notes).unwrap(), b"mine");
}

fn relative(absolute: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    up.join(absolute.strip_prefix("/").unwrap())
}

#[tokio::test]
async fn all_ways_to_a_folder_lead_to_one_store() {
    let folder = TempFolder::new("hostile");
    let data = folder.path().join("data");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    let first = connect(Target::file(&data)).await.unwrap();
    make(&first.session().await.unwrap(), "/a").await;
    let ways = [
        format!("file:{}", data.display()),
        format!("file://{}", data.display()),
        format!("file:{}/", data.display()),
        format!("file:{}/../data/.", data.display()),
        format!("file:{}", link.display()),
        format!("file:{}", relative(&data).display()),
    ];
    for way in ways {
        let client = connect(way.as_str()).await.unwrap();
        assert_eq!(client.store_id(), first.store_id(), "{way}");
        assert!(
            is_there(&client.session().await.unwrap(), "/a").await,
            "{way}"
        );
    }
    let other = connect(Target::file(folder.path().join("other")))
        .await
        .unwrap();
    assert_ne!(other.store_id(), first.store_id());
}

/// Opens a session on a store with small segments, which open fast.
async fn at(folder: &Path) -> Session {
    session_at(&small(folder)).await
}

fn small(folder: &Path) -> Store {
    let options = StoreOptions::new().segment_bytes(1 << 16, 1 << 17);
    Store::file_with(folder, options).unwrap()
}

#[tokio::test]
async fn a_store_that_is_opened_again_at_once_is_the_same_and_goes_on_above() {
    let folder = TempFolder::new("hostile");
    let id = {
        let session = at(folder.path()).await;
        make(&session, "/q").await;
        session.backend().store_id().unwrap().to_owned()
    };
    let mut last = Default::default();
    for number in 0..50 {
        let session = at(folder.path()).await;
        assert_eq!(session.backend().store_id(), Some(id.as_str()));
        assert!(!is_there(&session, "/e").await);
        let (made, stat) = create(&session, "/q/n-", CreateMode::PersistentSequential).await;
        assert_eq!(made.as_str(), format!("/q/n-{number:010}"));
        let (_, ephemeral) = create(&session, "/e", CreateMode::Ephemeral).await;
        assert!(stat.czxid > last && ephemeral.czxid > stat.czxid);
        // The log does not contain these, but the next life must not reuse their zxids.
        for _ in 0..5 {
            let (_, token) = create(&session, "/e-", CreateMode::EphemeralSequential).await;
            last = token.czxid;
        }
    }
}

/// Clean-up runs on the thread that delivers its reply, which may be the log's writer. The last handle may be dropped
/// there.
#[tokio::test]
async fn the_thread_that_writes_the_log_may_let_go_of_the_store() {
    let folder = TempFolder::new("hostile");
    for number in 0..50 {
        let session = at(folder.path()).await;
        let made = session.create(&path(&format!("/{number}")), "", CreateMode::Persistent);
        let (tell, told) = tokio::sync::oneshot::channel();
        lockkeeper_store::spawn_detached(async move {
            let made = made.await.map(drop);
            drop(session);
            tell.send(made).unwrap();
        });
        told.await.unwrap().unwrap();
        let session = at(folder.path()).await;
        assert!(is_there(&session, &format!("/{number}")).await);
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_a_close_under_load() {
    within_reason(async {
        let folder = TempFolder::new("hostile");
        for round in 0..10 {
            let store = small(folder.path());
            let mut writers = tokio::task::JoinSet::new();
            let mut clients = Vec::new();
            for writer in 0..4 {
                let client = store.connect().await.unwrap();
                let session = client.session().await.unwrap();
                clients.push(client);
                writers.spawn(async move {
                    let mut made = Vec::new();
                    for number in 0.. {
                        let at = format!("/{round}-{writer}-{number}");
                        match session.create(&path(&at), "", CreateMode::Persistent).await {
                            Ok(_) => made.push(at),
                            Err(Error::LimitReached { .. }) => {}
                            Err(Error::SessionClosed { .. }) => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    made
                });
            }
            drop(store);
            let watching = clients[0].session().await.unwrap();
            while !is_there(&watching, &format!("/{round}-3-20")).await {
                tokio::task::yield_now().await;
            }
            drop(watching);
            for client in clients {
                client.close().await.unwrap();
            }
            let made = writers.join_all().await.concat();
            let session = at(folder.path()).await;
            for at in made {
                assert!(is_there(&session, &at).await, "{at}");
            }
        }
    })
    .await;
}

/// Otherwise another process could open the directory too.
#[tokio::test]
async fn a_store_whose_folder_or_lock_is_removed_stops() {
    within_reason(async {
        for is_folder in [false, true] {
            let folder = TempFolder::new("hostile");
            let data = folder.path().join("data");
            let store = small(&data);
            let session = session_at(&store).await;
            make(&session, "/a").await;
            match is_folder {
                true => fs::remove_dir_all(&data).unwrap(),
                false => fs::remove_file(data.join("LOCK")).unwrap(),
            }
            // Even without anything to write.
            let failure = store.failed().await.to_string();
            assert!(failure.contains("LOCK was removed"), "{failure}");
            let refused = session.set_data(&path("/a"), "b", None).await.unwrap_err();
            assert_eq!(refused.to_string(), failure);
            drop((session, store));
            let session = at(&data).await;
            assert_eq!(is_there(&session, "/a").await, !is_folder);
        }
    })
    .await;
}
