//! `lockkeeper locks --watch`: shows the locks as they change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use lockkeeper::{Client, LockChange, LockInfo, LockPrefix, ZnodePath, observe_locks};
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};

use super::names::{escaped, lock_name};
use super::table::fitted;
use super::{json, shown, warn_of};
use crate::exit::Failure;
use crate::live::SeenGrants;

const REDRAW: Duration = Duration::from_secs(1);

/// Moves the cursor to the top left, and clears the screen from there.
const HOME: &str = "\u{1b}[H\u{1b}[J";

pub(super) async fn run(client: &Client, prefix: LockPrefix, json: bool) -> Result<(), Failure> {
    let mut changes = observe_locks(client, prefix)?;
    let on_screen = !json && io::stdout().is_terminal() && !crate::output::has_dumb_terminal();
    let mut known = BTreeMap::<ZnodePath, LockInfo>::new();
    let (mut grants, mut all) = (SeenGrants::default(), true);
    loop {
        let redraw = async {
            match on_screen {
                true => tokio::time::sleep(REDRAW).await,
                false => std::future::pending().await,
            }
        };
        let mut change = tokio::select! {
            change = changes.next() => match change {
                Some(change) => change?,
                None => return Ok(()),
            },
            () = redraw => LockChange::default(),
        };
        let now_ms = client.clock().unix_ms();
        grants.complete(&mut change, all, now_ms);
        all = false;
        let text = if on_screen {
            for lock in change.changed {
                known.insert(lock.path.clone(), lock);
            }
            for path in change.freed {
                known.remove(&path);
            }
            screen(&known, now_ms)
        } else {
            warn_of(&change.unreadable);
            match json {
                true => objects(&change, now_ms),
                false => lines(&change, now_ms),
            }
        };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
}

fn screen(locks: &BTreeMap<ZnodePath, LockInfo>, now_ms: i64) -> String {
    let size = tcgetwinsize(io::stdout()).ok();
    let size = size.filter(|size| size.ws_row > 1 && size.ws_col > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    // Keep the last line free, because a line break there would scroll.
    let rows = usize::from(rows) - 1;
    let table = shown(locks.values(), now_ms);
    let lines: Vec<_> = table.lines().collect();
    let mut text = HOME.to_owned();
    let fitting = if lines.len() > rows { rows - 1 } else { rows };
    for line in lines.iter().take(fitting) {
        text.push_str(&fitted(line, columns.into()));
        text.push('\n');
    }
    if lines.len() > fitting {
        let _ = write!(text, "… {} more", lines.len() - fitting);
    }
    text
}

fn lines(change: &LockChange, now_ms: i64) -> String {
    let mut text = String::new();
    for line in shown(&change.changed, now_ms).lines().skip(1) {
        let _ = writeln!(text, "held   {line}");
    }
    for path in &change.freed {
        let _ = writeln!(text, "freed  {}", escaped(&lock_name(path)));
    }
    text
}

fn objects(change: &LockChange, now_ms: i64) -> String {
    let held = change.changed.iter().map(|lock| {
        let mut object = json::lock(lock, now_ms);
        object["event"] = "held".into();
        object
    });
    let freed = change.freed.iter().map(|path| -> Value {
        json!({ "event": "freed", "lock": lock_name(path), "path": path.as_str() })
    });
    held.chain(freed).fold(String::new(), |mut text, object| {
        let _ = writeln!(text, "{object}");
        text
    })
}
