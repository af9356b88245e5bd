//! Checks that the command accepts the examples in docs/operating.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::support::*;

fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    fs::read_to_string(path).unwrap()
}

/// Returns the code block of the guide that is in this language and starts with this line.
fn block(language: &str, first: &str) -> String {
    let guide = guide();
    let start = format!("```{language}\n{first}\n");
    let (_, rest) = guide.split_once(&start).expect("the guide has it");
    rest.split_once("\n```").unwrap().0.to_owned()
}

#[test]
fn the_configuration_of_the_guide_is_taken() {
    let folder = TempFolder::short();
    let file = folder.at("lockkeeper.toml");
    fs::write(&file, block("toml", "# /etc/lockkeeper/lockkeeper.toml")).unwrap();
    let said = success(&lockkeeper(&[
        &"serve",
        &"--check-config",
        &"--config",
        &file,
    ]));
    assert!(
        said.contains(r#"user = ["orders:…", "billing:…"]"#),
        "{said}"
    );
    assert!(!said.contains("warning"), "{said}");
}

/// Returns the systemd unit in `contrib/` that the packages install.
fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/systemd/lockkeeper.service");
    fs::read_to_string(path).unwrap()
}

#[test]
fn the_unit_starts_what_there_is() {
    let folder = TempFolder::short();
    fs::write(folder.at("config"), "").unwrap();
    let unit = unit();
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let line = line.unwrap().replace("%d", ".").replace("%S", "state");
    let words = line.strip_prefix("/usr/bin/lockkeeper ").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(words.split(' ')).arg("--check-config");
    let said = success(&command.current_dir(folder.path()).output().unwrap());
    assert!(said.contains("state/lockkeeper"), "{said}");
}

#[test]
fn the_guide_shows_the_unit() {
    let unit = unit();
    let (first, rest) = unit.split_once('\n').unwrap();
    assert_eq!(format!("{}\n", block("ini", first)), rest);
}
