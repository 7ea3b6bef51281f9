//! Shared by all TLS clients and servers: PEM parsing, the limit on a peer's certificates, and a verifier that accepts every
//! certificate (Go's `InsecureSkipVerify`).
//!
//! Path building tries each certificate at each step, so its time is exponential in their number: a longer chain is refused
//! before any certificate is parsed.

use std::sync::Arc;

use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use futures_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use futures_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::server::ParsedCertificate;
use futures_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::limits::INTERMEDIATES_MAX;
use crate::x509::validity;

/// The certificates in a PEM text; `None` when there is none, or an invalid one.
pub fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

/// Checks the number of intermediates that a peer sends.
///
/// # Errors
/// There are more than [`INTERMEDIATES_MAX`].
pub(crate) fn bounded(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    let shown = intermediates.len();
    if shown > INTERMEDIATES_MAX {
        return Err(Error::General(format!(
            "the peer shows {shown} certificates beside its own, of at most {INTERMEDIATES_MAX}"
        )));
    }
    Ok(())
}

/// A server verifier with these authorities: rustls' own, after [`bounded`].
///
/// # Errors
/// There are no authorities.
pub(crate) fn server_verifier(roots: RootCertStore) -> Result<Arc<dyn ServerCertVerifier>, String> {
    server_verifier_by_way_of(roots, Vec::new())
}

/// The same, also for a server whose own intermediates lead to none of the authorities while `others` do, of which at most
/// [`INTERMEDIATES_MAX`] count.
///
/// # Errors
/// There are no authorities.
pub(crate) fn server_verifier_by_way_of(
    roots: RootCertStore,
    mut others: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    others.truncate(INTERMEDIATES_MAX);
    let (provider, roots) = (Arc::new(ring::default_provider()), Arc::new(roots));
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider).build();
    Ok(Arc::new(Bounded { inner: verifier.map_err(|error| error.to_string())?, roots, others }))
}

#[derive(Debug)]
struct Bounded {
    inner: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    others: Vec<CertificateDer<'static>>,
}

impl Bounded {
    /// Whether a certificate has the subject and the key of an authority: what that has signed is believed, so it is too.
    fn is_authority(&self, certificate: &CertificateDer<'_>) -> bool {
        let mut one = RootCertStore::empty();
        one.add(certificate.clone()).is_ok() && one.roots.iter().all(|one| self.roots.roots.contains(one))
    }
}

/// A server's certificate that is one of the authorities (`openssl req -x509` makes them so): its name and its time count, as in Go
/// (`Certificate.Verify`). rustls refuses an authority's as a server's own.
fn verify_authority(
    own: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let validity = validity(own).ok_or(CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
    if now < validity.from.0 {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.until.0 {
        return Err(CertificateError::Expired.into());
    }
    verify_server_name(&ParsedCertificate::try_from(own)?, name)?;
    Ok(ServerCertVerified::assertion())
}

impl ServerCertVerifier for Bounded {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        bounded(intermediates)?;
        match self.inner.verify_server_cert(own, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) if !self.others.is_empty() => {
                self.inner.verify_server_cert(own, &self.others, name, ocsp, now)
            }
            Err(Error::InvalidCertificate(CertificateError::Other(_))) if self.is_authority(own) => {
                verify_authority(own, name, now)
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Accepts every certificate. The server's signature is not verified either, because it proves nothing then, and certificates
/// of small devices are often malformed.
#[derive(Debug)]
pub(crate) struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        use SignatureScheme as Scheme;
        vec![
            Scheme::ECDSA_NISTP256_SHA256,
            Scheme::ECDSA_NISTP384_SHA384,
            Scheme::ECDSA_NISTP521_SHA512,
            Scheme::ED25519,
            Scheme::RSA_PSS_SHA256,
            Scheme::RSA_PSS_SHA384,
            Scheme::RSA_PSS_SHA512,
            Scheme::RSA_PKCS1_SHA256,
            Scheme::RSA_PKCS1_SHA384,
            Scheme::RSA_PKCS1_SHA512,
        ]
    }
}

#[cfg(test)]
mod tests;
