//! Shell completions and manual pages.

use std::fs;
use std::process::{Command, Output};

use super::support::*;

/// Returns the subcommands, as the help lists them.
fn subcommands() -> Vec<String> {
    let help = success(&lockkeeper(&[&"--help"]));
    let list = help.split("Commands:\n").nth(1).unwrap();
    let list = list.split("\n\n").next().unwrap();
    let names = list
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(
        names.len() > 7 && names.contains(&"serve".into()),
        "{names:?}"
    );
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

/// Returns the words that bash offers for the last of these.
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
    let folder = Folder::new();
    success(&lockkeeper(&[&"man", &"--dir", &folder.0]));
    for name in subcommands().iter().filter(|name| *name != "help") {
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
