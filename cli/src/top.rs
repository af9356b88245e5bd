//! `lockkeeper top`: a full-screen live view of the locks.
//!
//! [`TopState`] contains all data and performs no I/O, and [`mod@draw`] renders the state. This module connects both to
//! the keyboard, the signals and the store.

mod draw;
mod rows;
mod screen;
mod signals;
mod state;
mod store;
#[cfg(test)]
mod tests;

use std::io;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{self, Event};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;

use crate::exit::Failure;
use crate::live::Feed;
use crate::locks::names::{escaped, lock_prefix};
use crate::target::Target;

use draw::{Look, draw};
use screen::Screen;
use signals::{Action, Signals};
use state::{Effect, Input, TopState};
use store::Store;

const REDRAW: Duration = Duration::from_secs(1);

const QUEUE: usize = 64;

/// Time to wait for SIGCONT after Ctrl-Z. If no shell can continue this job, the system does not stop it, and no
/// SIGCONT arrives.
const CONTINUED: Duration = Duration::from_millis(500);

/// The arguments of `top`.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Selects locks. /a/path selects the locks at and below that path. Any other text selects the locks whose names
    /// start with it
    prefix: Option<String>,
    /// Accepted only to suggest `lockkeeper locks`
    #[arg(long, hide = true)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Top {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        if self.json {
            return Err(Failure::Usage(
                "top has no --json: use `lockkeeper locks --watch --json`".into(),
            ));
        }
        let prefix = lock_prefix(self.prefix.as_deref())?;
        Screen::check()?;
        let mut signals = Signals::listen()?;
        let client = tokio::select! {
            client = self.target.connect() => client?,
            () = signals.ended() => return Ok(()),
        };
        let look = Look {
            store: escaped(client.target()),
            prefix: self.prefix.as_deref().map(escaped),
            has_color: std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()),
        };
        let (tell, inputs) = mpsc::channel(QUEUE);
        let screen = Screen::enter()?;
        let keys = tell.clone();
        // Use a separate thread, because reading a terminal blocks. The thread ends with the process.
        std::thread::Builder::new()
            .name("lockkeeper-keys".into())
            .spawn(move || read_keys(&keys))?;
        let store = Store::new(Feed::new(Some(self.target), client, prefix), tell);
        let mut shell = Shell {
            state: TopState::new(),
            look,
            screen,
            store: store.clone(),
            began: Instant::now(),
            queue: None,
        };
        let watching = tokio::spawn(store.watch());
        let done = shell.run(inputs, &mut signals).await;
        watching.abort();
        done
    }
}

fn read_keys(tell: &Sender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) => Input::Key(key),
            Ok(Event::Paste(text)) => Input::Paste(text),
            Ok(Event::Resize(..)) => Input::Redraw,
            Ok(_) => continue,
            Err(error) => Input::NoKeys(error.to_string()),
        };
        let is_last = matches!(input, Input::NoKeys(_));
        if tell.blocking_send(input).is_err() || is_last {
            return;
        }
    }
}

struct Shell {
    state: TopState,
    look: Look,
    screen: Screen,
    store: Store,
    began: Instant,
    queue: Option<JoinHandle<()>>,
}

impl Shell {
    async fn run(
        &mut self,
        mut inputs: Receiver<Input>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        loop {
            self.draw()?;
            let input = tokio::select! {
                biased;
                action = signals.next() => match action {
                    Action::End => return Ok(()),
                    Action::Continue => {
                        if self.resume(signals).await? {
                            return Ok(());
                        }
                        continue;
                    }
                },
                input = inputs.recv() => input,
                () = tokio::time::sleep(REDRAW) => {
                    self.screen.check_alive()?;
                    continue;
                }
            };
            let mut next = input;
            for _ in 0..QUEUE {
                let Some(input) = next else { break };
                self.tick();
                let effect = self.state.apply(input);
                if let Some(effect) = effect
                    && self.act(effect, signals).await?
                {
                    return Ok(());
                }
                next = inputs.try_recv().ok();
            }
        }
    }

    fn tick(&mut self) {
        let now_ms = self.store.client().clock().unix_ms();
        self.state.tick(self.began.elapsed(), now_ms);
    }

    fn draw(&mut self) -> io::Result<()> {
        self.tick();
        let (state, look) = (&mut self.state, &self.look);
        self.screen.draw(|frame| draw(frame, state, look))
    }

    async fn act(&mut self, effect: Effect, signals: &mut Signals) -> Result<bool, Failure> {
        match effect {
            Effect::Quit => return Ok(true),
            Effect::Fail(why) => return Err(Failure::Other(why)),
            Effect::Clear => self.screen.clear()?,
            Effect::Suspend => return self.suspend(signals).await,
            Effect::Open(lock) => {
                self.close();
                self.queue = Some(tokio::spawn(self.store.clone().watch_queue(lock)));
            }
            Effect::Close => self.close(),
            Effect::Revoke(revocation) => {
                // Run the revocation independently of the dialog, because an interrupted request may or may not be
                // executed.
                tokio::spawn(self.store.clone().revoke(*revocation));
            }
        }
        Ok(false)
    }

    /// Stops this job until it is continued in the foreground. Returns `true` if the command must end.
    async fn suspend(&mut self, signals: &mut Signals) -> Result<bool, Failure> {
        loop {
            self.screen.suspend()?;
            tokio::select! {
                biased;
                action = signals.next() => {
                    if action == Action::End {
                        return Ok(true);
                    }
                }
                () = tokio::time::sleep(CONTINUED) => {}
            }
            if self.screen.is_in_foreground() {
                self.screen.take()?;
                return Ok(false);
            }
            if signals.end_follows().await {
                return Ok(true);
            }
        }
    }

    /// Takes the terminal again after SIGCONT, or stops again if the job is in the background.
    async fn resume(&mut self, signals: &mut Signals) -> Result<bool, Failure> {
        if self.screen.is_in_foreground() {
            self.screen.take()?;
            return Ok(false);
        }
        Ok(signals.end_follows().await || self.suspend(signals).await?)
    }

    fn close(&mut self) {
        if let Some(reader) = self.queue.take() {
            reader.abort();
        }
    }
}
