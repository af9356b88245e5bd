//! Shell completions and manual pages.

use std::fs;
use std::process::{Command, Output};

use super::support::*;

fn subcommands() -> Vec<String> {
    let help = success(&lockkeeper(&[&"--help"]));
    let headings = [
        "Use locks",
        "Inspect locks",
        "Run a server",
        "Look after data",
        "Other",
    ];
    let mut names = Vec::new();
    for heading in headings {
        let (_, list) = help.split_once(&format!("\n{heading}:\n")).unwrap();
        let (list, _) = list.split_once("\n\n").unwrap();
        names.extend(list.lines().map(|line| {
            let (name, about) = line.trim_start().split_once("  ").unwrap();
            assert!(
                !about.trim().is_empty() && line.chars().count() <= 80,
                "{line}"
            );
            name.to_owned()
        }));
    }
    names
}

fn bash(script: &str) -> Output {
    let command = env!("CARGO_BIN_EXE_lockkeeper");
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", script, "bash", command]);
    bash.output().unwrap()
}

#[test]
fn every_subcommand_is_in_the_completions_of_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = success(&lockkeeper(&[&"completions", &shell]));
        for name in subcommands() {
            assert!(script.contains(&name), "{name} for {shell}");
        }
    }
    let output = lockkeeper(&[&"completions", &"cmd"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn bash_loads_its_completions() {
    success(&bash(r#""$1" completions bash | bash -n"#));
    let loaded = success(&bash(
        r#"eval "$("$1" completions bash)"; complete -p lockkeeper"#,
    ));
    assert!(loaded.contains("-F _lockkeeper"), "{loaded}");
}

/// Returns the completions that bash offers for the last of these words.
fn offered(words: &str) -> Vec<String> {
    let script = format!(
        r#"eval "$("$1" completions bash)"
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _lockkeeper lockkeeper "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\n' "${{COMPREPLY[@]}}""#
    );
    let offered = success(&bash(&script));
    offered.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_subcommands_and_options() {
    let all = offered("lockkeeper ''");
    for name in subcommands() {
        assert!(all.contains(&name), "{name}: {all:?}");
    }
    assert_eq!(offered("lockkeeper salv"), ["salvage"]);
    assert_eq!(offered("lockkeeper salvage --js"), ["--json"]);
    assert!(offered("lockkeeper completions z").contains(&"zsh".into()));
}

#[test]
fn every_subcommand_has_a_page_and_is_in_the_overview() {
    let overview = success(&lockkeeper(&[&"man"]));
    assert!(overview.contains(".TH lockkeeper 1"), "{overview}");
    assert_eq!(overview.matches("(1)").count(), subcommands().len());
    let folder = TempFolder::short();
    success(&lockkeeper(&[&"man", &"--dir", &folder.path()]));
    for name in &subcommands() {
        let listed = format!("lockkeeper\\-{name}(1)");
        assert!(overview.contains(&listed), "{name}");
        let page = success(&lockkeeper(&[&"man", name]));
        let title = format!(".TH lockkeeper-{name} 1");
        assert!(page.contains(&title), "{page}");
        let written = folder.at(&format!("lockkeeper-{name}.1"));
        assert!(fs::read_to_string(written).unwrap().contains(&title));
    }
    let said = failure(&lockkeeper(&[&"man", &"burn"]));
    assert!(said.contains("no subcommand \"burn\""), "{said}");
}

/// The page has the synopsis in the form in which a user would type the command.
#[test]
fn a_page_has_the_whole_synopsis() {
    let folder = TempFolder::short();
    success(&lockkeeper(&[&"man", &"--dir", &folder.path()]));
    let wanted = [
        ("", &["lockkeeper <COMMAND>"][..]),
        (
            "-run",
            &[
                "lockkeeper run [--timeout <DURATION>] [--try] ",
                "[--permits <N/M>]",
                " [NAME] -- <COMMAND>...",
            ],
        ),
        ("-backup", &["lockkeeper backup <DIR> <FILE>"]),
        ("-admin", &["lockkeeper admin [--socket <PATH>] <COMMAND>"]),
        (
            "-admin-drain",
            &["lockkeeper admin drain [--timeout <DURATION>] [--wait]"],
        ),
    ];
    for (name, parts) in wanted {
        let page = fs::read_to_string(folder.at(&format!("lockkeeper{name}.1"))).unwrap();
        let (_, synopsis) = page.split_once(".SH SYNOPSIS\n").unwrap();
        let (synopsis, _) = synopsis.split_once("\n.SH").unwrap();
        let synopsis = synopsis.replace(r"\-", "-");
        for part in parts {
            assert!(synopsis.contains(part), "{part:?} in {synopsis:?}");
        }
    }
}

#[test]
fn no_page_tells_a_password_of_the_environment() {
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.env("LOCKKEEPER_AUTH", "user:s3cret");
        success(&command.args(arguments).output().unwrap())
    };
    for arguments in [
        &["man", "who"][..],
        &["who", "--help"],
        &["completions", "zsh"],
    ] {
        let text = command(arguments);
        assert!(text.contains("auth") && !text.contains("s3cret"), "{text}");
    }
}
