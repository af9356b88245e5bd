//! [`Chroot`]: conversion between the caller's paths, which are relative to the session's chroot, and the absolute
//! paths on the wire.

use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::wire::Path;

#[derive(Clone, Debug, Default)]
pub(super) struct Chroot(
    /// `None` for the root.
    Option<Box<str>>,
);

impl Chroot {
    pub(super) fn new(path: &ZnodePath) -> Self {
        Self((!path.is_root()).then(|| path.as_str().into()))
    }

    pub(super) fn absolute<'a>(&self, path: &'a ZnodePath) -> Path<'a> {
        match &self.0 {
            None => path.as_str().into(),
            Some(chroot) if path.is_root() => chroot.to_string().into(),
            Some(chroot) => format!("{chroot}{path}").into(),
        }
    }

    /// Returns the path relative to the chroot. `None` for a path outside of the chroot.
    pub(super) fn relative<'a>(&self, path: &'a str) -> Option<&'a str> {
        let Some(chroot) = &self.0 else {
            return Some(path);
        };
        match path.strip_prefix(&**chroot)? {
            "" => Some("/"),
            rest => rest.starts_with('/').then_some(rest),
        }
    }

    /// Parses a path from the server.
    ///
    /// # Errors
    /// [`Error::Protocol`]. Never [`Error::InvalidPath`], which would mean that no request was sent.
    pub(super) fn parse(&self, path: &str) -> Result<ZnodePath> {
        let relative = self.relative(path).and_then(|path| path.parse().ok());
        relative.ok_or_else(|| {
            Error::Protocol(format!(
                "unexpected path \"{path}\" in a reply",
                path = path.escape_debug()
            ))
        })
    }
}
