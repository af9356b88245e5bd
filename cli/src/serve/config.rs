//! [`Config`]: the options and their sources. The command line overrides `LOCKKEEPER_LOG`, which overrides the
//! configuration file, which overrides the defaults.
//!
//! The command line's parser also parses the file's options, so an option means the same in both places.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use toml::de::{DeTable, DeValue};

use super::flags::Flags;

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) flags: Flags,
    pub(crate) settings: Vec<Setting>,
}

#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
    pub(crate) source: OptionSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionSource {
    Flag,
    Environment,
    File,
    Default,
}

impl fmt::Display for OptionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => LOG_VARIABLE,
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

const LOG_VARIABLE: &str = "LOCKKEEPER_LOG";

const FLAGS_ALONE: [&str; 2] = ["config", "check-config"];

type Values = BTreeMap<String, Vec<OsString>>;

impl Config {
    pub(crate) fn read(given: &ArgMatches) -> Result<Self, String> {
        let command = command();
        let flags = given_values(&command, given);
        let variable = variable(&command)?;
        let file = match flags.get("config").and_then(|paths| paths.last()) {
            Some(path) => read_file(&command, Path::new(path))?,
            None => Values::new(),
        };
        // Each source replaces a list as a whole. For example, a `--user` flag replaces the users in the file.
        let mut all = file.clone();
        all.extend(variable.clone());
        all.extend(flags.clone());
        let matches = parse(&command, &all).map_err(|error| reason(&error))?;
        let source = |name: &str| match () {
            () if flags.contains_key(name) => OptionSource::Flag,
            () if variable.contains_key(name) => OptionSource::Environment,
            () if file.contains_key(name) => OptionSource::File,
            () => OptionSource::Default,
        };
        Ok(Self {
            flags: Flags::from_arg_matches(&matches).map_err(|error| reason(&error))?,
            settings: settings(&command, &matches, source),
        })
    }
}

pub(crate) fn command() -> Command {
    Flags::augment_args(Command::new("serve").no_binary_name(true))
}

fn parse(command: &Command, values: &Values) -> Result<ArgMatches, clap::Error> {
    let flags = values.iter().flat_map(|(name, values)| {
        values.iter().map(move |value| {
            // With `=`, a value with a leading dash is not parsed as a flag.
            let mut flag = OsString::from(format!("--{name}="));
            flag.push(value);
            flag
        })
    });
    command.clone().try_get_matches_from(flags)
}

fn given_values(command: &Command, given: &ArgMatches) -> Values {
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let arguments = command
        .get_arguments()
        .filter(|it| is_given(it.get_id().as_str()));
    let values = arguments.filter_map(|argument| {
        let values = given.get_raw(argument.get_id().as_str())?;
        Some((name_of(argument), values.map(ToOwned::to_owned).collect()))
    });
    values.collect()
}

fn variable(command: &Command) -> Result<Values, String> {
    let Some(level) = std::env::var_os(LOG_VARIABLE).filter(|level| !level.is_empty()) else {
        return Ok(Values::new());
    };
    let values = Values::from([("log-level".to_owned(), vec![level])]);
    match parse(command, &values) {
        Ok(_) => Ok(values),
        Err(error) => Err(format!("{LOG_VARIABLE}: {}", reason(&error))),
    }
}

fn settings(
    command: &Command,
    matches: &ArgMatches,
    source: impl Fn(&str) -> OptionSource,
) -> Vec<Setting> {
    let shown = command.get_arguments().filter_map(|argument| {
        let name = name_of(argument);
        let values = matches.get_raw(argument.get_id().as_str())?;
        let values = values.map(|value| value.to_string_lossy().into_owned());
        (!FLAGS_ALONE.contains(&name.as_str())).then(|| Setting {
            values: values.collect(),
            source: source(&name),
            name,
        })
    });
    shown.collect()
}

fn name_of(argument: &Arg) -> String {
    let name = argument.get_long();
    name.unwrap_or_else(|| argument.get_id().as_str())
        .to_owned()
}

fn reason(error: &clap::Error) -> String {
    use std::error::Error;
    if let Some(source) = error.source() {
        return source.to_string();
    }
    let text = error.render().to_string();
    let lines = text.trim().lines().take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let lines: Vec<_> = lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

fn read_file(command: &Command, path: &Path) -> Result<Values, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let at = |span: Range<usize>| {
        let line = text[..span.start].matches('\n').count() + 1;
        format!("{}:{line}", path.display())
    };
    let table = DeTable::parse(&text).map_err(|error| {
        let place = at(error.span().unwrap_or_default());
        format!("{place}: {}", error.message())
    })?;
    let mut values = Values::new();
    for (key, value) in table.get_ref() {
        let (name, place) = (key.get_ref().as_ref(), at(key.span()));
        let argument = command.get_arguments().find(|it| name_of(it) == name);
        let argument = argument.filter(|_| !FLAGS_ALONE.contains(&name));
        let argument = argument.ok_or_else(|| {
            format!(
                "{place}: there is no option \"{name}\": see `lockkeeper serve --help`",
                name = name.escape_debug()
            )
        })?;
        let told = |why| format!("{place}: {name}: {why}");
        let one = flag_values(argument, value.get_ref()).map_err(told)?;
        // Parse each option separately, so that we can report an error at the line of its key.
        let one = Values::from([(name.to_owned(), one)]);
        parse(command, &one).map_err(|error| told(reason(&error)))?;
        values.extend(one);
    }
    Ok(values)
}

fn flag_values(argument: &Arg, value: &DeValue<'_>) -> Result<Vec<OsString>, String> {
    let DeValue::Array(values) = value else {
        return Ok(vec![flag_value(value)?.into()]);
    };
    let values: Result<Vec<_>, _> = values.iter().map(|it| flag_value(it.get_ref())).collect();
    let values = values?;
    match argument.get_action() {
        ArgAction::Append => Ok(values.into_iter().map(Into::into).collect()),
        _ if ["four_letter_words", "four_letter_words_from"]
            .contains(&argument.get_id().as_str()) =>
        {
            Ok(vec![values.join(",").into()])
        }
        _ => Err("one value is expected, not a list".into()),
    }
}

fn flag_value(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.as_ref().to_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Ok(yes.to_string()),
        _ => Err("a text, a whole number, true or false is expected".into()),
    }
}
