//! The candidates as tasks of this program, each with a session of its own.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{ConnectOptions, Election};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::args::Args;
use crate::candidate::{Candidate, Failure, Fate};
use crate::mortal::Mortal;
use crate::observer::Observer;
use crate::schedule::Schedule;
use crate::{tell, until_they_stand};

/// How long the store waits for a candidate that has fallen silent, if it has no say in that.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Has the candidates stand one after the other, and each come to its end.
pub(crate) async fn stand(
    args: &Args,
    election: &Election,
    schedule: &Schedule,
    observer: &Arc<Observer>,
) -> Result<Outcome, Failure> {
    let (at_work, mut working) = mpsc::unbounded_channel();
    let mut lives = JoinSet::new();
    let mut clients = Vec::new();
    let mut names = Vec::new();
    for number in 0..args.candidates {
        let options = ConnectOptions::new().session_timeout(TIMEOUT);
        let client = Mortal::connect(&args.target, options).await?;
        let candidate = Candidate {
            name: format!("candidate {}", number + 1),
            election: Election::new(client.client(), election.path().clone())?,
            schedule: schedule.clone(),
            fate: fate_of(number),
            at_work: at_work.clone(),
            observer: observer.clone(),
        };
        names.push(candidate.name.clone());
        clients.push(client);
        lives.spawn(candidate.live());
        // The first leads at once, and waits for its fate only when all stand.
        until_they_stand(election, number + 1).await?;
    }
    let killing = async {
        for (number, client) in clients.iter().enumerate() {
            working.recv().await.ok_or("the candidates have gone")?;
            match fate_of(number) {
                Fate::Resigns => {}
                Fate::Dropped => {
                    tell(
                        "director:",
                        &format!("drops the session of {}", names[number]),
                    );
                    client.client().close().await?;
                }
                Fate::CutOff => {
                    tell(
                        "director:",
                        &format!("cuts {} off from the store", names[number]),
                    );
                    client.cut();
                }
            }
        }
        Ok::<(), Failure>(())
    };
    let living = async {
        while let Some(ended) = lives.join_next().await {
            ended??;
        }
        Ok(())
    };
    tokio::try_join!(killing, living)?;
    Ok(Outcome {
        expected: names,
        refused: 1,
    })
}

fn fate_of(number: usize) -> Fate {
    match number {
        0 => Fate::Dropped,
        1 => Fate::CutOff,
        _ => Fate::Resigns,
    }
}
