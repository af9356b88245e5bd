//! `lockkeeper man`: the manual pages, which `cargo install` does not install.

use std::error::Error;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

/// Arguments of `lockkeeper man`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The subcommand; without it, the page of `lockkeeper` itself
    command: Option<String>,
    /// Writes the pages of all subcommands into this directory, which must exist
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn run(&self, command: Command) -> Result<(), Box<dyn Error>> {
        let command = command.disable_help_subcommand(true);
        if let Some(dir) = &self.dir {
            return Ok(clap_mangen::generate_to(command, dir)?);
        }
        let mut page = Vec::new();
        Man::new(self.chosen(command)?).render(&mut page)?;
        Ok(crate::print(&String::from_utf8_lossy(&page))?)
    }

    /// Returns the subcommand, under the name that its page has.
    fn chosen(&self, mut command: Command) -> Result<Command, String> {
        // Fills in the names and usages of the subcommands.
        command.build();
        let Some(name) = &self.command else {
            return Ok(command);
        };
        let found = command.find_subcommand(name).cloned();
        let found = found.ok_or_else(|| format!("there is no subcommand {name:?}"))?;
        let page = format!("{}-{name}", command.get_name());
        Ok(found.display_name(page))
    }
}
