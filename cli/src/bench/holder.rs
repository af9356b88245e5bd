//! A process that holds a lock until its stdin ends. The workload `expiry` kills this process.

use std::io;

use clap::Args;
use lockkeeper::Mutex;

use crate::exit::Failure;
use crate::target::{Target, lock_path};

pub(crate) const HOLDER: &str = "bench-holder";

/// The arguments of this process.
#[derive(Args, Debug)]
pub(crate) struct HolderCommand {
    name: String,
    #[command(flatten)]
    target: Target,
}

impl HolderCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        let client = self.target.connect().await?;
        let guard = Mutex::new(&client, path)?.lock().await?;
        crate::output::print(&format!("{}\n", guard.fencing_token()))?;
        let (tell, told) = tokio::sync::oneshot::channel();
        // Use a plain thread, because the runtime would wait for a `spawn_blocking` task at shutdown.
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
