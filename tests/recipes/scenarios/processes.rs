//! Candidates in separate processes. Leaders are killed with SIGKILL, and the next one takes over.

use std::convert::Infallible;
use std::env;
use std::io::{self, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use lockkeeper::{ConnectOptions, Election, Leadership, connect_with};
use testkit::{ChildProcess, Env, TempFolder, again, within_reason};
use tokio::sync::oneshot;

use super::candidates::{ELECTION, Observer, TIMEOUT, name, until_they_stand, work};
use super::schedule::Schedule;

const CANDIDATES: usize = 4;
const KILLED: usize = 2;

const URL: &str = "LOCKKEEPER_CANDIDATE_URL";
const NAME: &str = "LOCKKEEPER_CANDIDATE_NAME";
const SCHEDULE: &str = "LOCKKEEPER_CANDIDATE_SCHEDULE";

#[tokio::test]
async fn killed_leaders_are_followed_by_the_next_served() {
    within_reason(killed_leaders(Env::served().await)).await;
}

#[tokio::test]
async fn killed_leaders_are_followed_by_the_next_zookeeper() {
    within_reason(killed_leaders(Env::zookeeper().await)).await;
}

async fn killed_leaders(env: Env) {
    let folder = TempFolder::new("processes");
    let schedule = Schedule::at(&folder.path().join("schedule.json"));
    let election = Election::new(&env.client().await, ELECTION).unwrap();
    let observer = Observer::start(&election);
    let mut processes = Vec::new();
    for number in 1..=CANDIDATES {
        let name = format!("process {number}");
        let child = start(env.target(), &name, schedule.file());
        processes.push((name, child));
        until_they_stand(&election, number).await;
    }
    let (mut led, mut epoch) = (Vec::new(), None);
    for _ in 0..KILLED {
        let leader = observer.next_leader(epoch).await;
        schedule.until_newer(epoch).await;
        epoch = Some(leader.epoch);
        let leader = name(&leader);
        let process = processes.iter_mut().find(|(name, _)| *name == leader);
        let (_, process) = process.expect("a process leads");
        process.kill();
        led.push(leader);
    }
    // The next one takes over when the killed one's session has expired. The remaining ones are then ended last to
    // first, so that only the first has led.
    let leader = observer.next_leader(epoch).await;
    schedule.until_newer(epoch).await;
    led.push(name(&leader));
    for (name, process) in processes.iter_mut().skip(KILLED).rev() {
        let status = process.wait().unwrap();
        assert!(status.success(), "{name}: {status}");
    }
    let arrived = processes.iter().map(|(name, _)| name.clone());
    assert!(arrived.take(KILLED + 1).eq(led.iter().cloned()), "{led:?}");
    assert_eq!(observer.finish().await, led);
    assert_eq!(schedule.check(), led);
}

fn start(url: &str, name: &str, schedule: &Path) -> ChildProcess {
    ChildProcess::spawn(
        again(module_path!(), "a_candidate")
            .env(URL, url)
            .env(NAME, name)
            .env(SCHEDULE, schedule)
            // Closing it makes the process resign, and so does our own end.
            .stdin(Stdio::piped())
            .stdout(Stdio::null()),
    )
}

/// Runs one candidate, which leads when it can until it is killed or its stdin ends.
#[tokio::test]
async fn a_candidate() {
    let (Ok(url), Ok(name), Some(file)) = (env::var(URL), env::var(NAME), env::var_os(SCHEDULE))
    else {
        return;
    };
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let client = connect_with(url.as_str(), options).await.unwrap();
    let election = Election::new(&client, ELECTION).unwrap();
    let schedule = Schedule::at(Path::new(&file));
    let (hang_up, hung_up) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // Nothing is ever written there, and an error is an end too.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(hang_up);
    });
    let lead = async |leadership: Arc<Leadership>| -> Infallible {
        loop {
            work(&leadership, &schedule, &name).await;
        }
    };
    tokio::select! {
        outcome = election.run(name.as_str(), lead) => match outcome.unwrap() {},
        // Dropped, so it resigns or leaves the line.
        _ = hung_up => {}
    }
    // Confirms that nothing of this candidate is left.
    client.close().await.unwrap();
}
