//! [`Output`]: where the lines of the audit log go.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::values::AuditPlace;

/// The file of an audit log, or stdout.
pub(in crate::serve) struct Output {
    to: Box<dyn Write + Send>,
    /// `None` for stdout, which cannot be opened anew.
    path: Option<PathBuf>,
    /// True if the last line is incomplete: the disk was full in its middle.
    is_torn: bool,
}

impl Output {
    /// # Errors
    /// A sentence for the operator.
    pub(super) fn open(place: &AuditPlace) -> Result<Self, String> {
        let (to, path): (Box<dyn Write + Send>, _) = match place {
            // Not the standard library's stdout, which keeps a part of a line that it could not write.
            AuditPlace::Stdout => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                let told = |error| format!("--audit-log -: {error}");
                (Box::new(File::from(stdout.map_err(told)?)), None)
            }
            AuditPlace::File(path) => {
                let file = open(path).map_err(|error| {
                    format!("--audit-log: {} cannot be opened: {error}", path.display())
                })?;
                // Absolute, so that it is found again wherever the process is then.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                (Box::new(file), Some(path))
            }
        };
        Ok(Self {
            to,
            path,
            is_torn: false,
        })
    }

    /// Opens the file of this path, which may be another one by now. Returns false for stdout.
    ///
    /// # Errors
    /// The system's; the former file is used on.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        self.to = Box::new(open(path)?);
        self.is_torn = false;
        Ok(true)
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The system's. A part of the line may be there: the next one begins on a line of its own.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        if self.is_torn {
            self.to.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = &rest[count..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
    }
}

/// Opens a file to be appended to. A new one is for this user alone; the mode of an old one is its owner's affair.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}
