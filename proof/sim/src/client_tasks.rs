//! [`ClientTasks`]: the tasks of one client, and of the processes that replace it when it is killed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{Client, Clock, ConnectOptions, Error, Owner, ReentrantMutex};
use lockkeeper_store::simulation;
use testkit::recipe::Recipe;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::actor::Actor;
use crate::history::History;
use crate::resource::Resource;
use crate::run::Sabotage;
use crate::world::{Random, World, drifting};

pub(crate) struct ClientTasks {
    world: World,
    number: u64,
    /// Clock of the host that runs the current process.
    clock: RefCell<Option<Clock>>,
    /// Number of processes killed so far.
    killed: Cell<u64>,
    kill: Notify,
}

/// What the tasks of a client are started from.
pub(crate) struct Work {
    pub(crate) random: Random,
    pub(crate) resources: Vec<Rc<Resource>>,
    pub(crate) history: Rc<History>,
    pub(crate) turns: u64,
    pub(crate) sabotage: Option<Sabotage>,
}

impl ClientTasks {
    pub(crate) fn new(world: &World, number: u64) -> Self {
        Self {
            world: world.clone(),
            number,
            clock: RefCell::default(),
            killed: Cell::new(0),
            kill: Notify::new(),
        }
    }

    /// Returns the name of the host that runs the current process.
    pub(crate) fn host(&self) -> String {
        match self.killed.get() {
            0 => format!("client-{}", self.number),
            killed => format!("client-{}.{killed}", self.number),
        }
    }

    pub(crate) fn clock(&self) -> Option<Clock> {
        self.clock.borrow().clone()
    }

    /// Kills the process. Nothing that it has not sent yet gets out, and its session ends by its timeout.
    pub(crate) fn kill(&self) {
        let host = self.host();
        self.world.tell(format_args!("{host} is killed"));
        self.world.network().kill(&host);
        self.killed.set(self.killed.get() + 1);
        self.kill.notify_one();
    }

    /// Runs until a process has finished its work. Returns its client.
    pub(crate) async fn run(self: Rc<Self>, mut work: Work) -> Client {
        loop {
            let (host, process) = (self.host(), work.random.fork());
            tokio::select! {
                biased;
                () = self.kill.notified() => work.sabotage = None,
                client = self.live(&work, host, process) => return client,
            }
        }
    }

    async fn live(&self, work: &Work, host: String, mut random: Random) -> Client {
        let clock = drifting(&self.world, &mut random);
        self.clock.replace(Some(clock.clone()));
        let client = connect(&self.world, &host, &clock, &mut random).await;
        self.world.count("clients connected");
        let mut actors = JoinSet::new();
        let mut owners = BTreeMap::new();
        for number in 0..random.within(1..4) {
            let place = random.within(0..work.resources.len() as u64) as usize;
            let owner = self.owner(&work.resources[place], &client, &mut owners, &mut random);
            let actor = Actor {
                world: self.world.clone(),
                name: format!("{host}/{number}"),
                client: client.clone(),
                clock: clock.clone(),
                random: random.fork(),
                resources: work.resources.clone(),
                place,
                semaphore: None,
                owner,
                history: work.history.clone(),
                sabotage: work.sabotage.filter(|_| actors.is_empty()),
            };
            let turns = random.within(5..40).min(work.turns);
            actors.spawn_local(actor.compete(turns));
        }
        // The tasks are dropped with this future, so a killed process does nothing more.
        while actors.join_next().await.is_some() {}
        client
    }

    /// Returns the owner for which a task enters a re-entrant mutex, with its number. Each client has two.
    fn owner(
        &self,
        resource: &Resource,
        client: &Client,
        owners: &mut BTreeMap<(String, u64), Owner>,
        random: &mut Random,
    ) -> Option<(u64, Owner)> {
        if resource.recipe != Recipe::Reentrant {
            return None;
        }
        let number = 2 * self.number + random.within(0..2);
        let new = || ReentrantMutex::new(client, &resource.path).map(|mutex| mutex.owner());
        let owner = owners.entry((resource.path.clone(), number));
        let owner = owner.or_insert_with(|| new().expect("a path"));
        Some((number, owner.clone()))
    }
}

/// Connects a host, with retries.
pub(crate) async fn connect(
    world: &World,
    host: &str,
    clock: &Clock,
    random: &mut Random,
) -> Client {
    if let Some(memory) = world.memory() {
        return memory.connect(random).await;
    }
    let timeout = Duration::from_secs(random.within(4..30));
    let options = ConnectOptions::new().session_timeout(timeout);
    let servers = world.servers(random);
    loop {
        let network = world.network();
        match simulation::connect(network, (host, &servers), clock, options.clone()).await {
            Ok(client) => return client,
            // Leave out the error's text, which contains a random id.
            Err(Error::SessionExpired { .. }) => {
                world.tell(format_args!(
                    "{host} cannot connect: its session has expired"
                ));
            }
            Err(error) => world.tell(format_args!("{host} cannot connect: {error}")),
        }
    }
}
