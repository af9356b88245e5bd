//! Contenders of other libraries, in a process of another language that is controlled line by line.
//!
//! One process runs any number of contenders, each with a separate session. It reads `NAME COMMAND …` from stdin and
//! answers `NAME …` on stdout:
//!
//! ```text
//! new RECIPE PATH …   "ready" when its session is open
//! acquire …           "queued ZNODE" whenever it has looked and waits for that one, where the library
//!                     lets that be seen; "held ZNODE" when it holds and has passed the gate
//! release             "released"
//! ```
//!
//! and other commands that each program documents.
//!
//! Failures are answered with "failed …". When its stdin ends, the process ends, and its sessions live until their
//! timeout.
//!
//! In every language, a holder passes the [gate](enter) the same way. It creates an ephemeral child of [`INSIDE`] whose
//! name starts with its mode's mark, and then lists the other children. If two hold together and must not, the later
//! one sees the other. Then it records itself in [`GRANTS`].

use std::cell::Cell;
use std::collections::HashMap;
use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use lockkeeper::{FencingToken, Guard, Session};
use lockkeeper_store::{CreateMode, ZnodePath};
use testkit::{ChildProcess, Env};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::common::*;

/// Parent of the holders' own children: `x-…` is exclusive, `s-…` is shared with others of that mark, and `p-…` takes
/// one of several permits.
pub(crate) const INSIDE: &str = "/inside";

/// Parent of the grants in order. Their data is `ZNODE CZXID`.
pub(crate) const GRANTS: &str = "/grants";

/// A store with a gate on the shared ZooKeeper.
pub(crate) async fn world() -> World {
    let world = World::new(Env::zookeeper().await).await;
    world.make(INSIDE).await;
    world.make(GRANTS).await;
    world
}

/// Makes a test of each `async fn name(world: World)` on a fresh store of the shared ZooKeeper. With `(world: World,
/// recipe in RECIPES)` it runs once for each recipe.
macro_rules! beside_others {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident: World $(, $each:ident in $list:expr)?) $body:block)*) => {$(
        $(#[$meta])*
        #[tokio::test]
        async fn $name() {
            testkit::within_reason(async {
                $(for $each in $list)? {
                    let $world = $crate::peer::world().await;
                    $body
                }
            })
            .await;
        }
    )*};
}
pub(crate) use beside_others;

/// Returns a store's address as `host:port/chroot` for other clients.
pub(crate) fn hosts(world: &World) -> &str {
    let url = world.env.target();
    url.strip_prefix("zookeeper://").expect("a ZooKeeper's URL")
}

/// A process of another language. Dropping it kills it.
pub(crate) struct Process {
    child: ChildProcess,
    commands: Arc<Mutex<ChildStdin>>,
    contenders: Arc<Mutex<HashMap<String, UnboundedSender<String>>>>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let commands = child.stdin.take().unwrap();
        let contenders = Arc::new(Mutex::new(HashMap::<_, UnboundedSender<_>>::new()));
        let told = contenders.clone();
        child.hear_lines(move |line| {
            let mut told = told.lock().unwrap();
            match line {
                Some(line) => {
                    let (name, answer) = line.split_once(' ').expect("each line has a name");
                    // The contender may have been dropped.
                    let _ = told[name].send(answer.to_owned());
                }
                // Drops the senders, which ends every wait for an answer.
                None => told.clear(),
            }
        });
        Self {
            child,
            commands: Arc::new(Mutex::new(commands)),
            contenders,
        }
    }

    /// Adds a contender with a new session.
    pub(crate) async fn contender(&self, name: &str, recipe: &str, path: &str) -> Contender {
        let (sender, answers) = unbounded_channel();
        self.contenders.lock().unwrap().insert(name.into(), sender);
        let mut contender = Contender {
            name: name.into(),
            commands: self.commands.clone(),
            answers,
        };
        contender.send(&format!("new {recipe} {path}"));
        assert_eq!(contender.answer().await, "ready");
        contender
    }

    /// Kills the process. Its sessions live until they expire.
    pub(crate) fn kill(mut self) {
        self.child.kill();
    }
}

pub(crate) struct Contender {
    name: String,
    commands: Arc<Mutex<ChildStdin>>,
    answers: UnboundedReceiver<String>,
}

impl Contender {
    pub(crate) fn send(&mut self, command: &str) {
        let mut commands = self.commands.lock().unwrap();
        writeln!(commands, "{} {command}", self.name).expect("the process lives");
    }

    async fn any_answer(&mut self) -> String {
        let answer = self.answers.recv().await;
        answer.unwrap_or_else(|| panic!("{}: the process has ended", self.name))
    }

    pub(crate) async fn answer(&mut self) -> String {
        let answer = self.any_answer().await;
        assert!(!answer.starts_with("failed "), "{}: {answer}", self.name);
        answer
    }

