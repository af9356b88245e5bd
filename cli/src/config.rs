//! `lockkeeper config`: shows which store a command would use and where each setting is from.

use clap::Args;

use crate::exit::Failure;
use crate::target::Target;

/// The arguments of `config`.
#[derive(Args, Debug)]
pub(crate) struct Config {
    #[command(flatten)]
    target: Target,
}

impl Config {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.target.check()?;
        let text = self.target.shown()? + &self.target.shown_files()?;
        Ok(crate::output::print(&text)?)
    }
}
