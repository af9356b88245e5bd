//! The candidates as processes of their own.

use std::io::{self, Read};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper::{ConnectOptions, Election, connect_with};
use tokio::sync::oneshot;

use crate::args::{Args, Child};
use crate::candidate::{Failure, live_in_a_process};
use crate::observer::{Observer, name};
use crate::schedule::Schedule;
use crate::{BEGAN, Outcome, tell, until_they_stand};

/// How long the store waits for a process that was killed.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How many leaders are killed.
const KILLED: usize = 2;

/// The processes that have been started. They are killed with this one, should it fail.
struct Processes(Vec<(String, Process)>);

impl Drop for Processes {
    fn drop(&mut self) {
        for (_, process) in &mut self.0 {
            // Most have ended, and been waited for.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Has the processes stand one after the other, kills leaders, and lets the next one resign.
pub(crate) async fn stand(
    args: &Args,
    election: &Election,
    schedule: &Schedule,
    observer: &Observer,
) -> Result<Outcome, Failure> {
    let mut processes = Processes(Vec::new());
    for number in 1..=args.candidates {
        let name = format!("process {number}");
        let child = start(args, &name, election, schedule)?;
        processes.0.push((name, child));
        until_they_stand(election, number).await?;
    }
    let mut expected = Vec::new();
    let mut epoch = None;
    for _ in 0..KILLED {
        let leader = observer.next_leader(epoch).await?;
        schedule.until_newer(epoch).await?;
        epoch = Some(leader.epoch);
        expected.push(name(&leader));
        let process = processes.0.iter_mut().find(|(of, _)| *of == name(&leader));
        let (name, process) = process.ok_or("a stranger leads")?;
        tell("director:", &format!("kills {name}, pid {}", process.id()));
        process.kill()?;
        process.wait()?;
    }
    // The next one takes over when the killed one's session has expired; then all who wait are sent
    // home, the last first, so that only it has led.
    let leader = observer.next_leader(epoch).await?;
    schedule.until_newer(epoch).await?;
    expected.push(name(&leader));
    for (name, process) in processes.0.iter_mut().skip(KILLED).rev() {
        drop(process.stdin.take());
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("{name} ended with {status}").into());
        }
    }
    let arrived: Vec<_> = processes.0.iter().map(|(name, _)| name.clone()).collect();
    if arrived[..expected.len()] != expected {
        return Err(format!("{expected:?} led, in that order").into());
    }
    Ok(Outcome {
        expected,
        refused: 0,
    })
}

fn start(args: &Args, name: &str, election: &Election, schedule: &Schedule) -> io::Result<Process> {
    let began = BEGAN
        .get()
        .and_then(|began| began.duration_since(UNIX_EPOCH).ok());
    let began = began.unwrap_or_default();
    Command::new(std::env::current_exe()?)
        .args(["--url", &args.target.to_string(), "--child", name])
        .arg(election.path().as_str())
        .arg(schedule.file())
        .arg(began.as_millis().to_string())
        // Its end tells the process to resign; so does the end of this one.
        .stdin(Stdio::piped())
        .spawn()
}

/// What a process that is one candidate does.
pub(crate) async fn be_a_candidate(args: &Args, child: &Child) -> Result<Vec<String>, Failure> {
    BEGAN.get_or_init(|| UNIX_EPOCH + Duration::from_millis(child.began_ms));
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let client = connect_with(args.target.clone(), options).await?;
    let election = Election::new(&client, child.path.as_str())?;
    let schedule = Schedule::at(&child.schedule);
    let (hang_up, hung_up) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // Nothing is ever written there; an error is an end as well.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(hang_up);
    });
    let hung_up = async {
        let _ = hung_up.await;
    };
    live_in_a_process(&election, &schedule, &child.name, hung_up).await?;
    Ok(Vec::new())
}
