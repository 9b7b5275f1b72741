//! Writing a transfer, part by part.

use std::fmt;
use std::io::Write;

use hpke::aead::AeadCtxS;
use hpke::{OpModeS, Serializable as _};

use super::key::{Aead, Kdf, Kem};
use super::manifest::{INFO, additional_data};
use super::{Document, Manifest, Recipient, Signer, TransferError, part};
use crate::migrate::{Authority, TrustUnit};
use crate::port::{Entropy, EntropyRng};
use crate::time::Timestamp;

/// Writes a transfer.
pub struct TransferWriter<W> {
    to: W,
    line: Vec<u8>,
    seal: AeadCtxS<Aead, Kdf, Kem>,
}

impl<W> fmt::Debug for TransferWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferWriter").finish_non_exhaustive()
    }
}

impl<W: Write> TransferWriter<W> {
    /// Begins a transfer of what a source holds: its record, the time, and the head of its audit log, if it has one.
    ///
    /// # Errors
    /// The recipient is not a valid key, or the file cannot be written.
    pub fn begin(
        mut to: W,
        made: (&Authority, Timestamp, Option<&str>),
        (signer, recipient): (&Signer, Recipient),
        entropy: &dyn Entropy,
    ) -> Result<Self, TransferError> {
        let foreign = |_| TransferError::malformed("the recipient is not an X25519 key");
        let public = recipient.key().map_err(foreign)?;
        let mut rng = EntropyRng::new(entropy);
        let mode = OpModeS::Base;
        let setup = hpke::setup_sender_with_rng::<Aead, Kdf, Kem>(&mode, &public, INFO, &mut rng);
        let (key, seal) =
            setup.map_err(|_| TransferError::malformed("the recipient is not an X25519 key"))?;
        let public = signer.public();
        let manifest = Manifest::new(made, recipient, public, &key.to_bytes());
        let line = manifest.line()?;
        let signature = hex::encode(signer.sign(&line));
        let head = [line.as_slice(), b"\n", signature.as_bytes(), b"\n"].concat();
        to.write_all(&head).map_err(TransferError::writing)?;
        Ok(Self { to, line, seal })
    }

    /// Writes one part.
    pub fn part(
        &mut self,
        units: &[TrustUnit],
        documents: &[Document],
    ) -> Result<(), TransferError> {
        let bytes = part::encode(units, documents)?;
        self.sealed(&bytes, false)
    }

    fn sealed(&mut self, bytes: &[u8], last: bool) -> Result<(), TransferError> {
        let data = additional_data(&self.line, last);
        let sealed = self.seal.seal(bytes, &data);
        let sealed = sealed.map_err(|_| TransferError::malformed("too many parts"))?;
        let length = u32::try_from(sealed.len())
            .map_err(|_| TransferError::malformed("a part is too long"))?;
        let length = length.to_be_bytes();
        self.to.write_all(&length).map_err(TransferError::writing)?;
        self.to.write_all(&sealed).map_err(TransferError::writing)
    }

    /// Writes the last part, and returns the file.
    pub fn finish(mut self) -> Result<W, TransferError> {
        self.sealed(&[], true)?;
        self.to.flush().map_err(TransferError::writing)?;
        Ok(self.to)
    }
}
