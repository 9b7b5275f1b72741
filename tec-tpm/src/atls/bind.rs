//! Evidence over the connection itself, so that a document cannot be relayed.
//!
//! After the handshake each end sends one frame: four bytes of length, most significant first, and
//! a document whose user data are SHA-256(`tec-atls-bind/1` ‖ 0 ‖ role ‖ exporter ‖ key hash) and
//! whose nonce is the exporter (RFC 8446, section 7.5). An end that attests nothing sends length 0.

use std::sync::Arc;

use sha2::Digest as _;
use sha2::Sha256;
use tokio::io::AsyncRead;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWrite;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsStream;

use super::AtlsError;
use super::AttestedPeer;
use super::MAX_DOCUMENT;
use super::Nonce;
use super::endpoint::Inner;
use super::issue;

/// The protocol that begins with the exchange and goes on with HTTP/2.
const BOUND: &[u8] = b"tec-atls-bind/1";
/// HTTP/2 alone (RFC 9113, section 3.1), which older peers speak.
const H2: &[u8] = b"h2";
/// Label of the exporter (RFC 8446, section 7.5).
const EXPORTER: &[u8] = b"EXPORTER-tec-atls-bind";

/// Whether evidence over the connection itself is demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "demanded or not")]
pub enum ChannelBinding {
    /// Peers that cannot are refused.
    Required,
    /// Peers that cannot are taken, with what they proved in the handshake.
    WherePeerCan,
}

impl ChannelBinding {
    /// Protocols in order of preference.
    pub(super) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Required => vec![BOUND.to_vec()],
            Self::WherePeerCan => vec![BOUND.to_vec(), H2.to_vec()],
        }
    }
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

/// What only this connection has.
struct Channel {
    role: Role,
    exporter: [u8; 32],
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
        let exporter = exporter.map_err(AtlsError::Setup)?;
        Ok(Self { role, exporter })
    }

    fn user_data(&self, role: Role, key_hash: &[u8; 32]) -> [u8; 32] {
        Sha256::new()
            .chain_update(BOUND)
            .chain_update([0, role.byte()])
            .chain_update(self.exporter)
            .chain_update(key_hash)
            .finalize()
            .into()
    }

    fn nonce(&self) -> Nonce {
        Nonce::new(self.exporter)
    }
}

/// Exchanges and judges evidence, if the peers agreed on that.
pub(super) async fn exchange<IO>(
    inner: &Arc<Inner>,
    stream: &mut TlsStream<IO>,
    peer: Option<AttestedPeer>,
) -> Result<Option<AttestedPeer>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if stream.get_ref().1.alpn_protocol() != Some(BOUND) {
        return match inner.binding {
            ChannelBinding::WherePeerCan => Ok(peer),
            ChannelBinding::Required => Err(AtlsError::Unbound),
        };
    }
    let channel = Channel::of(stream)?;
    let ours = evidence(inner, &channel).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (sent, received) = tokio::join!(send(&mut writer, &ours), receive(&mut reader));
    let (theirs, ()) = (received?, sent?);
    match peer {
        Some(peer) => judge(inner, &channel, peer, &theirs).map(Some),
        None => Ok(None),
    }
}

async fn evidence(inner: &Arc<Inner>, channel: &Channel) -> Result<Vec<u8>, AtlsError> {
    let Some(issuer) = inner.issuer.clone() else {
        return Ok(Vec::new());
    };
    let user_data = channel.user_data(channel.role, inner.key.key_hash.as_bytes());
    let nonce = channel.nonce();
    tokio::task::spawn_blocking(move || issue::issue(&*issuer, &user_data, &nonce))
        .await
        .map_err(|_| AtlsError::Thread)?
        .map_err(AtlsError::Issue)
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, document: &[u8]) -> Result<(), AtlsError> {
    let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
    let frame = [&length.to_be_bytes(), document].concat();
    writer
        .write_all(&frame)
        .await
        .map_err(AtlsError::Exchange)?;
    writer.flush().await.map_err(AtlsError::Exchange)
}

async fn receive<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Vec<u8>, AtlsError> {
    let length = reader.read_u32().await.map_err(AtlsError::Exchange)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_DOCUMENT {
        return Err(AtlsError::ExchangeSize { length });
    }
    let mut document = vec![0; length];
    reader
        .read_exact(&mut document)
        .await
        .map_err(AtlsError::Exchange)?;
    Ok(document)
}

/// The same key as in the handshake must have signed, over this connection.
fn judge(
    inner: &Inner,
    channel: &Channel,
    mut peer: AttestedPeer,
    document: &[u8],
) -> Result<AttestedPeer, AtlsError> {
    let validator = inner.validator(peer.variant).ok_or(AtlsError::Relayed)?;
    let validated = validator
        .validate(document, &channel.nonce())
        .map_err(AtlsError::Binding)?;
    let expected = channel.user_data(channel.role.other(), peer.key_hash.as_bytes());
    if validated.user_data != expected || validated.ak != peer.validated.ak {
        return Err(AtlsError::Relayed);
    }
    peer.bound = true;
    Ok(peer)
}
