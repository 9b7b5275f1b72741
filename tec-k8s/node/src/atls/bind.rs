//! Evidence over the connection itself, so that it cannot be relayed.
//!
//! After the handshake the server sends one frame and, if the client accepts it, the client sends
//! one as well: the total length in four bytes, most significant first; the length of the type's identifier
//! in one byte, and the identifier in the encoding of X.690, section 8.19; the document. Its user data is
//! SHA-256(`tec-atls-bind/1` ‖ 0 ‖ role ‖ exporter ‖ key hash), its nonce is the exporter (RFC 8446, section
//! 7.5). A side that attests nothing sends the total length 0.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ParsedCertificate};
use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsStream;

use super::challenge::key_hash;
use super::inner::Inner;
use super::signatures::ByProvider;
use super::{AtlsError, AttestedPeer, MAX_DOCUMENT, Nonce, Variant, issue};

/// The protocol that begins with the exchange and continues with HTTP/2.
const BOUND: &[u8] = b"tec-atls-bind/1";
/// Plain HTTP/2 (RFC 9113, section 3.1), which older peers speak.
const H2: &[u8] = b"h2";
/// Label of the exporter (RFC 8446, section 7.5).
const EXPORTER: &[u8] = b"EXPORTER-tec-atls-bind";
/// Maximum size of a frame after its length: identifiers of types have fewer than 32 bytes.
const MAX_FRAME: usize = MAX_DOCUMENT + 32;

/// Whether evidence over the connection itself is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Peers without support are refused.
    Required,
    /// Peers without support prove themselves with a document in their certificate. Whoever steals the
    /// certificate's key can relay the document.
    WherePeerCan,
}

/// Protocols for a connection whose sides send evidence over it.
pub(super) fn bound() -> Vec<Vec<u8>> {
    vec![BOUND.to_vec()]
}

/// Protocols for documents in certificates.
pub(super) fn unbound() -> Vec<Vec<u8>> {
    vec![H2.to_vec()]
}

/// Whether the client can send evidence over the connection.
pub(super) fn is_offered(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|mut offered| offered.any(|one| one == BOUND))
}

/// Whether both sides agreed on it.
pub(super) fn is_agreed<IO>(stream: &TlsStream<IO>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(BOUND)
}

#[derive(Clone, Copy)]
enum Role {
    Client,
    Server,
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::Client => b'c',
            Self::Server => b's',
        }
    }
}

/// Properties that only this connection has.
struct Channel {
    role: Role,
    exporter: [u8; 32],
    /// The key of the peer's certificate; the peer proved to have it.
    peer: Option<Sha256Digest>,
}

impl Channel {
    fn of<IO>(stream: &TlsStream<IO>) -> Result<Self, AtlsError> {
        let (role, exporter) = match stream {
            TlsStream::Client(stream) => {
                let connection = stream.get_ref().1;
                let out = connection.export_keying_material([0; 32], EXPORTER, None);
                (Role::Client, out)
            }
            TlsStream::Server(stream) => {
                let connection = stream.get_ref().1;
                let out = connection.export_keying_material([0; 32], EXPORTER, None);
                (Role::Server, out)
            }
        };
        let certificates = stream.get_ref().1.peer_certificates();
        Ok(Self {
            role,
            exporter: exporter.map_err(AtlsError::Setup)?,
            peer: certificates
                .and_then(<[_]>::first)
                .map(hash_of)
                .transpose()
                .map_err(AtlsError::Setup)?,
        })
    }

    fn user_data(&self, role: Role, key_hash: &Sha256Digest) -> [u8; 32] {
        Sha256::new()
            .chain_update(BOUND)
            .chain_update([0, role.byte()])
            .chain_update(self.exporter)
            .chain_update(key_hash.as_bytes())
            .finalize()
            .into()
    }

    fn nonce(&self) -> Nonce {
        Nonce::new(self.exporter)
    }
}

