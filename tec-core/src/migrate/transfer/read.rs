//! Reading a transfer: nothing in a part is trusted before its seal is opened.

use std::fmt;
use std::io::Read;

use hpke::aead::AeadCtxR;
use hpke::{Deserializable as _, OpModeR};
use zeroize::Zeroizing;

use super::key::{Aead, Kdf, Kem};
use super::manifest::{INFO, additional_data};
use super::{Identity, Manifest, Part, SignerKey, TransferError, part};

/// Maximum length of a manifest line; ours are about 700 bytes.
const MAX_LINE: usize = 16 << 10;
/// Maximum size of a part; ours are a few hundred kilobytes.
const MAX_PART: usize = 64 << 20;

/// Reads a transfer.
pub struct TransferReader<R> {
    from: R,
    manifest: Manifest,
    line: Vec<u8>,
    open: AeadCtxR<Aead, Kdf, Kem>,
    parts: u64,
    ended: bool,
}

impl<R> fmt::Debug for TransferReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferReader")
            .field("manifest", &self.manifest)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl<R: Read> TransferReader<R> {
    /// Checks the manifest of a transfer that `signer` created for `identity`.
    ///
    /// # Errors
    /// The file is not a transfer, comes from another signer, or is for another recipient.
    pub fn open(
        mut from: R,
        identity: &Identity,
        signer: SignerKey,
    ) -> Result<Self, TransferError> {
        let line = read_line(&mut from, "the manifest")?;
        let manifest = Manifest::parse(&line)?;
        let signature = read_line(&mut from, "the signature")?;
        let mut bytes = [0; 64];
        hex::decode_to_slice(&signature, &mut bytes)
            .map_err(|_| TransferError::altered("the signature"))?;
        if manifest.signer != signer {
            let what = "signed by an anchor other than the given one";
            return Err(TransferError::Foreign(what));
        }
        if !signer.verifies(&line, &bytes) {
            return Err(TransferError::altered("the manifest"));
        }
        if manifest.recipient != identity.recipient() {
            let what = "sealed for a different identity";
            return Err(TransferError::Foreign(what));
        }
        let open = setup(identity, &manifest)?;
        Ok(Self { from, manifest, line, open, parts: 0, ended: false })
    }

    /// The signed manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The next part; `None` after the last one, when the whole file has been read and opened.
    pub fn part(&mut self) -> Result<Option<Part>, TransferError> {
        if self.ended {
            return Ok(None);
        }
        let number = self.parts;
        let sealed = self.sealed(number)?;
        self.parts += 1;
        // Both kinds are tried, since only the seal tells which one it is. HPKE counts a part only
        // when it opens.
        let plain = additional_data(&self.line, false);
        if let Ok(bytes) = self.open.open(&sealed, &plain) {
            let bytes = Zeroizing::new(bytes);
            return part::decode(&bytes, number).map(Some);
        }
        let last = additional_data(&self.line, true);
        let opened = self.open.open(&sealed, &last);
        opened.map_err(|_| TransferError::altered(format!("part {number}")))?;
        self.ended = true;
        self.nothing_follows()?;
        Ok(None)
    }

    fn sealed(&mut self, number: u64) -> Result<Vec<u8>, TransferError> {
        let mut length = [0; 4];
        let read = self.from.read_exact(&mut length);
        read.map_err(TransferError::reading(format!("part {number}")))?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_PART {
            return Err(TransferError::altered(format!("the length of part {number}")));
        }
        // Reads only as much as there is, so that a false length costs nothing.
        let mut sealed = Vec::new();
        let limit = u64::try_from(length).unwrap_or(u64::MAX);
        let read = self.from.by_ref().take(limit).read_to_end(&mut sealed);
        read.map_err(TransferError::reading(format!("part {number}")))?;
        if sealed.len() < length {
            return Err(TransferError::Truncated(format!("part {number}")));
        }
        Ok(sealed)
    }

    fn nothing_follows(&mut self) -> Result<(), TransferError> {
        let mut byte = [0];
        match self.from.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => Err(TransferError::altered("the end")),
            Err(source) => Err(TransferError::reading("the end")(source)),
        }
    }
}

fn setup(
    identity: &Identity,
    manifest: &Manifest,
) -> Result<AeadCtxR<Aead, Kdf, Kem>, TransferError> {
    let broken = || TransferError::malformed("the manifest holds no encapsulated key");
    let key = hex::decode(&manifest.key).map_err(|_| broken())?;
    let key = <Kem as hpke::Kem>::EncappedKey::from_bytes(&key).map_err(|_| broken())?;
    hpke::setup_receiver::<Aead, Kdf, Kem>(&OpModeR::Base, &identity.key(), &key, INFO)
        .map_err(|_| broken())
}

/// Reads a line of at most [`MAX_LINE`] bytes, without its terminator.
fn read_line(from: &mut impl Read, what: &'static str) -> Result<Vec<u8>, TransferError> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE {
        let read = from.read_exact(&mut byte);
        read.map_err(TransferError::reading(what))?;
        if byte == *b"\n" {
            return Ok(line);
        }
        line.extend(byte);
    }
    Err(TransferError::malformed(format!("{what} has no end")))
}
