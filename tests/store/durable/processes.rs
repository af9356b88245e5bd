//! Two processes compete for one directory. The other one is this test binary, started for one test.

use std::env;
use std::io::Read;
use std::process::Stdio;

use lockkeeper_store::{Error, Store};
use testkit::{ChildProcess, TempFolder, again};

/// Makes a process the child: the store's directory.
const FOLDER: &str = "LOCKKEEPER_HOLD_FOLDER";
const HOLDS: &str = "child: holds";

#[test]
fn a_second_process_is_told_which_one_has_the_store_until_that_one_dies() {
    if let Some(folder) = env::var_os(FOLDER) {
        let _store = Store::file(folder).unwrap();
        println!("\n{HOLDS}");
        // Blocks until we are killed or the parent ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    let folder = TempFolder::new("hold");
    let test = "a_second_process_is_told_which_one_has_the_store_until_that_one_dies";
    let mut child = ChildProcess::spawn(
        again(module_path!(), test)
            .env(FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    child.lines().wait_for(HOLDS);

    let folder = folder.path().canonicalize().unwrap();
    for _ in 0..3 {
        let refused = Store::file(&folder).unwrap_err();
        let pid = Some(child.id());
        let path = folder.clone();
        assert_eq!(refused, Error::StoreInUse { path, pid });
        let said = refused.to_string();
        assert!(said.contains(&format!("process {}", child.id())), "{said}");
    }
    child.kill();
    drop(Store::file(&folder).unwrap());
}
