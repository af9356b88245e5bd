//! The exit of a process immediately ends its session over a Unix socket, and nothing less does.
//!
//! The processes are this test binary, started again. Session timeouts are ten minutes, longer than any test, so only
//! its process can have ended a session. To check that a session lives, a test kills another process and waits until
//! that one's session is gone.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, Read, Write, stdin};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper_store::{
    ConnectOptions, CreateMode, Server, ServerOptions, Session, Store, StoreOptions, connect_with,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use testkit::wire::{self, EPHEMERAL, Out, ask, create, op, read_frame, request};
use testkit::{ChildProcess, Lines, TempFolder, again, within_reason};

use crate::common::*;

const TIMEOUT: Duration = Duration::from_secs(600);

/// Set for a child: its role, the URL and its znode.
const ROLE: &str = "LOCKKEEPER_EXIT_ROLE";
const URL: &str = "LOCKKEEPER_EXIT_URL";
const ZNODE: &str = "LOCKKEEPER_EXIT_ZNODE";

const CHILD: &str = "a_process_that_holds";

/// The session that a child takes over: its id, and its password in hex.
const SESSION: &str = "LOCKKEEPER_EXIT_SESSION";

const HELD: &str = "child: held";
const OPENED: &str = "child: opened ";
const DONE: &str = "child: done";

fn say(line: &str) {
    println!("\n{line}");
}

#[test]
fn a_process_that_holds() {
    let Ok(role) = env::var(ROLE) else { return };
    let (url, znode) = (env::var(URL).unwrap(), env::var(ZNODE).unwrap());
    match role.as_str() {
        "client" => hold(&url, &znode, ConnectOptions::new()),
        "heir" => inherit(&url, stating),
        "silent-heir" => inherit(&url, wire::Session::connect_request),
        "opted-out" => hold(&url, &znode, ConnectOptions::new().end_with_process(false)),
        _ => obey(&url, &znode),
    }
}

/// Holds a znode with our client until the process is killed.
fn hold(url: &str, znode: &str, options: ConnectOptions) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let client = connect_with(url, options.session_timeout(TIMEOUT))
            .await
            .unwrap();
        let session = client.session().await.unwrap();
        session
            .create(&path(znode), "", CreateMode::Ephemeral)
            .await
            .unwrap();
        say(HELD);
        std::future::pending::<()>().await;
    });
}

/// Takes over a session on another connection, until the process is killed.
fn inherit(url: &str, handshake: impl Fn(&wire::Session) -> Out) {
    let session = env::var(SESSION).unwrap();
    let (id, password) = session.split_once(' ').unwrap();
    let session = wire::Session {
        id: id.parse().unwrap(),
        password: (0..password.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&password[at..at + 2], 16).unwrap())
            .collect(),
        timeout: TIMEOUT,
    };
    let (_stream, taken_up) = opened(url, &handshake(&session));
    assert_eq!(taken_up.id, session.id, "the session is over");
    say(HELD);
    // Until the process is killed.
    stdin().lock().lines().for_each(drop);
}

/// Opens or takes up a session with this handshake.
fn opened(url: &str, handshake: &Out) -> (UnixStream, wire::Session) {
    let socket = url.strip_prefix("lockkeeper+unix://").unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    let answer = ask(&mut stream, &handshake.clone().framed());
    (stream, wire::Session::of_answer(&answer))
}

