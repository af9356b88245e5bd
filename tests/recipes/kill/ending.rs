//! End of a run: compares the final znodes with all reports.

use std::collections::BTreeMap;

use lockkeeper::Session;
use testkit::ChildProcess;

use super::judge::{Figures, Rules, judge, not_gone};
use super::line::{Line, Name, Said, Told};
use super::run::{Run, SHORT};
use super::server::Kind;
use super::writes::{Folder, Znode, writers};
use crate::common::path;

impl Run {
    /// Ends all clients in the life of this number, and returns the final znodes, after one more kill.
    pub(super) async fn end(
        &mut self,
        number: u64,
        life: ChildProcess,
    ) -> (BTreeMap<(Name, usize), Folder>, i64) {
        let from = self.history.tell(Told::Ready(number)).await;
        self.all_at_work(from).await;
        self.bury().await;
        let mut alive = self.children("/alive").await;
        alive.sort_unstable();
        assert_eq!(alive, ["curator", "kazoo-1", "kazoo-2", "ours"]);
        for client in self.living.drain(..) {
            client.end();
        }
        self.kill(number, life).await;
        let _life = self.next_life().await;
        // All sessions are over, as their clients were told: nothing of theirs is left.
        for folder in ["/alive", "/lock"] {
            let left = self.children(folder).await;
            assert!(left.is_empty(), "{folder} has {left:?} still");
        }
        (self.folders().await, self.gate().await)
    }

    /// Under the durability of this server a kill ends all sessions.
    fn kills_end_sessions(&self) -> bool {
        self.plan.kind == Kind::Lockkeeper("delayed-restart")
    }

    async fn children(&self, folder: &str) -> Vec<String> {
        let folder = path(folder);
        let children = async |session: Session| session.get_children(&folder).await;
        self.ask(children).await.0
    }

    async fn gate(&self) -> i64 {
        self.znode("/gate").await.data.parse().unwrap()
    }

    async fn znode(&self, znode: &str) -> Znode {
        let znode = path(znode);
        let read = async |session: Session| session.get_data(&znode).await;
        let (data, stat) = self.ask(read).await;
        Znode {
            czxid: stat.czxid.0,
            mzxid: stat.mzxid.0,
            version: stat.version,
            data: String::from_utf8(data.to_vec()).unwrap(),
        }
    }

    /// Returns the folder that each writer has left behind.
    async fn folders(&self) -> BTreeMap<(Name, usize), Folder> {
        let mut folders = BTreeMap::new();
        for name in self.children("/work").await {
            for writer in self.children(&format!("/work/{name}")).await {
                let at = format!("/work/{name}/{writer}");
                let mut folder = Folder::new();
                for znode in self.children(&at).await {
                    let content = match znode.starts_with("m-") {
                        true => None,
                        false => Some(self.znode(&format!("{at}/{znode}")).await),
                    };
                    folder.insert(znode, content);
                }
                folders.insert((name.clone(), writer.parse().unwrap()), folder);
            }
        }
        folders
    }

    /// Fails if something that was said or found cannot be.
    pub(super) fn judge(&self, found: &BTreeMap<(Name, usize), Folder>, gate: i64) -> Figures {
        let lines = self.history.lines();
        let timeout = self.plan.timeout.as_millis() as u64;
        let rules = Rules {
            timeout_of: &|name| match name.starts_with("mortal") {
                true => SHORT.as_millis() as u64,
                false => timeout,
            },
            kills_end_sessions: self.kills_end_sessions(),
            // kazoo gives its watches up with a connection, and reads anew.
            keeps_watches: &|name| matches!(name, "ours" | "curator"),
        };
        let figures = judge(&lines, &rules);
        for (name, writer) in writers(&lines) {
            let nothing = Folder::new();
            writer.judge(&name, found.get(&name).unwrap_or(&nothing));
        }
        let known: Vec<_> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Client(_, Said::Held(_, token)) => Some(*token),
                _ => None,
            })
            .collect();
        assert!(gate >= figures.shown && known.contains(&gate));
        assert!(not_gone(&lines).is_empty(), "{:?}", not_gone(&lines));
        figures
    }
}
