//! Verification of the peer's certificate, called by rustls during a handshake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, PeerIncompatible, SignatureScheme,
};

use super::certificate::{PeerCertificate, PeerCertificateError};
use super::inner::Inner;
use super::signatures::ByProvider;
use super::{AtlsError, AttestedPeer, Nonce};

/// Accepts certificates: any, if the key proves itself over the connection, or those whose document
/// is for the nonce of one handshake.
#[derive(derive_more::Debug)]
#[debug("PeerVerifier {{ .. }}")]
pub(super) struct PeerVerifier {
    provider: Arc<CryptoProvider>,
    judge: Option<Judge>,
    hints: Vec<DistinguishedName>,
}

impl PeerVerifier {
    /// Does not examine the certificate; the peer proves that it has the key.
    pub(super) fn any(provider: &Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(Self { provider: Arc::clone(provider), judge: None, hints: Vec::new() })
    }

    /// The document must be for this nonce, which a server sends among its hints. The document may be missing
    /// until it is `demanded`.
    pub(super) fn judging(inner: Arc<Inner>, nonce: Nonce, demanded: bool) -> Arc<Self> {
        Arc::new(Self {
            provider: Arc::clone(&inner.provider),
            judge: Some(Judge {
                inner,
                nonce,
                demanded: AtomicBool::new(demanded),
                outcome: Mutex::new(None),
            }),
            hints: vec![nonce.to_authority()],
        })
    }

    /// From now on, a certificate without a document is refused.
    pub(super) fn demand_document(&self) {
        if let Some(judge) = &self.judge {
            judge.demanded.store(true, Ordering::SeqCst);
        }
    }

    /// The peer, once the handshake has finished; or an error that is better than the one from TLS.
    pub(super) fn take(&self) -> Result<Option<AttestedPeer>, AtlsError> {
        let Some(judge) = &self.judge else {
            return Ok(None);
        };
        let mut outcome = judge.outcome.lock();
        outcome.take().transpose()
    }

    fn look_at(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match &self.judge {
            Some(judge) => judge.look_at(certificate),
            None => ParsedCertificate::try_from(certificate).map(|_| ()),
        }
    }
}

/// Verifies the certificate of one peer. Stores results that rustls cannot return.
struct Judge {
    inner: Arc<Inner>,
    nonce: Nonce,
    demanded: AtomicBool,
    outcome: Mutex<Option<Result<AttestedPeer, AtlsError>>>,
}

impl Judge {
    fn look_at(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let outcome = self.attested(certificate);
        let passed = match &outcome {
            Ok(_) => true,
            // It may be sent over the connection: whether the sides agreed on that is not known
            // yet.
            Err(AtlsError::Certificate(PeerCertificateError::NoDocument(found))) => {
                found.is_empty() && !self.demanded.load(Ordering::SeqCst)
            }
            Err(_) => false,
        };
        let outcome = outcome.transpose();
        *self.outcome.lock() = outcome;
        if passed {
            Ok(())
        } else {
            let refused = CertificateError::ApplicationVerificationFailure;
            Err(rustls::Error::InvalidCertificate(refused))
        }
    }

    /// `None` if the peer need not be attested.
    fn attested(
        &self,
        certificate: &CertificateDer<'_>,
    ) -> Result<Option<AttestedPeer>, AtlsError> {
        let inner = &self.inner;
        let certificate = PeerCertificate::check(certificate, inner.clock.now(), &inner.provider)
            .map_err(AtlsError::Certificate)?;
        if inner.validators.is_empty() {
            return Ok(None);
        }
        let (variant, document) =
            certificate.document(&inner.accepted()).map_err(AtlsError::Certificate)?;
        // The variant is an accepted one, so there is a validator.
        let validator = inner.validator(variant).ok_or(AtlsError::NoCertificate)?;
        let validated = validator
            .validate(document, &self.nonce, &ByProvider(&inner.provider))
            .map_err(AtlsError::Document)?;
        if &validated.user_data != certificate.key_hash().as_bytes() {
            return Err(AtlsError::OtherKey);
        }
        Ok(Some(AttestedPeer {
            variant,
            key_hash: certificate.key_hash(),
            validated,
            bound: false,
        }))
    }
}

/// How signatures of servers and clients are verified. Endpoints only speak TLS 1.3.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let why = PeerIncompatible::ServerDoesNotSupportTls12Or13;
            Err(rustls::Error::PeerIncompatible(why))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    };
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.look_at(end_entity).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.look_at(end_entity).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
