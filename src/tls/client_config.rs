//! Converts client options to rustls.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;

use super::{Authorities, ClientTls, TlsError, key_pair, provider};

/// Returns the host of `host:port`, without the brackets of an IPv6 address.
fn host_name(host: &str) -> &str {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name)
}

/// Returns the name that the certificate of each host must have.
pub(crate) fn server_names(
    tls: &ClientTls,
    hosts: &[String],
) -> Result<Vec<ServerName<'static>>, TlsError> {
    let name = |host: &String| {
        let name = tls.server_name.as_deref().unwrap_or(host_name(host));
        ServerName::try_from(name.to_owned()).map_err(|_| TlsError::BadHost {
            host: name.to_owned(),
        })
    };
    hosts.iter().map(name).collect()
}

pub(crate) fn client_config(tls: &ClientTls) -> Result<Arc<ClientConfig>, TlsError> {
    let mut authorities = Authorities::none();
    for pem in &tls.authorities {
        authorities.add(pem)?;
    }
    if authorities.roots.is_empty() {
        return Err(TlsError::NoAuthority);
    }
    let unusable = |reason: String| TlsError::Unusable {
        what: "the certificate authority".into(),
        reason,
    };
    let verifier =
        WebPkiServerVerifier::builder_with_provider(authorities.roots.into(), provider())
            .with_crls(authorities.revoked)
            .build()
            .map_err(|error| unusable(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?
        .with_webpki_verifier(verifier);
    Ok(Arc::new(match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let pair = key_pair(certificate, key)?;
            let pair = rustls::sign::SingleCertAndKey::from(pair);
            builder.with_client_cert_resolver(Arc::new(pair))
        }
    }))
}
