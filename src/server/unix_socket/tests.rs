use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener as StdListener, UnixStream};

use super::*;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("lockkeeper-sockets-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn refusal(path: &Path) -> String {
    listen(path, 0o600).unwrap_err().to_string()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_file_is_never_open_to_more_users_than_asked_for() {
    let directory = Directory::new("mode");
    for mode in [0o600, 0o660, 0o400] {
        let path = directory.at(&format!("{mode:o}"));
        let _socket = create(&path, mode).unwrap();
        assert_eq!(mode_of(&path) & !mode, 0, "{:o}", mode_of(&path));
    }
}

#[tokio::test]
async fn the_file_has_the_permissions_asked_for_whatever_the_umask() {
    let directory = Directory::new("umask");
    for mode in [0o600, 0o660, 0o666, 0o777] {
        let path = directory.at(&format!("{mode:o}"));
        let _listening = listen(&path, mode).unwrap();
        assert_eq!(mode_of(&path), mode);
    }
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced() {
    let directory = Directory::new("stale");
    let path = directory.at("s");
    // The standard library leaves the file behind, as a kill does.
    drop(StdListener::bind(&path).unwrap());
    let (_listener, _file) = listen(&path, 0o600).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[tokio::test]
async fn the_socket_of_a_living_server_is_left_alone() {
    let directory = Directory::new("alive");
    let path = directory.at("s");
    let living = StdListener::bind(&path).unwrap();
    let refused = listen(&path, 0o600).unwrap_err();
    assert!(
        matches!(&refused, ServerError::UnixSocketInUse { path: its } if *its == path),
        "{refused}"
    );
    let _client = UnixStream::connect(&path).unwrap();
    living.accept().unwrap();
    living.accept().unwrap();
}

#[tokio::test]
async fn a_living_server_with_a_full_queue_is_no_dead_one() {
    let directory = Directory::new("full");
    let path = directory.at("s");
    let living = UnixSocket::new_stream().unwrap();
    living.bind(&path).unwrap();
    let _listener = living.listen(0).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    let mut clients = Vec::new();
    loop {
        let client = UnixSocket::new_stream().unwrap();
        match connect(&client, &address) {
            Ok(()) => clients.push(client),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    assert!(refusal(&path).contains("another server listens there"));
    assert!(path.exists());
}

#[tokio::test]
async fn only_a_socket_is_ever_deleted() {
    let directory = Directory::new("foreign");
    fs::write(directory.at("file"), "text").unwrap();
    fs::create_dir(directory.at("directory")).unwrap();
    drop(StdListener::bind(directory.at("stale")).unwrap());
    symlink(directory.at("stale"), directory.at("link")).unwrap();
    for name in ["file", "directory", "link"] {
        let path = directory.at(name);
        let said = refusal(&path);
        assert!(said.contains("a file that is no socket"), "{said}");
        assert!(fs::symlink_metadata(&path).is_ok());
    }
}

#[tokio::test]
async fn the_file_goes_with_its_server() {
    let directory = Directory::new("stop");
    let path = directory.at("s");
    drop(listen(&path, 0o600).unwrap());
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_that_has_taken_its_place_stays() {
    let directory = Directory::new("replaced");
    let path = directory.at("s");
    let (_listener, file) = listen(&path, 0o600).unwrap();
    fs::remove_file(&path).unwrap();
    let _other = listen(&path, 0o600).unwrap();
    drop(file);
    UnixStream::connect(&path).unwrap();
}

#[tokio::test]
async fn an_unusable_path_is_explained() {
    let directory = Directory::new("path");
    let long = directory.at(&"x".repeat(108));
    let said = refusal(&long);
    assert!(
        said.contains("more than a Unix socket's address can hold"),
        "{said}"
    );
    let missing = directory.at("missing").join("s");
    let said = refusal(&missing);
    assert!(said.contains("its directory"), "{said}");
    assert!(said.contains("missing/s"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn servers_of_one_directory_start_one_after_the_other() {
    let directory = Directory::new("lock");
    let path = directory.at("s");
    let held = DirectoryLock::acquire(&path, LONGEST_START).unwrap();
    let starting = {
        let path = path.clone();
        tokio::spawn(async move { listen(&path, 0o600).is_ok() })
    };
    assert!(!path.exists());
    let living = StdListener::bind(&path).unwrap();
    drop(held);
    assert!(
        !starting.await.unwrap(),
        "the socket of a living server was replaced"
    );
    drop(living);
}
