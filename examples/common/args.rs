//! The command line of an example that asks for nothing but the store.

use std::process::ExitCode;

use lexopt::prelude::*;
use lockkeeper::Target;

const NAME: &str = env!("CARGO_CRATE_NAME");

/// The store that the command line names. When it asks for help, or cannot be meant, all is said
/// here, and the program is to end with this status.
pub(crate) fn target(about: &str) -> Result<Target, ExitCode> {
    match parse(lexopt::Parser::from_env()) {
        Ok(Some(target)) => Ok(target),
        Ok(None) => {
            print!("{}", help(about));
            Err(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{NAME}: {error} (see --help)");
            Err(ExitCode::from(2))
        }
    }
}

/// `None` when help is asked for.
fn parse(mut parser: lexopt::Parser) -> Result<Option<Target>, lexopt::Error> {
    let mut target = Target::memory();
    let mut help = false;
    while let Some(option) = parser.next()? {
        match option {
            Long("url") => target = parser.value()?.parse()?,
            Short('h') | Long("help") => help = true,
            other => return Err(other.unexpected()),
        }
    }
    Ok((!help).then_some(target))
}

fn help(about: &str) -> String {
    format!(
        "\
{about}

  cargo run --release --example {NAME} -- [OPTIONS]

  --url URL  where the locks are: memory: (default), file:PATH (with --features file),
             or zookeeper://host:port[/chroot];
             a chroot that is missing is made
  --help     this text

Exit status: 0 when all is right, 1 when anything is wrong, 2 for a bad command line.
"
    )
}
