//! A real TPM without libtss2: this crate writes the commands and reads the answers.
//!
//! *What it is*: the few commands that a node needs to boot, over the kernel's device or the socket
//! of `swtpm`, for programs that must be a single static file. It creates attestation keys in the
//! same way as `tss::Tpm`: each finds the other's key.
//!
//! *What it is not*: a TPM stack. It has neither encrypted sessions nor passwords.
//!
//! ```text
//!  Tpm ── object, nv, register: procedures
//!    └── Channel ── command: bytes to send; answer: bounds, sizes, response codes
//!          └── Transport ── device:/dev/tpmrm0 | swtpm:host=…,port=…
//! ```

mod answer;
mod capability;
mod channel;
mod code;
mod command;
mod flush;
mod nv;
mod object;
mod register;
mod session;
mod template;
#[cfg(test)]
mod tests;
mod transport;

use parking_lot::Mutex;
use tec_core::ak::{Credential, EkOffer};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::secret::SecretBytes;

pub use self::answer::AnswerError;
use self::channel::Channel;
pub use self::channel::CommandError;
pub use self::code::ResponseCode;
use crate::ak::{AkAlgorithm, AkHandle, AkOrigin, AttestationKey, StoredAk};
use crate::ek::{EkAlgorithm, without_padding};
use crate::evidence::TpmEvidence;
use crate::public::PublicArea;
use crate::tpm::stored::{attestation_key, stored_ak};
use crate::tpm::{AnyTpm, TpmError, stored, values};

/// An open TPM. Calls from several threads take turns.
#[derive(Debug)]
pub struct Tpm {
    channel: Mutex<Channel>,
    ek: EkAlgorithm,
}

impl Tpm {
    /// Opens a TPM from a configuration in the format of libtss2: `device:/dev/tpmrm0` or
    /// `swtpm:host=…,port=…`.
    pub fn open(tcti: &str) -> Result<Self, TpmError> {
        Ok(Self::over(Channel::new(transport::open(tcti)?)))
    }

    /// Uses an endorsement key other than RSA 2048.
    pub fn with_ek(mut self, ek: EkAlgorithm) -> Self {
        self.ek = ek;
        self
    }

    /// Content of a non-volatile index that can be read without a password, by its own
    /// authorization or the owner's. `None` if there is no such index.
    ///
    /// # Errors
    /// [`TpmError`] if the command fails.
    pub fn nv_read(&self, index: u32) -> Result<Option<Vec<u8>>, TpmError> {
        nv::read(&mut self.channel.lock(), index, "read non-volatile storage")
    }

    fn over(channel: Channel) -> Self {
        Self { channel: Mutex::new(channel), ek: EkAlgorithm::default() }
    }
}

impl AnyTpm for Tpm {
    fn ensure_ak(&self, handle: AkHandle, algorithm: AkAlgorithm) -> Result<StoredAk, TpmError> {
        let channel = &mut self.channel.lock();
        if let Some(area) = object::persistent_area(channel, handle.as_u32())? {
            return stored_ak(handle, algorithm, area, AkOrigin::Found);
        }
        object::create_ak(channel, self.ek, handle, algorithm)?;
        let area = object::persistent_area(channel, handle.as_u32())?;
        let area = area.ok_or(TpmError::NoAk(handle))?;
        stored_ak(handle, algorithm, area, AkOrigin::Created)
    }

    fn ak_public_area(&self, handle: AkHandle) -> Result<Vec<u8>, TpmError> {
        read_ak(&mut self.channel.lock(), handle).map(|(_, area)| area)
    }

    fn evict_ak(&self, handle: AkHandle) -> Result<bool, TpmError> {
        let channel = &mut self.channel.lock();
        match read_ak(channel, handle) {
            Ok(_) => object::evict(channel, handle.as_u32(), handle).map(|()| true),
            Err(TpmError::NoAk(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn quote(&self, handle: AkHandle, nonce: &[u8; 32]) -> Result<TpmEvidence, TpmError> {
        let channel = &mut self.channel.lock();
        let (ak, _) = read_ak(channel, handle)?;
        values::settled(ak.public(), nonce, || {
            let (message, signature) = register::quote(channel, handle.as_u32(), nonce)?;
            let values = register::read(channel)?.to_vec();
            let key = ak.public().clone();
            Ok(TpmEvidence::new(message, signature, values, key))
        })
    }

    fn read_ek(&self) -> Result<EkOffer, TpmError> {
        let channel = &mut self.channel.lock();
        let (ek, area) = object::create_ek(channel, self.ek)?;
        flush::flush(channel, ek)?;
        let public = PublicArea::from_tpm2b(&area).map_err(TpmError::Public)?;
        let certificate = nv::read(
            channel,
            self.ek.certificate_handle(),
            "read the endorsement key certificate",
        )?;
        let certificate = certificate.map(|bytes| without_padding(&bytes).to_vec());
        Ok(EkOffer::new(public.key().clone(), certificate))
    }

    fn activate_credential(
        &self,
        handle: AkHandle,
        credential: &Credential,
    ) -> Result<SecretBytes, TpmError> {
        let (id_object, secret) = stored::challenge(credential)?;
        let channel = &mut self.channel.lock();
        if !capability::handle_exists(channel, handle.as_u32())? {
            return Err(TpmError::NoAk(handle));
        }
        let (ek, _) = object::create_ek(channel, self.ek)?;
        object::flushing(channel, ek, |channel| {
            object::activate(channel, handle.as_u32(), ek, id_object, secret)
        })
    }

    fn pcr_extend(&self, index: PcrIndex, event: &Sha256Digest) -> Result<(), TpmError> {
        register::extend(&mut self.channel.lock(), index, event)
    }

    fn pcr_event(&self, index: PcrIndex, data: &[u8]) -> Result<(), TpmError> {
        register::event(&mut self.channel.lock(), index, data)
    }

    fn pcr_read(&self) -> Result<PcrValues, TpmError> {
        register::read(&mut self.channel.lock()).map(PcrValues::new)
    }
}

fn read_ak(channel: &mut Channel, handle: AkHandle) -> Result<(AttestationKey, Vec<u8>), TpmError> {
    let area = object::persistent_area(channel, handle.as_u32())?;
    let area = area.ok_or(TpmError::NoAk(handle))?;
    Ok((attestation_key(handle, &area)?, area))
}
