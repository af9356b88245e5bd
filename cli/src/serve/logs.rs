//! The log on stderr, and the abort on a panic.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Human-readable lines
    Text,
    /// One JSON object per line
    Json,
}

pub(crate) fn level(text: &str) -> Result<String, String> {
    for part in text.split(',') {
        let level = part.split_once('=').map_or(part, |(_, level)| level);
        if level.parse::<LevelFilter>().is_err() || level.is_empty() {
            return Err(format!(
                "\"{level}\" is not a log level: expected off, error, warn, info, debug or trace",
                level = level.escape_debug()
            ));
        }
    }
    match text.parse::<Targets>() {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn start(format: Format, level: &str) {
    let levels: Targets = level.parse().expect("it was checked when it was read");
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = match format {
        Format::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    registry().with(lines.with_filter(levels)).init();
    end_on_panic();
}

/// Aborts the process on a panic, because the thread may hold a lock or have left work half done. Destructors do not
/// run, because they could mark the log as closed by an orderly shutdown. The next start recovers all acknowledged
/// writes.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let reason = panic.payload_as_str().unwrap_or("unknown");
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(
            place,
            reason,
            %backtrace,
            "internal error, the process aborts, please report this"
        );
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Runs this test again in a child process, which must abort.
    #[test]
    fn a_panic_of_any_thread_ends_the_process_with_its_reason() {
        const CHILD: &str = "LOCKKEEPER_TEST_PANICS";
        if std::env::var_os(CHILD).is_some() {
            start(Format::Json, "info");
            let thread = std::thread::spawn(|| panic!("half done"));
            let _ = thread.join();
            std::process::exit(0);
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = "serve::logs::tests::a_panic_of_any_thread_ends_the_process_with_its_reason";
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let output = child.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        // SIGABRT
        assert_eq!(output.status.signal(), Some(6), "{said}");
        let line: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
        assert_eq!(
            (line["level"].as_str(), line["reason"].as_str()),
            (Some("ERROR"), Some("half done"))
        );
        assert!(
            line["place"].as_str().unwrap().contains("logs.rs"),
            "{said}"
        );
    }

    #[test]
    fn a_level_is_one_of_six() {
        for text in ["info", "off", "DEBUG", "warn,lockkeeper_store=debug"] {
            assert!(level(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "loud",
            "info,",
            "lockkeeper_store=loud",
            "lockkeeper_store=",
        ] {
            assert!(level(text).is_err(), "{text}");
        }
    }
}
