//! [`TopState`]: all data of `lockkeeper top`. It processes keys and updates, and may return an [`Effect`] for each. It
//! performs no I/O.
//!
//! Only the holder named in the dialog is revoked. The dialog stores the entry of this holder, because the list may
//! show another holder by the time the user confirms.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use lockkeeper::{LockChange, LockQueue, QueueEntry, ZnodePath};

use super::rows::{Row, Rows};
use crate::live::{News, SILENCE, Sort, add_seen};
use crate::locks::names::{escaped, lock_name};
use crate::who;

#[derive(Debug)]
pub(super) enum Input {
    Key(KeyEvent),
    Paste(String),
    Redraw,
    News(News),
    Queue {
        lock: ZnodePath,
        queue: Result<LockQueue, String>,
    },
    Done(String),
    NoKeys(String),
}

impl From<News> for Input {
    fn from(news: News) -> Self {
        Self::News(news)
    }
}

#[derive(Debug)]
pub(super) enum Effect {
    Quit,
    Fail(String),
    Suspend,
    Clear,
    Open(ZnodePath),
    Close,
    Revoke(Box<Revocation>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Revocation {
    pub(super) force: bool,
    pub(super) lock: ZnodePath,
    pub(super) holder: QueueEntry,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Connectivity {
    /// The locks are being read.
    Reading,
    /// The screen is up to date.
    Live,
    /// Not connected since this time.
    Lost { at: Duration, why: Option<String> },
}

#[derive(Debug)]
pub(super) struct QueueView {
    pub(super) lock: ZnodePath,
    /// The row of the list from which the queue was opened.
    of: Row,
    queue: Option<Result<LockQueue, String>>,
    pub(super) lines: Vec<String>,
    /// Scroll offset of the view, in lines and in columns.
    pub(super) scroll: (usize, usize),
}

#[derive(Debug)]
pub(super) struct TopState {
    pub(super) rows: Rows,
    pub(super) link: Connectivity,
    /// Monotonic time since the start. `now_ms` is the wall-clock time of the store's client.
    pub(super) at: Duration,
    pub(super) now_ms: i64,
    /// Time of the store's last answer, on the same clock as `at`.
    pub(super) heard: Duration,
    pub(super) unreadable: Option<(usize, String)>,
    pub(super) queue: Option<QueueView>,
    pub(super) dialog: Option<Revocation>,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) has_help: bool,
    pub(super) message: Option<String>,
    pub(super) height: usize,
}

impl TopState {
    pub(super) fn new() -> Self {
        Self {
            rows: Rows::new(),
            link: Connectivity::Reading,
            at: Duration::ZERO,
            now_ms: 0,
            heard: Duration::ZERO,
            unreadable: None,
            queue: None,
            dialog: None,
            filter: String::new(),
            is_typing: false,
            has_help: false,
            message: None,
            height: 20,
        }
    }

    pub(super) fn tick(&mut self, at: Duration, now_ms: i64) {
        let seconds = |ms: i64| ms.div_euclid(1_000);
        let is_new = seconds(now_ms) != seconds(self.now_ms);
        (self.at, self.now_ms) = (at, now_ms);
        // Write the lines only once per second, because writing a long queue takes long.
        if is_new && let Some(view) = &mut self.queue {
            view.write(now_ms);
        }
    }

    pub(super) fn apply(&mut self, input: Input) -> Option<Effect> {
        match input {
            Input::Key(key) if key.kind != KeyEventKind::Release => return self.key(key),
            Input::Key(_) => {}
            Input::Paste(text) if self.is_typing => self.type_in(&text),
            // Ignore pasted text, because its letters must not act as keys.
            Input::Paste(_) => {}
            Input::Redraw => return Some(Effect::Clear),
            Input::News(news) => self.hear(news),
            Input::Queue { lock, mut queue } => {
                if let (Ok(queue), Some(lock)) = (&mut queue, self.rows.lock(&lock)) {
                    add_seen(&lock.holders, &mut queue.holders);
                }
                if let Some(view) = self.queue.as_mut().filter(|view| view.lock == lock) {
                    view.queue = Some(queue);
                    view.write(self.now_ms);
                }
            }
            Input::Done(text) => self.message = Some(text),
            Input::NoKeys(why) => return Some(Effect::Fail(why)),
        }
        None
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Reading => (self.link, self.heard) = (Connectivity::Reading, self.at),
            News::Locks { change, all } => self.locks(change, all),
            News::Heard => self.heard = self.at,
            News::Suspended => self.lose(None),
            News::Lost(why) => self.lose(why),
        }
    }

    fn locks(&mut self, change: LockChange, all: bool) {
        (self.link, self.heard) = (Connectivity::Live, self.at);
        match change.unreadable.first() {
            Some((path, why)) => {
                let text = format!("{}: {why}", path.as_str());
                self.unreadable = Some((change.unreadable.len(), escaped(&text)));
            }
            None if all => self.unreadable = None,
            None => {}
        }
        self.rows.apply(change, all);
    }

    fn lose(&mut self, why: Option<String>) {
        let at = match &self.link {
            Connectivity::Lost { at, .. } => *at,
            // Use the time of the last answer, because the store was still reachable then.
            _ => self.heard,
        };
        self.link = Connectivity::Lost { at, why };
    }

    pub(super) fn silent_for(&self) -> Option<Duration> {
        let silent = self.at.saturating_sub(self.heard);
        (self.link == Connectivity::Live && silent > SILENCE).then_some(silent)
    }

    pub(super) fn is_current(&self) -> bool {
        self.link == Connectivity::Live && self.silent_for().is_none()
    }

    pub(super) fn is_gone(&self, dialog: &Revocation) -> bool {
        let token = dialog.holder.fencing_token;
        let in_queue = self.queue.as_ref().filter(|it| it.lock == dialog.lock);
        let in_queue = in_queue.and_then(QueueView::queue);
        let in_queue = in_queue.is_some_and(|queue| holder_of(queue, token).is_some());
        !in_queue && self.rows.holder(&dialog.lock, token).is_none()
    }

    fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(Effect::Quit),
            KeyCode::Char('z') if control => return Some(Effect::Suspend),
            KeyCode::Char('l') if control => return Some(Effect::Clear),
            KeyCode::F(5) => return Some(Effect::Clear),
            KeyCode::F(10) => return Some(Effect::Quit),
            _ => {}
        }
        self.message = None;
        if self.dialog.is_some() {
            return self.key_of_dialog(key.code);
        }
        if self.has_help {
            self.has_help = false;
            return None;
        }
        if self.is_typing {
            self.key_of_filter(key.code, control);
            return None;
        }
        match key.code {
            KeyCode::Char('q' | 'Q') => return Some(Effect::Quit),
            KeyCode::Char('?') | KeyCode::F(1) => self.has_help = true,
            KeyCode::Char('r') | KeyCode::F(9) if !control => self.ask(false),
            KeyCode::Char('R') => self.ask(true),
            _ if self.queue.is_some() => return self.key_of_queue(key.code, control),
            _ => return self.key_of_list(key.code, control),
        }
        None
    }

    fn key_of_list(&mut self, code: KeyCode, control: bool) -> Option<Effect> {
        let page = self.height.saturating_sub(1).max(1) as isize;
        match code {
            KeyCode::Char('f') if control => self.rows.page(page),
            KeyCode::Char('b') if control => self.rows.page(-page),
            KeyCode::Char('d') if control => self.rows.page((page / 2).max(1)),
            KeyCode::Char('u') if control => self.rows.page(-(page / 2).max(1)),
            KeyCode::Char('n') if control => self.rows.step(1),
            KeyCode::Char('p') if control => self.rows.step(-1),
            _ if control => {}
            KeyCode::Down | KeyCode::Char('j') => self.rows.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.rows.step(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.rows.page(page),
            KeyCode::PageUp => self.rows.page(-page),
            KeyCode::Home | KeyCode::Char('g') => self.rows.first(),
            KeyCode::End | KeyCode::Char('G') => self.rows.last(),
            KeyCode::Char('n' | 'N') => self.rows.sort_by(Sort::Name),
            KeyCode::Char('t' | 'T') => self.rows.sort_by(Sort::Held),
            KeyCode::Char('o' | 'O') => self.rows.sort_by(Sort::Overdue),
            KeyCode::Char('w' | 'W') => self.rows.sort_by(Sort::Waiters),
            KeyCode::Char('i' | 'I') => self.rows.sort_by(self.rows.order().0),
            KeyCode::Char('>' | 's') | KeyCode::F(6) => self.sort_by_next(1),
            KeyCode::Char('<' | 'S') => self.sort_by_next(-1),
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => self.is_typing = true,
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => return self.open(),
            _ => {}
        }
        None
    }

    fn sort_by_next(&mut self, step: isize) {
        let (sort, _) = self.rows.order();
        self.rows.sort_by(sort.next(step));
    }

    fn open(&mut self) -> Option<Effect> {
        let of = self.rows.selected()?.clone();
        let lock = of.lock.clone();
        self.queue = Some(QueueView {
            lock: lock.clone(),
            of,
            queue: None,
            lines: Vec::new(),
            scroll: (0, 0),
        });
        Some(Effect::Open(lock))
    }

    fn key_of_queue(&mut self, code: KeyCode, control: bool) -> Option<Effect> {
        let page = self.height.saturating_sub(1).max(1);
        let Some(view) = &mut self.queue else {
            return None;
        };
        let (line, column) = &mut view.scroll;
        match code {
            KeyCode::Esc | KeyCode::Backspace => {
                self.queue = None;
                return Some(Effect::Close);
            }
            KeyCode::Char('f') if control => *line += page,
            KeyCode::Char('b') if control => *line = line.saturating_sub(page),
            KeyCode::Char('d') if control => *line += page / 2,
            KeyCode::Char('u') if control => *line = line.saturating_sub(page / 2),
            KeyCode::Char('n') if control => *line += 1,
            KeyCode::Char('p') if control => *line = line.saturating_sub(1),
            _ if control => {}
            KeyCode::Down | KeyCode::Char('j') => *line += 1,
            KeyCode::Up | KeyCode::Char('k') => *line = line.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => *line += page,
            KeyCode::PageUp => *line = line.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => (*line, *column) = (0, 0),
            KeyCode::End | KeyCode::Char('G') => *line = usize::MAX,
            KeyCode::Right | KeyCode::Char('l') => *column += 8,
            KeyCode::Left | KeyCode::Char('h') => *column = column.saturating_sub(8),
            _ => {}
        }
        view.bound(self.height);
        None
    }

    fn key_of_filter(&mut self, code: KeyCode, control: bool) {
        let mut filter = std::mem::take(&mut self.filter);
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                filter.clear();
            }
            KeyCode::Char('u') if control => filter.clear(),
            KeyCode::Char('w') if control => {
                let kept = filter.trim_end().rfind(' ').map_or(0, |at| at + 1);
                filter.truncate(kept);
            }
            KeyCode::Char('h') if control => drop(filter.pop()),
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Down => self.rows.step(1),
            KeyCode::Up => self.rows.step(-1),
            KeyCode::Char(c) if !control => filter.push(c),
            _ => {}
        }
        self.set_filter(filter);
    }

    fn type_in(&mut self, text: &str) {
        let text = text.chars().filter(|c| !c.is_control());
        let filter = self.filter.chars().chain(text).collect();
        self.set_filter(filter);
    }

    fn set_filter(&mut self, filter: String) {
        if filter != self.filter || filter.is_empty() {
            self.rows.filter_by(&filter);
        }
        self.filter = filter;
    }

    fn ask(&mut self, force: bool) {
        if !self.is_current() {
            self.message = Some("not connected: another client may hold it by now".into());
            return;
        }
        match self.shown_holder() {
            Ok((lock, holder)) => {
                self.dialog = Some(Revocation {
                    force,
                    lock,
                    holder,
                });
            }
            Err(why) => self.message = Some(why),
        }
    }

    fn shown_holder(&self) -> Result<(ZnodePath, QueueEntry), String> {
        let row = match &self.queue {
            Some(view) => &view.of,
            None => self.rows.selected().ok_or("no lock is selected")?,
        };
        let lock = row.lock.clone();
        let nobody = || format!("nobody holds {}", escaped(&lock_name(&lock)));
        let holder = match &self.queue {
            Some(view) => {
                let queue = view.queue().ok_or("the queue is being read")?;
                let same = row.token.and_then(|token| holder_of(queue, token));
                match (same, &queue.holders[..]) {
                    (Some(same), _) => same,
                    (None, [only]) => only,
                    (None, []) => return Err(nobody()),
                    (None, _) => return Err("several hold it: choose one in the list".into()),
                }
            }
            None => {
                let held = row.token.and_then(|token| self.rows.holder(&lock, token));
                held.ok_or_else(nobody)?
            }
        };
        Ok((lock.clone(), holder.clone()))
    }

    fn key_of_dialog(&mut self, code: KeyCode) -> Option<Effect> {
        match code {
            KeyCode::Char('y' | 'Y') => {
                let dialog = self.dialog.take()?;
                if self.is_gone(&dialog) {
                    self.message = Some("that holder has already left: nothing was done".into());
                } else if !self.is_current() {
                    self.message = Some("not connected: nothing was done".into());
                } else {
                    return Some(Effect::Revoke(Box::new(dialog)));
                }
            }
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('n' | 'N' | 'q' | 'Q') => {
                self.dialog = None;
            }
            _ => {}
        }
        None
    }
}

impl QueueView {
    pub(super) fn queue(&self) -> Option<&LockQueue> {
        self.queue.as_ref()?.as_ref().ok()
    }

    fn write(&mut self, now_ms: i64) {
        let text = match &self.queue {
            None => "reading …".into(),
            Some(Ok(queue)) => who::shown(queue, now_ms),
            Some(Err(why)) => escaped(why),
        };
        self.lines = text.lines().map(str::to_owned).collect();
    }

    pub(super) fn bound(&mut self, height: usize) {
        let last = self.lines.len().saturating_sub(height);
        self.scroll.0 = self.scroll.0.min(last);
        let longest = self.lines.iter().map(|line| line.chars().count()).max();
        self.scroll.1 = self.scroll.1.min(longest.unwrap_or(0));
    }
}

fn holder_of(queue: &LockQueue, token: lockkeeper::FencingToken) -> Option<&QueueEntry> {
    let mut holders = queue.holders.iter();
    holders.find(|it| it.fencing_token == token)
}
