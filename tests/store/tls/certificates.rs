//! Certificates made for a test.

use lockkeeper_store::{ClientTls, TlsOptions};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

#[derive(Clone)]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
    serial: SerialNumber,
}

#[derive(Clone, Copy)]
pub(crate) enum When {
    Now,
    Before,
    Later,
}

/// The address in the test servers' certificates.
pub(crate) const ADDRESS: &str = "127.0.0.1";

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    pub(crate) fn server(&self, host: &str, when: When) -> Signed {
        let names = [host.to_owned()];
        self.sign(names, "server", when, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Signs a certificate for the client `CN=name,O=Example`.
    pub(crate) fn client(&self, name: &str, when: When) -> Signed {
        self.sign([], name, when, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        hosts: impl Into<Vec<String>>,
        name: &str,
        when: When,
        usage: ExtendedKeyUsagePurpose,
    ) -> Signed {
        let mut params = CertificateParams::new(hosts).unwrap();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "Example");
        subject.push(DnType::CommonName, name);
        params.distinguished_name = subject;
        self.sign_with(params, when, usage)
    }

    /// Signs a client certificate without a subject, with these names.
    pub(crate) fn client_without_subject(&self, names: Vec<SanType>) -> Signed {
        self.client_with(DistinguishedName::new(), names)
    }

    /// Signs a client certificate with this organization and these additional names.
    pub(crate) fn client_of(&self, organization: &str, names: Vec<SanType>) -> Signed {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, organization);
        self.client_with(subject, names)
    }

    fn client_with(&self, subject: DistinguishedName, names: Vec<SanType>) -> Signed {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.subject_alt_names = names;
        self.sign_with(params, When::Now, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign_with(
        &self,
        mut params: CertificateParams,
        when: When,
        usage: ExtendedKeyUsagePurpose,
    ) -> Signed {
        params.extended_key_usages = vec![usage];
        let (from, until) = match when {
            When::Now => (2000, 3000),
            When::Before => (2000, 2001),
            When::Later => (2999, 3000),
        };
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let serial = SerialNumber::from_slice(&key.public_key_raw()[1..9]);
        params.serial_number = Some(serial.clone());
        Signed {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
            serial,
        }
    }

    /// The authority's certificate, with a list that revokes one.
    pub(crate) fn revoking(&self, signed: &Signed) -> String {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2000, 1, 1),
            next_update: date_time_ymd(3000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: signed.serial.clone(),
                revocation_time: date_time_ymd(2001, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        format!("{}{}", self.pem, list.pem().unwrap())
    }

    /// Returns client options that trust this authority.
    pub(crate) fn believed(&self) -> ClientTls {
        ClientTls::new().ca_pem(self.pem.as_str())
    }
}

impl Signed {
    pub(crate) fn options(&self) -> TlsOptions {
        TlsOptions::from_pem(self.certificate.as_str(), self.key.as_str()).unwrap()
    }

    pub(crate) fn shown(&self, tls: ClientTls) -> ClientTls {
        tls.client_certificate(self.certificate.as_str(), self.key.as_str())
    }
}