/// Holds a znode over a raw connection and obeys the commands on stdin.
fn obey(url: &str, znode: &str) {
    let (mut stream, session) = opened(url, &handshake());
    let password = session.password.iter().map(|byte| format!("{byte:02x}"));
    let password: String = password.collect();
    say(&format!("{OPENED}{} {password}", session.id));
    let record = create(znode, b"", EPHEMERAL);
    ask(&mut stream, &request(1, op::CREATE, &record));
    say(HELD);
    let mut stream = Some(stream);
    for command in stdin().lock().lines() {
        // A handle to the socket, for a child.
        let inherited = || {
            let socket: OwnedFd = stream.as_ref().unwrap().try_clone().unwrap().into();
            Stdio::from(socket)
        };
        match command.unwrap().as_str() {
            "close" => stream = None,
            "speak and die" => {
                let creates = (0..LAST_WORDS).flat_map(|number| {
                    let record = create(&format!("/last-{number}"), b"", 0);
                    request(number, op::CREATE, &record)
                });
                let creates: Vec<_> = creates.collect();
                stream.as_mut().unwrap().write_all(&creates).unwrap();
                kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            }
            // It inherits stdin and lives until the test closes it.
            "leave a child" => drop(Command::new("cat").stdout(inherited()).spawn().unwrap()),
            "lose a child" => {
                let mut child = Command::new("true").stdout(inherited()).spawn().unwrap();
                assert!(child.wait().unwrap().success());
            }
            "exec" => panic!(
                "{}",
                Command::new("sh")
                    .args(["-c", &format!("echo; echo '{DONE}'; exec cat")])
                    .exec()
            ),
            command => panic!("{command:?}"),
        }
        say(DONE);
    }
}

/// A handshake for a new session that correctly states this process.
fn handshake() -> Out {
    stating(&wire::Session::none(TIMEOUT))
}

/// A handshake that correctly states this process, as in docs/protocol.md.
fn stating(session: &wire::Session) -> Out {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_str().unwrap();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat
        .rsplit(") ")
        .next()
        .unwrap()
        .split(' ')
        .nth(19)
        .unwrap();
    session
        .connect_request()
        .text(boot_id.trim())
        .long(
            namespace["pid:[".len()..namespace.len() - 1]
                .parse()
                .unwrap(),
        )
        .int(std::process::id() as i32)
        .long(start.parse().unwrap())
}

fn plain_bytes() -> usize {
    wire::Session::none(TIMEOUT).connect_request().0.len()
}

/// Requests sent in one write. They fit in the socket and exceed the server's work budget.
const LAST_WORDS: i32 = 200;

fn store_options() -> StoreOptions {
    StoreOptions::new().session_timeouts(Duration::from_secs(1), 2 * TIMEOUT)
}

/// A server on a Unix socket, with a session in its store.
struct World {
    server: Option<Server>,
    store: Store,
    seen: Session,
    folder: TempFolder,
}

impl World {
    async fn new() -> Self {
        Self::with(ServerOptions::new()).await
    }

    async fn with(options: ServerOptions) -> Self {
        let store = Store::memory_with(store_options());
        Self::of(store, TempFolder::new("exit"), options).await
    }

    /// With a store on disk.
    async fn in_folder(folder: TempFolder) -> Self {
        let store = Store::file_with(folder.path().join("data"), store_options()).unwrap();
        Self::of(store, folder, ServerOptions::new()).await
    }

    /// Restarts the server and its store on disk.
    async fn restarted(self, meanwhile: impl FnOnce()) -> Self {
        let Self {
            server,
            store,
            seen,
            folder,
        } = self;
        server.unwrap().shutdown().await;
        drop((store, seen));
        meanwhile();
        Self::in_folder(folder).await
    }

    async fn of(store: Store, folder: TempFolder, options: ServerOptions) -> Self {
        let mut world = Self {
            server: None,
            seen: store.connect().await.unwrap().session().await.unwrap(),
            store,
            folder,
        };
        world.serve(options).await;
        world
    }

    async fn serve(&mut self, options: ServerOptions) {
        let options = options.listen((Ipv4Addr::LOCALHOST, 0).into());
        let options = options.unix_listen(self.folder.path().join("s"));
        self.server = Some(Server::bind(&self.store, options).await.unwrap());
    }

    fn url(&self) -> String {
        format!(
            "lockkeeper+unix://{}",
            self.folder.path().join("s").display()
        )
    }

    fn tcp_url(&self) -> String {
        let address = self.server.as_ref().unwrap().local_addr();
        format!("lockkeeper://{}", address.unwrap())
    }

    fn start(&self, role: &str, znode: &str) -> Holder {
        self.start_at(&self.url(), role, znode)
    }

    fn start_at(&self, url: &str, role: &str, znode: &str) -> Holder {
        Holder::start(again(module_path!(), CHILD), url, role, znode)
    }

