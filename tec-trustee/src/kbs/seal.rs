//! What replicas pass to each other through the client: sealed, and bound to its place.
//!
//! ```text
//! secret of all replicas ─HKDF-SHA256 (salt, label of the place)─► key of this one blob
//! blob = base64url( salt ‖ AES-256-GCM( deflate(JSON), padded ) ‖ tag )
//! ```
//!
//! # Security
//! Every blob has a key of its own, from a random salt of 256 bits, so the number of blobs that strangers
//! cause does not matter (NIST SP 800-38D, section 8.3, bounds it to 2^32 per key). Nothing is parsed before
//! it is authenticated. The content is compressed and padded, so only its length in steps of 256 bytes is
//! visible.

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use hkdf::Hkdf;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use tec_core::port::Entropy;
use tec_core::secret::SecretArray;

const SALT: usize = 32;
const TAG: usize = 16;
/// The key of a blob is used once, so its nonce may be fixed.
const NONCE: [u8; 12] = [0; 12];
/// Longest value of a cookie. Every client allows 4096 bytes for name, value and attributes (RFC 6265,
/// section 6.1).
pub(super) const MAX_COOKIE: usize = 3900;
/// The length of sealed content is a multiple of this.
const STEP: usize = 256;
/// Content up to this length is not compressed: that would cost more than all the rest.
const SHORT: usize = 512;
/// Sealed content is seldom longer than this multiple of its compressed length.
const USUAL_RATIO: usize = 4;
/// Longest content before compression.
const MAX_CONTENT: usize = 64 * 1024;
/// Longest blob that is examined, in characters.
const MAX_TEXT: usize = 64 * 1024;

/// Where a blob may appear; a blob for one place is void in any other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// In the session cookie.
    Cookie,
    /// In an attestation token.
    Token,
}

impl Place {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Cookie => b"tec kbs session cookie v1",
            Self::Token => b"tec kbs session token v1",
        }
    }

    /// Bytes that it may take, with salt, tag and padding, before more work goes into shortening it.
    fn room(self) -> usize {
        match self {
            Self::Cookie => MAX_COOKIE / 4 * 3,
            Self::Token => MAX_CONTENT,
        }
    }
}

/// The secret of all replicas, and two compressors and a decompressor: if each blob allocated its own, their
/// tables of up to 300 KiB would be most of its cost.
#[derive(derive_more::Debug)]
#[debug("Seal {{ .. }}")]
pub(super) struct Seal {
    secret: SecretArray<32>,
    fast: Mutex<Compress>,
    thorough: Mutex<Compress>,
    unpacker: Mutex<Decompress>,
}

impl Seal {
    pub(super) fn new(secret: SecretArray<32>) -> Self {
        // Without the zlib header.
        let compressor = |level| Mutex::new(Compress::new(level, false));
        let [fast, thorough] = [Compression::fast(), Compression::default()].map(compressor);
        Self { secret, fast, thorough, unpacker: Mutex::new(Decompress::new(false)) }
    }

    /// Seals content for a place, bound to `bound`; `None` if the content is too long.
    pub(super) fn seal(
        &self,
        place: Place,
        bound: &[u8],
        content: &impl Serialize,
        entropy: &dyn Entropy,
    ) -> Option<String> {
        let mut salt = [0; SALT];
        entropy.fill(&mut salt);
        let packed = self.pack(content, place.room())?;
        let payload = Payload { msg: &packed, aad: bound };
        let sealed = self.cipher(place, &salt)?.encrypt(&Nonce::from(NONCE), payload).ok()?;
        let mut blob = salt.to_vec();
        blob.extend(sealed);
        Some(URL_SAFE_NO_PAD.encode(blob))
    }

