//! `lockkeeper completions`: prints the completion script of a shell.

use clap::{Args, Command};
use clap_complete::Shell;

/// Arguments of `lockkeeper completions`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

impl Arguments {
    pub(crate) fn script(&self, mut command: Command) -> String {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}