    /// Returns the rest of an answer that starts with this word.
    pub(crate) async fn answer_of(&mut self, word: &str) -> String {
        let answer = self.answer().await;
        match answer.strip_prefix(word) {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("{}: {word}, not {answer}", self.name),
        }
    }

    pub(crate) async fn failure(&mut self) -> String {
        loop {
            let answer = self.any_answer().await;
            if let Some(failure) = answer.strip_prefix("failed ") {
                return failure.to_owned();
            }
            assert!(answer.starts_with("queued "), "{}: {answer}", self.name);
        }
    }

    /// Joins the queue. Returns the name of the znode that it waits for.
    pub(crate) async fn queue_up(&mut self) -> String {
        self.send("acquire");
        self.answer_of("queued ").await
    }

    /// Joins a queue of a library that does not report its predecessor. Returns the name of the contender's new child
    /// of `queue`.
    pub(crate) async fn queue_up_in(&mut self, world: &World, queue: &str) -> String {
        let session = world.observing().await;
        let before = children(&session, queue).await;
        self.send("acquire");
        let mine = Cell::new(None);
        until(&session, queue, |names| {
            let new = names.iter().find(|name| !before.contains(name));
            mine.set(new.cloned());
            new.is_some()
        })
        .await;
        mine.take().expect("that was waited for")
    }

    /// Joins the queue and waits until it holds. Returns the name of its znode.
    pub(crate) async fn acquire(&mut self) -> String {
        self.send("acquire");
        self.until_held().await
    }

    /// Waits until it holds, however often it looks.
    pub(crate) async fn until_held(&mut self) -> String {
        loop {
            let answer = self.answer().await;
            if let Some(znode) = answer.strip_prefix("held ") {
                return znode.to_owned();
            }
            assert!(answer.starts_with("queued "), "{}: {answer}", self.name);
        }
    }

    /// Waits until it holds. Fails if it has looked again without success since it last reported waiting.
    pub(crate) async fn held_next(&mut self) -> String {
        self.answer_of("held ").await
    }

    pub(crate) async fn release(&mut self) {
        self.send("release");
        assert_eq!(self.answer().await, "released");
    }

    pub(crate) async fn cycles(&mut self, count: usize) {
        for _ in 0..count {
            self.acquire().await;
            self.release().await;
        }
    }
}

/// A holder that has passed the gate.
#[must_use = "who holds stays inside"]
pub(crate) struct Inside {
    session: Session,
    place: ZnodePath,
}

/// How a holder passes the gate.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum As {
    /// Exclusively.
    Only,
    /// With other readers.
    Reader,
    /// As one of this many.
    OneOf(usize),
}

impl As {
    fn mark(self) -> &'static str {
        match self {
            Self::Only => "x",
            Self::Reader => "s",
            Self::OneOf(_) => "p",
        }
    }

    fn fits(self, there: &[String]) -> bool {
        match self {
            Self::Only => there.len() == 1,
            Self::Reader => !there.iter().any(|name| name.starts_with("x-")),
            Self::OneOf(limit) => there.len() <= limit,
        }
    }
}

pub(crate) async fn enter(
    world: &World,
    how: As,
    znode: &ZnodePath,
    token: FencingToken,
) -> Inside {
    let session = world.observing().await;
    let place = path(&format!("{INSIDE}/{}-", how.mark()));
    let (place, _) = session
        .create(&place, "", CreateMode::EphemeralSequential)
        .await
        .unwrap();
    let there = children(&session, INSIDE).await;
    assert!(
        how.fits(&there),
        "{znode} holds as {place} beside others: {there:?}"
    );
    let note = format!("{} {token}", znode.name());
    let entry = path(&format!("{GRANTS}/g-"));
    session
        .create(&entry, note, CreateMode::PersistentSequential)
        .await
        .unwrap();
    Inside { session, place }
}

impl Inside {
    pub(crate) async fn leave(self) {
        self.session.delete(&self.place, None).await.unwrap();
    }
}

pub(crate) async fn work(world: &World, guard: Guard) {
    let inside = enter(world, As::Only, guard.path(), guard.fencing_token()).await;
    inside.leave().await;
    guard.release().await.unwrap();
}

/// Returns all grants in order: the znode and the transaction that created it.
pub(crate) async fn grants(world: &World) -> Vec<(String, FencingToken)> {
    let session = world.observing().await;
    let mut notes = children(&session, GRANTS).await;
    notes.sort_unstable();
    let mut grants = Vec::new();
    for note in notes {
        let (data, _) = session
            .get_data(&path(&format!("{GRANTS}/{note}")))
            .await
            .unwrap();
        let note = String::from_utf8(data.to_vec()).unwrap();
        let (znode, czxid) = note.split_once(' ').unwrap();
        grants.push((znode.to_owned(), czxid.parse().unwrap()));
    }
    grants
}
