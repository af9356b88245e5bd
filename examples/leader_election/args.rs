//! The command line.

use std::path::PathBuf;

use lexopt::prelude::*;
use lockkeeper::Target;

pub(crate) const HELP: &str = "\
Candidates stand for election; leaders work, and are killed; the next one takes over.

  cargo run --release --example leader_election -- [OPTIONS]

  --url URL        where the election is: memory: (default), file:PATH (with --features file),
                   or zookeeper://host:port[/chroot];
                   a chroot that is missing is made
  --candidates N   how many stand, 3 to 64 (default 4)
  --processes      each candidate is a process of its own, and leaders are killed with SIGKILL;
                   needs a zookeeper: URL
  --help           this text

Exit status: 0 when all is right, 1 when anything is wrong, 2 for a bad command line.
";

#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) target: Target,
    pub(crate) candidates: usize,
    pub(crate) processes: bool,
    /// This process is one of those that `--processes` has started.
    pub(crate) child: Option<Child>,
    pub(crate) help: bool,
}

/// What a process that is one candidate is told.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) schedule: PathBuf,
    /// When the one who started it began, in milliseconds since 1970.
    pub(crate) began_ms: u64,
}

impl Args {
    /// Reads the command line.
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut args = Self {
            target: Target::memory(),
            candidates: 4,
            processes: false,
            child: None,
            help: false,
        };
        while let Some(option) = parser.next()? {
            match option {
                Long("url") => args.target = parser.value()?.parse()?,
                Long("candidates") => args.candidates = parser.value()?.parse()?,
                Long("processes") => args.processes = true,
                // For this program alone: --child NAME PATH SCHEDULE BEGAN_MS
                Long("child") => {
                    args.child = Some(Child {
                        name: parser.value()?.string()?,
                        path: parser.value()?.string()?,
                        schedule: parser.value()?.into(),
                        began_ms: parser.value()?.parse()?,
                    });
                }
                Short('h') | Long("help") => args.help = true,
                other => return Err(other.unexpected()),
            }
        }
        args.check()?;
        Ok(args)
    }

    fn check(&self) -> Result<(), String> {
        if !(3..=64).contains(&self.candidates) {
            let stated = self.candidates;
            return Err(format!("--candidates must be from 3 to 64, not {stated}"));
        }
        if self.processes && !self.target.to_string().starts_with("zookeeper:") {
            return Err("--processes needs a zookeeper: URL: processes share no memory".into());
        }
        Ok(())
    }
}