    /// The content of a blob that a holder of the secret sealed for this place and `bound`.
    pub(super) fn open<T: DeserializeOwned>(
        &self,
        place: Place,
        bound: &[u8],
        text: &str,
    ) -> Option<T> {
        let text = Some(text).filter(|text| text.len() <= MAX_TEXT)?;
        let blob = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (salt, sealed) = blob.split_first_chunk::<SALT>()?;
        let payload = Payload { msg: sealed, aad: bound };
        let packed = self.cipher(place, salt)?.decrypt(&Nonce::from(NONCE), payload).ok()?;
        match as_stored(&packed) {
            Some(json) => serde_json::from_slice(json).ok(),
            None => serde_json::from_slice(&self.unpacked(&packed)?).ok(),
        }
    }

    fn cipher(&self, place: Place, salt: &[u8; SALT]) -> Option<Aes256Gcm> {
        let key = self.key(place, salt)?;
        Some(Aes256Gcm::new(key.expose("seal or open a session").into()))
    }

    fn key(&self, place: Place, salt: &[u8; SALT]) -> Option<SecretArray<32>> {
        let mut key = zeroize::Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(Some(salt), self.secret.expose("derive the key of a sealed session"))
            .expand(place.label(), key.as_mut_slice())
            .ok()?;
        Some(SecretArray::new(*key))
    }

    fn pack(&self, content: &impl Serialize, room: usize) -> Option<Vec<u8>> {
        let json = serde_json::to_vec(content).ok().filter(|json| json.len() <= MAX_CONTENT)?;
        if json.len() <= SHORT {
            return stored(&json);
        }
        let packed = compressed(&self.fast, &json)?;
        if packed.len() + SALT + TAG <= room {
            return Some(packed);
        }
        compressed(&self.thorough, &json)
    }

    /// The compressed stream marks its own end, so the padding is ignored.
    fn unpacked(&self, packed: &[u8]) -> Option<Vec<u8>> {
        let mut json = Vec::with_capacity(MAX_CONTENT.min(packed.len() * USUAL_RATIO));
        let mut unpacker = self.unpacker.lock();
        unpacker.reset(false);
        loop {
            let read = usize::try_from(unpacker.total_in()).ok()?;
            let rest = packed.get(read..)?;
            match unpacker.decompress_vec(rest, &mut json, FlushDecompress::None).ok()? {
                Status::StreamEnd => return Some(json),
                // Only room was missing: all that was sealed is here.
                Status::Ok | Status::BufError if json.len() == json.capacity() => {
                    json.reserve(MAX_CONTENT.checked_sub(json.len()).filter(|room| *room > 0)?);
                }
                Status::Ok | Status::BufError => return None,
            }
        }
    }
}

/// First byte of a stream of one uncompressed block (RFC 1951, 3.2.3 and 3.2.4).
const LAST_STORED: u8 = 1;

/// The content of a [`stored`] stream.
fn as_stored(packed: &[u8]) -> Option<&[u8]> {
    let ([LAST_STORED, low, high, _, _], rest) = packed.split_first_chunk::<5>()? else {
        return None;
    };
    rest.get(..usize::from(u16::from_le_bytes([*low, *high])))
}

/// A stream of one uncompressed block (RFC 1951, 3.2.4).
fn stored(json: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(json.len()).ok()?;
    let mut packed = vec![LAST_STORED];
    packed.extend(length.to_le_bytes());
    packed.extend((!length).to_le_bytes());
    packed.extend(json);
    Some(padded(packed))
}

fn compressed(compressor: &Mutex<Compress>, json: &[u8]) -> Option<Vec<u8>> {
    // Incompressible content is stored in blocks of 64 KiB with 5 bytes each (RFC 1951, 3.2.4).
    let mut packed = Vec::with_capacity(json.len() + STEP);
    let mut compressor = compressor.lock();
    compressor.reset();
    let status = compressor.compress_vec(json, &mut packed, FlushCompress::Finish).ok()?;
    (status == Status::StreamEnd).then(|| padded(packed))
}

