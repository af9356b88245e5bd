//! `lockkeeper who`: one queue.

use std::fmt::Write;

use clap::Args;
use lockkeeper::QueueEntry;

use crate::exit::Failure;
use crate::target::{Target, lock_path};

/// The arguments of `who`.
#[derive(Args, Debug)]
pub(crate) struct Who {
    /// The lock: a name, or the path of its znode
    name: String,
    #[command(flatten)]
    target: Target,
}

impl Who {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        let client = self.target.connect().await?;
        let queue = lockkeeper::queue(&client, &path).await?;
        crate::print(&table(&queue))?;
        Ok(())
    }
}

fn table(queue: &[QueueEntry]) -> String {
    let mut text = String::new();
    for entry in queue {
        let (token, owner) = (entry.fencing_token, entry.owner);
        let _ = writeln!(text, "{} token {token}, session {owner}", entry.path);
    }
    text
}
