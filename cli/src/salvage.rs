//! `lockkeeper salvage`: copies the readable part of a damaged data directory to a new one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use lockkeeper::disk;
use lockkeeper_store::disk::{Loss, LostPlace, Salvage};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::inspect;
use crate::locks::names::escaped_lines;

/// Arguments of `lockkeeper salvage`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The damaged data directory
    dir: PathBuf,
    /// The data directory to create
    new: PathBuf,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(&self) -> ExitCode {
        match self.salvage() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        }
    }

    fn salvage(&self) -> Result<(), Failure> {
        let salvaged = disk::salvage(&self.dir, &self.new)?;
        let new = self.new.display();
        let text = match self.json {
            true => format!("{}\n", self.as_json(&salvaged)),
            false => escaped_lines(&format!(
                "{new} has {salvaged}\nthe fencing tokens of {new} continue above all earlier ones, and its sessions end when \
                 it is opened\n"
            )),
        };
        Ok(crate::output::print(&text)?)
    }

    fn as_json(&self, of: &Salvage) -> Value {
        json!({
            "directory": self.new.display().to_string(),
            "store": of.summary.store_id,
            "read_to_zxid": of.read_to.to_string(),
            "snapshot": of.snapshot,
            "zxid": of.summary.zxid.to_string(),
            "znodes": of.summary.znodes,
            "sessions": of.summary.sessions,
            "bytes": of.summary.bytes,
            "in_use": of.in_use,
            "problems": of.problems.iter().map(inspect::problem).collect::<Vec<_>>(),
            "loss": of.loss.as_ref().map(loss),
        })
    }
}

fn loss(of: &Loss) -> Value {
    json!({
        "damage": inspect::problem(&of.damage),
        "last_zxid": of.last_zxid.map(|zxid| zxid.to_string()),
        "transactions": of.transactions,
        "places": of.places.iter().map(place).collect::<Vec<_>>(),
    })
}

fn place(of: &LostPlace) -> Value {
    json!({
        "file": of.file.display().to_string(),
        "offset": of.offset,
        "bytes": of.bytes,
    })
}