fn padded(mut packed: Vec<u8>) -> Vec<u8> {
    packed.resize(packed.len().next_multiple_of(STEP), 0);
    packed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use tec_core::testing::SeededEntropy;

    use super::*;

    fn seal(fill: u8) -> Seal {
        Seal::new(SecretArray::new([fill; 32]))
    }

    fn sealed(place: Place, content: &str) -> String {
        seal(1).seal(place, b"bound", &content, &SeededEntropy::new(2)).unwrap()
    }

    fn open(place: Place, bound: &[u8], text: &str) -> Option<String> {
        seal(1).open(place, bound, text)
    }

    /// Computed with OpenSSL: `openssl kdf -keylen 32 -kdfopt digest:SHA256 -kdfopt
    /// hexkey:0101… -kdfopt hexsalt:0202… -kdfopt "info:tec kbs session cookie v1" HKDF`.
    #[test]
    fn keys_are_those_of_the_vector_and_of_one_place() {
        let key = |place| {
            let key = seal(1).key(place, &[2; SALT]).unwrap();
            hex::encode(key.expose("test"))
        };
        assert_eq!(
            key(Place::Cookie),
            "2ea6890c23e2a5c5182368f8253fd0710fd8b8d0241ec9314845995c013b1935"
        );
        assert_eq!(
            key(Place::Token),
            "072f59a9c335eee7884cf7d1427dd9acdbeea85c08c62c9268453ebae1f0f36d"
        );
    }

    #[test]
    fn only_the_same_secret_place_and_binding_open() {
        let text = sealed(Place::Cookie, "content");
        assert_eq!(open(Place::Cookie, b"bound", &text).as_deref(), Some("content"));
        assert_eq!(open(Place::Token, b"bound", &text), None);
        assert_eq!(open(Place::Cookie, b"other", &text), None);
        assert_eq!(seal(2).open::<String>(Place::Cookie, b"bound", &text), None);
    }

    #[test]
    fn nothing_of_the_content_shows_but_a_rough_length() {
        let text = |content: &str| sealed(Place::Cookie, content);
        assert_eq!(text("a").len(), text("an image name, and the machine's id").len());
        assert!(text(&"x7".repeat(99)).len() < 600);
        let other = seal(1).seal(Place::Cookie, b"bound", &"a", &SeededEntropy::new(3)).unwrap();
        let same = text("a").bytes().zip(other.bytes()).filter(|(one, two)| one == two).count();
        assert!(same < other.len() / 8, "{same}");
    }

    #[test]
    fn one_seal_packs_one_content_after_another_and_what_cannot_be_compressed() {
        let seal = seal(1);
        let mut noise = vec![0; 20_000];
        SeededEntropy::new(5).fill(&mut noise);
        for content in [noise.clone(), vec![7; 20_000], Vec::new(), vec![7; 300], noise] {
            let content = base64::engine::general_purpose::STANDARD.encode(content);
            let text = seal.seal(Place::Token, b"", &content, &SeededEntropy::new(2)).unwrap();
            assert_eq!(seal.open(Place::Token, b"", &text), Some(content));
        }
    }

    #[test]
    fn content_beyond_the_bound_is_not_sealed() {
        let long = "a".repeat(MAX_CONTENT);
        assert!(seal(1).seal(Place::Cookie, b"", &long, &SeededEntropy::new(2)).is_none());
        assert!(open(Place::Cookie, b"bound", &"A".repeat(MAX_TEXT + 1)).is_none());
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_changed_does_not_open(at in any::<proptest::sample::Index>(), flip in 1..=255_u8) {
            let mut blob = URL_SAFE_NO_PAD.decode(sealed(Place::Cookie, "content")).unwrap();
            let at = at.index(blob.len());
            blob[at] ^= flip;
            assert_eq!(open(Place::Cookie, b"bound", &URL_SAFE_NO_PAD.encode(&blob)), None);
            blob[at] ^= flip;
            blob.truncate(at);
            assert_eq!(open(Place::Cookie, b"bound", &URL_SAFE_NO_PAD.encode(&blob)), None);
        }

        #[test]
        fn whatever_a_stranger_writes_does_not_open(text in ".{0,200}") {
            assert_eq!(open(Place::Cookie, b"bound", &text), None);
        }
    }
}
