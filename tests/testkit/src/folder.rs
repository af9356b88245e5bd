//! [`TempFolder`]: a folder for one test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::process_number;

/// A fresh folder, removed on drop.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Returns a folder in the build directory.
    pub fn new(prefix: &str) -> Self {
        static OWN: OnceLock<ProcessFolder> = OnceLock::new();
        let own = OWN.get_or_init(|| {
            ProcessFolder::new(crate::target_tmp().join(format!("{:x}", process_number())))
        });
        own.subfolder(prefix)
    }

    /// Returns a folder for temporary files with a short path, because the path of a Unix socket is limited to 108
    /// bytes.
    pub fn short() -> Self {
        static OWN: OnceLock<ProcessFolder> = OnceLock::new();
        let own = OWN.get_or_init(|| {
            let name = format!("lockkeeper-{:x}", process_number() as u32);
            ProcessFolder::new(std::env::temp_dir().join(name))
        });
        own.subfolder("t")
    }

    /// Returns a folder in `parent`, which selects the disk.
    pub fn within(parent: &Path) -> Self {
        let name = format!("lockkeeper-{:x}", process_number() as u32);
        let own = ProcessFolder::new(parent.join(name));
        let folder = own.subfolder("t");
        // Dropping it would close the shell's stdin, and the shell would remove the folder now.
        std::mem::forget(own);
        folder
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// The parent of this process's folders. A shell removes it when this process ends for whatever reason, because
/// statics are never dropped.
struct ProcessFolder {
    path: PathBuf,
    _shell: Child,
}

impl ProcessFolder {
    fn new(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).expect("the folder can be created");
        // Other children may still write when stdin closes. They die with this process.
        let script = r#"cat >/dev/null; sleep 1; rm -rf "$0""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(&path).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        let _shell = shell.spawn().expect("there is a shell");
        Self { path, _shell }
    }

    fn subfolder(&self, prefix: &str) -> TempFolder {
        let path = self.path.join(crate::unique(prefix));
        std::fs::create_dir(&path).expect("the folder can be created");
        TempFolder(path)
    }
}
