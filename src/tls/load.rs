//! Converts PEM to rustls types, with errors that name the file and the reason.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use super::certificate::{Certificate, list_end};
use super::{Pem, TlsError};

/// We do not install the provider as the process default, because that choice belongs to the program.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[derive(Clone)]
pub(crate) struct Authorities {
    pub(crate) roots: RootCertStore,
    pub(crate) revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Authorities {
    pub(crate) fn none() -> Self {
        Self {
            roots: RootCertStore::empty(),
            revoked: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, pem: &Pem) -> Result<(), TlsError> {
        for certificate in certificates(pem)? {
            self.roots
                .add(certificate)
                .map_err(|error| unusable(pem, &error))?;
        }
        for list in CertificateRevocationListDer::pem_slice_iter(&pem.text) {
            self.revoked
                .push(list.map_err(|error| bad_pem(pem, &error))?);
        }
        Ok(())
    }

    /// Returns the earliest expiry of a revocation list, or `None` if no list expires.
    pub(crate) fn lists_end(&self) -> Option<SystemTime> {
        self.revoked.iter().filter_map(|list| list_end(list)).min()
    }
}

/// Loads a certificate chain with its key. Logs a warning if the certificate is not valid now.
pub(crate) fn key_pair(certificate: &Pem, key: &Pem) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(certificate)?;
    warn_of_time(certificate, &chain[0]);
    let private = private_key(key)?;
    // Load the key separately first, because an error from `from_der` does not say whether the certificate or the key
    // is bad.
    provider()
        .key_provider
        .load_private_key(private.clone_key())
        .map_err(|error| unusable(key, &error))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::KeyMismatch {
            certificate: certificate.what.to_string(),
            key: key.what.to_string(),
        },
        error => unusable(certificate, &error),
    })
}

pub(crate) fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    Certificate::read(certificate)?.subject()
}

pub(crate) fn uri(certificate: &CertificateDer<'_>) -> Option<String> {
    Certificate::read(certificate)?.uri()
}

pub(crate) fn alternative_name(certificate: &CertificateDer<'_>) -> Option<String> {
    Certificate::read(certificate)?.alternative_name()
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem.text)
        .collect::<Result<_, _>>()
        .map_err(|error| bad_pem(pem, &error))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            what: pem.what.to_string(),
        });
    }
    Ok(certificates)
}

fn private_key(pem: &Pem) -> Result<PrivateKeyDer<'static>, TlsError> {
    let what = || pem.what.to_string();
    PrivateKeyDer::from_pem_slice(&pem.text).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted(&pem.text) => {
            TlsError::EncryptedKey { what: what() }
        }
        pem::Error::NoItemsFound => TlsError::NoKey { what: what() },
        error => bad_pem(pem, &error),
    })
}

fn is_encrypted(text: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";
    text.windows(BEGIN.len()).any(|window| window == BEGIN)
}

fn warn_of_time(pem: &Pem, certificate: &CertificateDer<'_>) {
    let validity = Certificate::read(certificate).and_then(|certificate| certificate.validity());
    let Some((from, until)) = validity else {
        return;
    };
    let now = SystemTime::now();
    let what = &*pem.what;
    if now > until {
        tracing::warn!(certificate = what, "certificate expired");
    } else if now < from {
        tracing::warn!(certificate = what, "certificate not valid yet");
    }
}

fn bad_pem(pem: &Pem, error: &pem::Error) -> TlsError {
    TlsError::BadPem {
        what: pem.what.to_string(),
        reason: error.to_string(),
    }
}

fn unusable(pem: &Pem, error: &rustls::Error) -> TlsError {
    TlsError::Unusable {
        what: pem.what.to_string(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
        KeyIdMethod, KeyPair, SerialNumber, date_time_ymd,
    };

    use super::*;

    #[test]
    fn lists_end_with_the_first_that_was_to_be_renewed() {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let mut text = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let mut end = None;
        for year in [2030, 2001, 2060] {
            let list = CertificateRevocationListParams {
                this_update: date_time_ymd(2000, 1, 1),
                next_update: date_time_ymd(year, 1, 1),
                crl_number: SerialNumber::from(1),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            text += &list.signed_by(&issuer).unwrap().pem().unwrap();
            let mut authorities = Authorities::none();
            assert_eq!(authorities.lists_end(), None);
            authorities
                .add(&Pem::given("lists", text.as_str()))
                .unwrap();
            end = authorities.lists_end();
        }
        let seconds = end.map(|end| end.duration_since(std::time::UNIX_EPOCH).unwrap());
        assert_eq!(seconds.map(|it| it.as_secs()), Some(978_307_200));
    }
}
