//! [`Pem`]: PEM text of certificates or a key.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::TlsError;

/// PEM text with a name for error messages. No message shows the text itself.
#[derive(Clone)]
pub(crate) struct Pem {
    pub(crate) what: Arc<str>,
    pub(crate) text: Arc<[u8]>,
}

impl Pem {
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