    async fn gone(&self, znode: &str) {
        while let (Some(_), watcher) = self.seen.watch_exists(&path(znode)).await.unwrap() {
            watcher.await.unwrap();
        }
    }

    /// Asserts that a process keeps its session through `happening` until it is killed.
    async fn ends_with_its_process_alone(&self, role: &str, happening: impl FnOnce(&mut Holder)) {
        let mut holder = self.start(role, "/a");
        happening(&mut holder);
        self.outlives_another("/a").await;
        holder.child.kill();
        self.gone("/a").await;
    }

    /// Asserts that a znode still exists after a process that we kill now has lost its own.
    async fn outlives_another(&self, znode: &str) {
        self.start("raw", "/control").child.kill();
        self.gone("/control").await;
        assert!(self.seen.exists(&path(znode)).await.unwrap().is_some());
    }
}

struct Holder {
    child: ChildProcess,
    lines: Lines,
    /// Its id, and its password in hex. Empty for our client.
    session: String,
}

impl Holder {
    fn start(mut command: Command, url: &str, role: &str, znode: &str) -> Self {
        command.env(ROLE, role).env(URL, url).env(ZNODE, znode);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(&mut command);
        let mut lines = child.lines();
        let mut session = String::new();
        loop {
            let line = lines.next().expect("it died before it held");
            if let Some(opened) = line.strip_prefix(OPENED) {
                session = opened.to_owned();
            }
            if line == HELD {
                break;
            }
        }
        Self {
            child,
            lines,
            session,
        }
    }

