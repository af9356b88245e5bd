//! The command line.

use lexopt::prelude::*;

const USAGE: &str = "\
usage: cargo bench --bench costs --features test-util -- [options]
  --url URL     memory: (the default) or zookeeper://host:port[/chroot]
  --recipe R    only mutex, rwlock, semaphore, election or lock-all
  --n N         only the hand-overs while so many wait (2, 100 and 1,000)";

const RECIPES: [&str; 5] = ["mutex", "rwlock", "semaphore", "election", "lock-all"];

pub(crate) struct Args {
    pub(crate) url: String,
    pub(crate) recipe: Option<String>,
    n: Option<usize>,
}

impl Args {
    pub(crate) fn parse() -> Self {
        match Self::of(lexopt::Parser::from_env()) {
            Ok(Some(args)) => args,
            Ok(None) => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            Err(fault) => {
                eprintln!("{fault}\n{USAGE}");
                std::process::exit(2);
            }
        }
    }

    /// `None` when help is asked for.
    fn of(mut words: lexopt::Parser) -> Result<Option<Self>, lexopt::Error> {
        let mut args = Self {
            url: "memory:".into(),
            recipe: None,
            n: None,
        };
        while let Some(word) = words.next()? {
            match word {
                Long("url") => args.url = words.value()?.string()?,
                Long("recipe") => args.recipe = Some(words.value()?.string()?),
                Long("n") => args.n = Some(words.value()?.parse()?),
                Long("help") => return Ok(None),
                // What `cargo bench` says to every benchmark.
                Long("bench") => {}
                _ => return Err(word.unexpected()),
            }
        }
        match &args.recipe {
            Some(recipe) if !RECIPES.contains(&recipe.as_str()) => {
                Err(format!("--recipe {recipe} is not known").into())
            }
            _ if args.n == Some(0) => Err("--n is at least 1".into()),
            _ => Ok(Some(args)),
        }
    }

    /// How many wait.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.n.map_or(vec![2, 100, 1_000], |n| vec![n])
    }
}
