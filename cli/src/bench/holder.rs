//! The holder that the workload `expiry` kills: this program as another process, which holds a lock until stdin ends.

use std::io;

use clap::Args;
use lockkeeper::Mutex;

use crate::exit::Failure;
use crate::target::{Target, lock_path};

/// The subcommand of that process.
pub(crate) const HOLDER: &str = "bench-holder";

/// Its arguments.
#[derive(Args, Debug)]
pub(crate) struct Holder {
    name: String,
    #[command(flatten)]
    target: Target,
}

impl Holder {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        let client = self.target.connect().await?;
        let guard = Mutex::new(&client, path)?.lock().await?;
        crate::output::print(&format!("{}\n", guard.fencing_token()))?;
        let (tell, told) = tokio::sync::oneshot::channel();
        // No blocking task: a runtime that shuts down would wait for it.
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            let _ = tell.send(());
        });
        tokio::select! {
            reason = guard.lost() => Err(Failure::Lost(format!("the lock was lost: {reason}"))),
            _ = told => Ok(guard.release().await?),
        }
    }
}
