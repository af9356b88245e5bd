//! `lockkeeper man`: prints or writes the manual pages, which `cargo install` does not install.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command};
use clap_mangen::Man;

/// Arguments of `lockkeeper man`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Subcommand to describe [default: `lockkeeper` itself]
    command: Option<String>,
    /// Writes all pages to this directory, which must exist
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn run(&self, command: Command) -> Result<(), Box<dyn Error>> {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        if let Some(dir) = &self.dir {
            return Ok(write_all(command, dir)?);
        }
        let page = page(self.chosen(command)?)?;
        Ok(crate::output::print(&String::from_utf8_lossy(&page))?)
    }

    fn chosen(&self, command: Command) -> Result<Command, String> {
        let Some(name) = &self.command else {
            return Ok(command);
        };
        let found = command.find_subcommand(name).cloned();
        found.ok_or_else(|| {
            format!(
                "there is no subcommand \"{name}\"",
                name = name.escape_debug()
            )
        })
    }
}

fn write_all(command: Command, dir: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_all(subcommand.clone(), dir)?;
    }
    let file = Man::new(command.clone()).get_filename();
    fs::write(dir.join(file), page(command)?)
}

/// Renders a page. We write the synopsis ourselves, because clap_mangen omits the values of options and `--`.
fn page(mut command: Command) -> io::Result<Vec<u8>> {
    let synopsis = synopsis(&mut command).replace('-', r"\-");
    let (has_subcommands, has_version) =
        (command.has_subcommands(), command.get_version().is_some());
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n{synopsis}")?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    if has_version {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

fn synopsis(command: &mut Command) -> String {
    let usage = command.render_usage().to_string();
    let options = command.get_arguments().filter(|it| {
        let is_listed = it.is_positional() || it.is_required_set() || it.is_hide_set();
        !is_listed && !matches!(it.get_id().as_str(), "help" | "version")
    });
    let options: Vec<_> = options.map(|it| format!("[{it}]")).collect();
    let usage = usage.trim_start_matches("Usage: ");
    usage.replace("[OPTIONS]", &options.join(" "))
}