fn hash_of(certificate: &CertificateDer<'_>) -> Result<Sha256Digest, rustls::Error> {
    ParsedCertificate::try_from(certificate).map(|one| key_hash(&one.subject_public_key_info()))
}

/// Exchanges and verifies evidence. A client sends no evidence to a server that it has not accepted.
pub(super) async fn exchange<IO>(
    inner: &Arc<Inner>,
    stream: &mut TlsStream<IO>,
) -> Result<Option<AttestedPeer>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if !is_agreed(stream) {
        return Err(AtlsError::Unbound);
    }
    let channel = Channel::of(stream)?;
    match channel.role {
        Role::Server => {
            // Anyone can request it: the number is bounded.
            let permit = inner.issuing.try_acquire().map_err(|_| AtlsError::Busy)?;
            let ours = evidence(inner, &channel).await?;
            drop(permit);
            send(stream, &ours).await?;
            hear(inner, &channel, stream).await
        }
        Role::Client => {
            let peer = hear(inner, &channel, stream).await?;
            let ours = evidence(inner, &channel).await?;
            send(stream, &ours).await?;
            Ok(peer)
        }
    }
}

/// Our frame without its length.
async fn evidence(inner: &Arc<Inner>, channel: &Channel) -> Result<Vec<u8>, AtlsError> {
    let Some(issuer) = inner.issuer.clone() else {
        return Ok(Vec::new());
    };
    let user_data = channel.user_data(channel.role, &inner.key.key_hash);
    let (nonce, variant) = (channel.nonce(), issuer.variant());
    let making = move || issue::issue(&*issuer, &user_data, &nonce).map_err(AtlsError::Issue);
    let document = inner.in_turn(making).await?;
    let identifier = variant.object_identifier();
    let length = u8::try_from(identifier.as_bytes().len()).unwrap_or(u8::MAX);
    Ok([&[length], identifier.as_bytes(), &document].concat())
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, frame: &[u8]) -> Result<(), AtlsError> {
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let bytes = [&length.to_be_bytes(), frame].concat();
    let failed = AtlsError::Exchange;
    writer.write_all(&bytes).await.map_err(failed)?;
    writer.flush().await.map_err(failed)
}

async fn receive<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Vec<u8>, AtlsError> {
    let length = reader.read_u32().await.map_err(AtlsError::Exchange)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(AtlsError::ExchangeSize(length));
    }
    let mut frame = vec![0; length];
    let read = reader.read_exact(&mut frame).await;
    read.map_err(AtlsError::Exchange)?;
    Ok(frame)
}

/// The peer, once its frame is accepted; `None` if it need not be verified.
async fn hear<R: AsyncRead + Unpin>(
    inner: &Inner,
    channel: &Channel,
    reader: &mut R,
) -> Result<Option<AttestedPeer>, AtlsError> {
    let frame = receive(reader).await?;
    if inner.validators.is_empty() {
        return Ok(None);
    }
    judge(inner, channel, &frame).map(Some)
}

fn judge(inner: &Inner, channel: &Channel, frame: &[u8]) -> Result<AttestedPeer, AtlsError> {
    let key_hash = channel.peer.ok_or(AtlsError::NoCertificate)?;
    let (identifier, document) = parts(frame).ok_or(AtlsError::NoEvidence)?;
    let validator = inner
        .validators
        .iter()
        .find(|one| one.variant().object_identifier().as_bytes() == identifier)
        .ok_or_else(|| AtlsError::OtherVariant { found: Variant::dotted(identifier) })?;
    let validated = validator
        .validate(document, &channel.nonce(), &ByProvider(&inner.provider))
        .map_err(AtlsError::Document)?;
    if validated.user_data != channel.user_data(channel.role.other(), &key_hash) {
        return Err(AtlsError::Relayed);
    }
    Ok(AttestedPeer { variant: validator.variant(), key_hash, validated, bound: true })
}

/// Identifier and document.
fn parts(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = frame.split_first()?;
    rest.split_at_checked(usize::from(*length))
}
