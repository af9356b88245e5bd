//! [`View`]: a folder that is only looked at. Nothing in it is opened for writing.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::disk::{Disk, DiskFile, Folder, RealFile};

/// A folder of the file system, of which nothing is changed.
#[derive(Clone, Debug)]
pub(crate) struct View(Folder);

impl View {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(Folder::new(path))
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for View {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(File::open(self.0.path(name))?)))
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn DiskFile>> {
        refused()
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        refused()
    }

    fn sync_folder(&self) -> io::Result<()> {
        refused()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::TempFolder;

    #[test]
    fn nothing_can_be_changed_through_a_view() {
        let folder = TempFolder::new();
        std::fs::write(folder.path().join("it"), "as it was").unwrap();
        let view = View::new(folder.path());
        assert_eq!(view.list().unwrap(), ["it"]);
        let file = view.open("it").unwrap();
        let mut text = [0; 9];
        assert_eq!(file.read_at(0, &mut text).unwrap(), 9);
        assert!(file.write_at(0, b"another").is_err());
        assert!(view.create("other").is_err());
        assert!(view.rename("it", "other").is_err());
        assert!(view.remove("it").is_err());
        assert_eq!(std::fs::read(folder.path().join("it")).unwrap(), text);
    }
}
