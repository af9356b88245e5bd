//! [`Pem`]: text of certificates or a key, not yet looked at.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::TlsError;

/// Certificates or a key, as PEM, and what errors call it. Its text is shown nowhere.
#[derive(Clone)]
pub(crate) struct Pem {
    pub(crate) what: Arc<str>,
    pub(crate) text: Arc<[u8]>,
}

impl Pem {
    /// `role` is what it is for.
    pub(crate) fn given(role: &str, text: impl Into<Vec<u8>>) -> Self {
        Self {
            what: role.into(),
            text: text.into().into(),
        }
    }

    pub(crate) fn file(role: &str, path: &Path) -> Result<Self, TlsError> {
        let what = format!("{role} {}", path.display());
        match std::fs::read(path) {
            Ok(text) => Ok(Self::given(&what, text)),
            Err(error) => Err(TlsError::Unreadable {
                what,
                reason: error.to_string(),
            }),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", self.what)
    }
}