    fn tell(&mut self, command: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        writeln!(stdin, "{command}").unwrap();
        self.lines.wait_for(DONE);
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

macro_rules! with_processes {
    ($($(#[$meta:meta])* async fn $name:ident() $body:block)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            within_reason(async $body).await;
        }
    )*};
}

with_processes! {
    async fn a_killed_process_loses_its_session_at_once() {
        let world = World::new().await;
        for role in ["raw", "client"] {
            let mut holder = world.start(role, "/a");
            holder.child.kill();
            world.gone("/a").await;
        }
    }

    async fn a_process_that_has_closed_its_connection_keeps_its_session_until_it_dies() {
        let world = World::new().await;
        world.ends_with_its_process_alone("raw", |holder| holder.tell("close")).await;
    }

    async fn a_stopped_process_keeps_its_session_until_it_dies() {
        let world = World::new().await;
        let stop = |holder: &mut Holder| {
            kill_process(holder.pid(), Signal::STOP).unwrap();
            waitpid(Some(holder.pid()), WaitOptions::UNTRACED).unwrap();
        };
        world.ends_with_its_process_alone("client", stop).await;
    }

    /// The child keeps the socket open, so the server sees no end of the connection.
    async fn a_child_that_has_inherited_the_socket_does_not_keep_the_session() {
        let world = World::new().await;
        let mut holder = world.start("raw", "/a");
        holder.tell("leave a child");
        // We keep this end of the pipe open, so the child lives.
        let _stdin = holder.child.stdin.take();
        holder.child.kill();
        world.gone("/a").await;
    }

    async fn the_exit_of_a_child_ends_nothing() {
        let world = World::new().await;
        world.ends_with_its_process_alone("raw", |holder| holder.tell("lose a child")).await;
    }

    /// The process continues as another program, so only the timeout or its exit ends the session.
    async fn an_exec_ends_nothing_before_the_process_exits() {
        let world = World::new().await;
        world.ends_with_its_process_alone("raw", |holder| holder.tell("exec")).await;
    }

    async fn a_program_that_opts_out_keeps_its_session() {
        let world = World::new().await;
        world.start("opted-out", "/option").child.kill();
        let url = format!("{}?end_with_process=false", world.url());
        world.start_at(&url, "client", "/url").child.kill();
        // A closed TCP connection proves nothing.
        world.start_at(&world.tcp_url(), "client", "/tcp").child.kill();
        for znode in ["/option", "/url", "/tcp"] {
            world.outlives_another(znode).await;
        }
    }

    async fn a_server_that_opts_out_waits_for_the_timeout() {
        let mut world = World::with(ServerOptions::new().watch_processes(false)).await;
        world.start("client", "/a").child.kill();
        world.server.take().unwrap().shutdown().await;
        world.serve(ServerOptions::new()).await;
        world.outlives_another("/a").await;
    }

    /// Here, a pid of another namespace means a different process.
    async fn a_process_of_another_pid_namespace_keeps_its_session() {
        let world = World::new().await;
        for (role, znode) in [("raw", "/raw"), ("client", "/client")] {
            let own = again(module_path!(), CHILD);
            let mut command = Command::new("unshare");
            command.args("--user --map-root-user --pid --fork --kill-child --mount-proc".split(' '));
            command.arg(own.get_program()).args(own.get_args().map(OsStr::to_owned));
            let mut holder = Holder::start(command, &world.url(), role, znode);
            holder.child.kill();
            // It may live until its stdout ends, because `unshare` dies first.
            holder.lines.by_ref().for_each(drop);
            world.outlives_another(znode).await;
        }
    }

    async fn a_session_that_another_process_takes_up_is_that_ones() {
        let world = World::new().await;
        for (heir, znode) in [("heir", "/heir"), ("silent-heir", "/silent")] {
            let mut holder = world.start("raw", znode);
            let mut command = again(module_path!(), CHILD);
            command.env(SESSION, &holder.session);
            let mut heir_process = Holder::start(command, &world.url(), heir, znode);
            holder.child.kill();
            world.outlives_another(znode).await;
            heir_process.child.kill();
            match heir {
                "heir" => world.gone(znode).await,
                // It has stated nothing, so only the timeout counts.
                _ => world.outlives_another(znode).await,
            }
        }
    }

    async fn what_a_process_sent_before_its_end_is_carried_out() {
        let world = World::new().await;
        let holder = world.start("raw", "/a");
        writeln!(holder.child.stdin.as_ref().unwrap(), "speak and die").unwrap();
        world.gone("/a").await;
        let last = format!("/last-{}", LAST_WORDS - 1);
        assert!(world.seen.exists(&path(&last)).await.unwrap().is_some());
    }

    async fn a_process_that_dies_while_its_server_is_stopped_loses_its_session() {
        let world = World::in_folder(TempFolder::new("exit")).await;
        let mut dies = world.start("client", "/dies");
        // Not reaped, so that its number stays taken.
        let stays_a_zombie = world.start("raw", "/zombie");
        let mut opted_out = world.start("opted-out", "/opted-out");
        let mut inherited = ["heir", "silent-heir"].map(|heir| {
            let holder = world.start("raw", &format!("/{heir}"));
            let mut command = again(module_path!(), CHILD);
            command.env(SESSION, &holder.session);
            (holder, Holder::start(command, &world.url(), heir, ""))
        });
        let world = world
            .restarted(|| {
                let former = inherited.iter_mut().map(|(former, _)| former);
                for holder in former.chain([&mut dies, &mut opted_out]) {
                    holder.child.kill();
                }
                kill_process(stays_a_zombie.pid(), Signal::KILL).unwrap();
            })
            .await;
        world.gone("/dies").await;
        world.gone("/zombie").await;
        for znode in ["/opted-out", "/heir", "/silent-heir"] {
            world.outlives_another(znode).await;
        }
    }

    async fn a_process_that_has_not_come_back_after_a_restart_keeps_its_session_until_it_dies() {
        let world = World::in_folder(TempFolder::new("exit")).await;
        let mut holder = world.start("raw", "/a");
        let world = world.restarted(|| {}).await;
        world.outlives_another("/a").await;
        holder.child.kill();
        world.gone("/a").await;
    }

    async fn a_server_that_starts_again_watches_the_processes_that_come_back() {
        let mut world = World::new().await;
        let mut holder = world.start("client", "/a");
        world.server.take().unwrap().shutdown().await;
        let session = world.seen.exists(&path("/a")).await.unwrap().unwrap().ephemeral_owner;
        world.serve(ServerOptions::new().four_letter_words("*").unwrap()).await;
        // Reconnected and watched before we kill its process.
        let owner = format!("sid=0x{:x}", session.0);
        let socket = world.folder.path().join("s");
        let is_back = move || {
            let mut word = UnixStream::connect(&socket).unwrap();
            word.write_all(b"cons").unwrap();
            let mut text = String::new();
            word.read_to_string(&mut text).unwrap();
            text.contains(&owner)
        };
        tokio::task::spawn_blocking(move || {
            while !is_back() {
                std::thread::yield_now();
            }
        })
        .await
        .unwrap();
        holder.child.kill();
        world.gone("/a").await;
    }
}

#[tokio::test]
async fn a_client_states_its_process_over_a_unix_socket_alone() {
    let folder = TempFolder::new("exit");
    let plain = plain_bytes();
    let own = handshake().0.split_off(plain);
    // The newest version of the extension ends each frame.
    let newest = 0x4c4b_0004_i32.to_be_bytes();
    // A separate listener each, because an abandoned client may have retried.
    for (name, query, expected) in [
        ("stated", "", own),
        ("opted-out", "?end_with_process=false", Vec::new()),
    ] {
        let socket = folder.path().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let url = format!("lockkeeper+unix://{}{query}", socket.display());
        let sent = handshake_of(url, move || read_frame(listener.accept().unwrap().0));
        assert_eq!(
            sent.await[plain..],
            [&expected[..], &newest].concat(),
            "{name}"
        );
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("lockkeeper://{}", listener.local_addr().unwrap());
    let sent = handshake_of(url, move || read_frame(listener.accept().unwrap().0));
    assert_eq!(sent.await[plain..], newest);
}

/// Returns the handshake of a client that gets no answer.
async fn handshake_of(
    url: String,
    accept: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
) -> Vec<u8> {
    let opening = tokio::spawn(async move {
        let opened = connect_with(url.as_str(), ConnectOptions::new()).await;
        drop(opened);
    });
    let frame = tokio::task::spawn_blocking(accept).await.unwrap();
    opening.abort();
    frame.unwrap()
}

/// Hostile or future bytes there have no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn other_bytes_behind_the_handshake_are_ignored() {
    let world = World::new().await;
    let truth = handshake().0;
    let plain = plain_bytes();
    let mut wrong: Vec<_> = (plain..truth.len())
        .map(|end| truth[..end].to_vec())
        .collect();
    wrong.push([&truth[..], b"more"].concat());
    wrong.push([&truth[..plain], &[0xff; 200]].concat());
    wrong.push([&truth[..plain], &[0; 24]].concat());
    for (at, frame) in wrong.into_iter().enumerate() {
        let (mut stream, _) = opened(&world.url(), &Out(frame));
        let record = create(&format!("/{at}"), b"", EPHEMERAL);
        ask(&mut stream, &request(1, op::CREATE, &record));
    }
}

/// Like after a pause of the server, when it finds the handshakes of all abandoned connections.
#[tokio::test]
async fn a_handshake_that_was_given_up_takes_no_session() {
    let world = World::new().await;
    let (url, tcp_url) = (world.url(), world.tcp_url());
    let none = wire::Session::none(TIMEOUT);
    let (mut live, session) = tokio::task::spawn_blocking({
        let (url, request) = (url.clone(), none.connect_request());
        move || opened(&url, &request)
    })
    .await
    .unwrap();
    let server = world.server.as_ref().unwrap();
    let sessions = server.sessions().len();
    // The server runs on this thread and does not run in the meantime.
    for _ in 0..20 {
        for given_up in [&session, &none] {
            let request = given_up.connect_request().framed();
            let socket = url.strip_prefix("lockkeeper+unix://").unwrap();
            UnixStream::connect(socket)
                .unwrap()
                .write_all(&request)
                .unwrap();
            let address = tcp_url.strip_prefix("lockkeeper://").unwrap();
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(&request).unwrap();
        }
    }
    let ping = request(-2, op::PING, &Out::new());
    let asked = tokio::task::spawn_blocking(move || ask(&mut live, &ping)).await;
    asked.expect("the connection lives");
    assert_eq!(server.sessions().len(), sessions);
}
