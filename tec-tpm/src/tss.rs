//! A real TPM, through libtss2. The only module that uses names from `tss_esapi`.
//!
//! Every call blocks for as long as the TPM takes: milliseconds for a quote, up to half a minute to
//! create an RSA key in a discrete TPM. The node's programs have nothing else to do in the
//! meantime; a server should call from a thread that may block.

mod event;

use std::fmt;
use std::str::FromStr as _;

use parking_lot::Mutex;
use tec_core::ak::{Credential, EkOffer};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrValues};
use tec_core::secret::SecretBytes;
use tss_esapi::abstraction::ak::{create_ak_2, load_ak};
use tss_esapi::abstraction::ek::{create_ek_object_2, retrieve_ek_pubcert};
use tss_esapi::abstraction::{AsymmetricAlgorithmSelection, DefaultKey};
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;
use tss_esapi::constants::{AlgorithmIdentifier, CapabilityType, SessionType};
use tss_esapi::handles::{
    AuthHandle, KeyHandle, ObjectHandle, PcrHandle, PersistentTpmHandle, SessionHandle, TpmHandle,
};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, SignatureSchemeAlgorithm};
use tss_esapi::interface_types::dynamic_handles::Persistent;
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::key_bits::RsaKeyBits;
use tss_esapi::interface_types::resource_handles::Provision;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    CapabilityData, Data, Digest, DigestValues, EncryptedSecret, IdObject, Nonce, PcrSelectSize,
    PcrSelection, PcrSelectionList, PcrSlot, SignatureScheme, SymmetricDefinition,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::traits::Marshall as _;
use tss_esapi::{Context, WrapperErrorKind};

use crate::ak::{AkAlgorithm, AkHandle, AkOrigin, AttestationKey, StoredAk};
use crate::ek::{EkAlgorithm, without_padding};
use crate::evidence::TpmEvidence;
use crate::public::PublicArea;
use crate::tpm::{AnyTpm, stored, values};
pub use crate::tpm::{EventLogSource, TpmAttester, TpmError};
use crate::wire::push_sized;

type TssError = tss_esapi::Error;

/// Forms of the configuration string, for error messages.
const FORMS: &str = "device:<path>, swtpm:host=<host>,port=<port>, mssim:host=<host>,port=<port>, \
                     tabrmd:<options>";

fn failed(operation: &'static str) -> impl Fn(TssError) -> TpmError {
    move |source| match source {
        TssError::Tss2Error(code) if code.kind() == Some(Tss2ResponseCodeKind::Lockout) => {
            TpmError::Lockout(operation)
        }
        source => TpmError::Command { operation, source: Box::new(source) },
    }
}

/// An open TPM. Calls from several threads take turns.
///
/// The passwords of the hierarchies are assumed to be empty, as they are on nodes that boot
/// unattended.
pub struct Tpm {
    context: Mutex<Context>,
    ek: EkAlgorithm,
}

impl fmt::Debug for Tpm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tpm").field("ek", &self.ek).finish_non_exhaustive()
    }
}

impl Tpm {
    /// Opens a TPM by a TCTI configuration: `device:/dev/tpmrm0`, `swtpm:host=…,port=…`,
    /// `mssim:host=…,port=…` or `tabrmd:…`.
    pub fn open(tcti: &str) -> Result<Self, TpmError> {
        let name = parse_tcti(tcti)
            .ok_or_else(|| TpmError::Tcti { tcti: tcti.to_owned(), forms: FORMS })?;
        let context = Context::new(name)
            .map_err(|source| TpmError::Open { tcti: tcti.to_owned(), source: Box::new(source) })?;
        Ok(Self { context: Mutex::new(context), ek: EkAlgorithm::default() })
    }

    /// Uses an endorsement key other than RSA 2048.
    pub fn with_ek(mut self, ek: EkAlgorithm) -> Self {
        self.ek = ek;
        self
    }
}

impl AnyTpm for Tpm {
    fn ensure_ak(&self, handle: AkHandle, algorithm: AkAlgorithm) -> Result<StoredAk, TpmError> {
        let mut context = self.context.lock();
        if let Some(object) = open_persistent(&mut context, handle)? {
            let area = closing(&mut context, object, |context| read_area(context, object.into()))?;
            return stored::stored_ak(handle, algorithm, area, AkOrigin::Found);
        }
        let ek = create_ek(&mut context, self.ek)?;
        flushing(&mut context, ek.into(), |context| create_ak(context, ek, handle, algorithm))?;
        let object = open_persistent(&mut context, handle)?.ok_or(TpmError::NoAk(handle))?;
        let area = closing(&mut context, object, |context| read_area(context, object.into()))?;
        stored::stored_ak(handle, algorithm, area, AkOrigin::Created)
    }

    fn ak_public_area(&self, handle: AkHandle) -> Result<Vec<u8>, TpmError> {
        let mut context = self.context.lock();
        let object = open_persistent(&mut context, handle)?.ok_or(TpmError::NoAk(handle))?;
        closing(&mut context, object, |context| {
            read_ak(context, handle, object).map(|(_, area)| area)
        })
    }

    fn evict_ak(&self, handle: AkHandle) -> Result<bool, TpmError> {
        let mut context = self.context.lock();
        let Some(object) = open_persistent(&mut context, handle)? else {
            return Ok(false);
        };
        if let Err(error) = read_ak(&mut context, handle, object) {
            close(&mut context, object)?;
            return Err(error);
        }
        evict(&mut context, object, handle)?;
        // libtss2 before 3.2.3 keeps what it knows about the object, and would then refuse a new
        // one at this handle. Later versions have already forgotten it, so a failure is fine as
        // well.
        let _ = close(&mut context, object);
        Ok(true)
    }

    fn quote(&self, handle: AkHandle, nonce: &[u8; 32]) -> Result<TpmEvidence, TpmError> {
        let mut context = self.context.lock();
        let object = open_persistent(&mut context, handle)?.ok_or(TpmError::NoAk(handle))?;
        closing(&mut context, object, |context| {
            let (ak, _) = read_ak(context, handle, object)?;
            values::settled(ak.public(), nonce, || quote_once(context, object.into(), &ak, nonce))
        })
    }

    fn read_ek(&self) -> Result<EkOffer, TpmError> {
        let mut context = self.context.lock();
        let ek = create_ek(&mut context, self.ek)?;
        let area = flushing(&mut context, ek.into(), |context| read_area(context, ek))?;
        let public = PublicArea::from_tpm2b(&area).map_err(TpmError::Public)?;
        let certificate = if handle_exists(&mut context, self.ek.certificate_handle())? {
            let bytes = retrieve_ek_pubcert(&mut context, selection_of(self.ek))
                .map_err(failed("read the endorsement key certificate"))?;
            Some(without_padding(&bytes).to_vec())
        } else {
            None
        };
        Ok(EkOffer::new(public.key().clone(), certificate))
    }

    fn activate_credential(
        &self,
        handle: AkHandle,
        credential: &Credential,
    ) -> Result<SecretBytes, TpmError> {
        let (id_object, secret) = stored::challenge(credential)?;
        let mut context = self.context.lock();
        let object = open_persistent(&mut context, handle)?.ok_or(TpmError::NoAk(handle))?;
        closing(&mut context, object, |context| {
            let ek = create_ek(context, self.ek)?;
            flushing(context, ek.into(), |context| {
                let session = endorsement_session(context)?;
                flushing(context, SessionHandle::from(session).into(), |context| {
                    activate(context, object.into(), ek, session, id_object, secret)
                })
            })
        })
    }

    fn pcr_extend(&self, index: PcrIndex, event: &Sha256Digest) -> Result<(), TpmError> {
        let operation = failed("extend a PCR");
        let handle = PcrHandle::try_from(u32::from(u8::from(index))).map_err(&operation)?;
        let digest = Digest::try_from(event.as_bytes().as_slice()).map_err(&operation)?;
        let mut values = DigestValues::new();
        values.set(HashingAlgorithm::Sha256, digest);
        self.context
            .lock()
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.pcr_extend(handle, values)
            })
            .map_err(&operation)
    }

    fn pcr_event(&self, index: PcrIndex, data: &[u8]) -> Result<(), TpmError> {
        event::pcr_event(&mut self.context.lock(), index, data)
    }

    fn pcr_read(&self) -> Result<PcrValues, TpmError> {
        read_pcrs(&mut self.context.lock()).map(PcrValues::new)
    }
}

/// The library replaces unknown options by defaults, and would open a TPM other than the intended
/// one.
fn parse_tcti(tcti: &str) -> Option<TctiNameConf> {
    let (name, options) = tcti.split_once(':')?;
    let known = match name {
        "swtpm" | "mssim" => options
            .split(',')
            .all(|option| option.starts_with("host=") || option.starts_with("port=")),
        "device" => !options.is_empty(),
        "tabrmd" => true,
        _ => false,
    };
    if known { TctiNameConf::from_str(tcti).ok() } else { None }
}

/// Runs `work`, then removes a transient object or session, whatever the result.
fn flushing<T>(
    context: &mut Context,
    object: ObjectHandle,
    work: impl FnOnce(&mut Context) -> Result<T, TpmError>,
) -> Result<T, TpmError> {
    let result = work(context);
    let flushed = context.flush_context(object);
    let value = result?;
    flushed.map_err(failed("remove a temporary object"))?;
    Ok(value)
}

/// Runs `work`, then forgets a persistent object, whatever the result.
fn closing<T>(
    context: &mut Context,
    object: ObjectHandle,
    work: impl FnOnce(&mut Context) -> Result<T, TpmError>,
) -> Result<T, TpmError> {
    let result = work(context);
    let closed = close(context, object);
    let value = result?;
    closed?;
    Ok(value)
}

fn close(context: &mut Context, mut object: ObjectHandle) -> Result<(), TpmError> {
    context.tr_close(&mut object).map_err(failed("close a persistent object"))
}

/// Whether there is an object or index at a handle; a direct access would make an absent one look
/// like any other failure.
fn handle_exists(context: &mut Context, handle: u32) -> Result<bool, TpmError> {
    let (data, _) = context
        .execute_without_session(|context| {
            context.get_capability(CapabilityType::Handles, handle, 1)
        })
        .map_err(failed("list the TPM's handles"))?;
    Ok(match data {
        CapabilityData::Handles(handles) => handles.iter().any(|found| u32::from(*found) == handle),
        _ => false,
    })
}

fn open_persistent(
    context: &mut Context,
    handle: AkHandle,
) -> Result<Option<ObjectHandle>, TpmError> {
    if !handle_exists(context, handle.as_u32())? {
        return Ok(None);
    }
    let operation = failed("open a persistent object");
    let handle = PersistentTpmHandle::new(handle.as_u32()).map_err(&operation)?;
    context
        .execute_without_session(|context| {
            context.tr_from_tpm_public(TpmHandle::Persistent(handle))
        })
        .map(Some)
        .map_err(operation)
}

/// TPM2B_PUBLIC of a loaded object.
fn read_area(context: &mut Context, key: KeyHandle) -> Result<Vec<u8>, TpmError> {
    let operation = failed("read the public area of a key");
    let (public, _, _) =
        context.execute_without_session(|context| context.read_public(key)).map_err(&operation)?;
    let mut area = Vec::new();
    push_sized(&mut area, &public.marshall().map_err(operation)?);
    Ok(area)
}

fn read_ak(
    context: &mut Context,
    handle: AkHandle,
    object: ObjectHandle,
) -> Result<(AttestationKey, Vec<u8>), TpmError> {
    let area = read_area(context, object.into())?;
    Ok((stored::attestation_key(handle, &area)?, area))
}

fn selection_of(algorithm: EkAlgorithm) -> AsymmetricAlgorithmSelection {
    match algorithm {
        EkAlgorithm::Rsa2048 => AsymmetricAlgorithmSelection::Rsa(RsaKeyBits::Rsa2048),
        EkAlgorithm::EccP256 => AsymmetricAlgorithmSelection::Ecc(EccCurve::NistP256),
    }
}

fn create_ek(context: &mut Context, algorithm: EkAlgorithm) -> Result<KeyHandle, TpmError> {
    create_ek_object_2(context, selection_of(algorithm), None::<DefaultKey>)
        .map_err(failed("create the endorsement key"))
}

/// Creates the key as a child of the endorsement key, like `tpm2_createak`, and stores it.
fn create_ak(
    context: &mut Context,
    ek: KeyHandle,
    handle: AkHandle,
    algorithm: AkAlgorithm,
) -> Result<(), TpmError> {
    let (kind, scheme) = match algorithm {
        AkAlgorithm::Rsa2048 => (
            AsymmetricAlgorithmSelection::Rsa(RsaKeyBits::Rsa2048),
            SignatureSchemeAlgorithm::RsaSsa,
        ),
        AkAlgorithm::EccP256 => {
            (AsymmetricAlgorithmSelection::Ecc(EccCurve::NistP256), SignatureSchemeAlgorithm::EcDsa)
        }
    };
    let operation = failed("create the attestation key");
    let hash = HashingAlgorithm::Sha256;
    let made = create_ak_2(context, ek, hash, kind, scheme, None, None::<DefaultKey>)
        .map_err(&operation)?;
    let key = load_ak(context, ek, None, made.out_private, made.out_public).map_err(operation)?;
    flushing(context, key.into(), |context| {
        let kept = evict(context, key.into(), handle)?;
        close(context, kept)
    })
}

/// TPM2_EvictControl: stores a transient object at the handle, or removes the existing one.
fn evict(
    context: &mut Context,
    object: ObjectHandle,
    handle: AkHandle,
) -> Result<ObjectHandle, TpmError> {
    let operation = failed("keep or remove the attestation key");
    let handle = PersistentTpmHandle::new(handle.as_u32()).map_err(&operation)?;
    context
        .execute_with_session(Some(AuthSession::Password), |context| {
            context.evict_control(Provision::Owner, object, Persistent::Persistent(handle))
        })
        .map_err(operation)
}

/// One quote, with the values at that moment.
fn quote_once(
    context: &mut Context,
    key: KeyHandle,
    ak: &AttestationKey,
    nonce: &[u8; 32],
) -> Result<TpmEvidence, TpmError> {
    let operation = failed("quote the PCRs");
    let data = Data::try_from(nonce.as_slice()).map_err(&operation)?;
    let all = PcrIndex::all().map(slot).collect::<Result<Vec<_>, _>>()?;
    let selection = select(&all)?;
    let (attest, signature) = context
        .execute_with_session(Some(AuthSession::Password), |context| {
            context.quote(key, data, SignatureScheme::Null, selection)
        })
        .map_err(&operation)?;
    let values = read_pcrs(context)?;
    Ok(TpmEvidence::new(
        attest.marshall().map_err(&operation)?,
        signature.marshall().map_err(operation)?,
        values.to_vec(),
        ak.public().clone(),
    ))
}

fn slot(index: PcrIndex) -> Result<PcrSlot, TpmError> {
    PcrSlot::try_from(1 << index.as_usize()).map_err(failed("name a PCR"))
}

fn select(slots: &[PcrSlot]) -> Result<PcrSelectionList, TpmError> {
    PcrSelectionList::builder()
        .with_size_of_select(PcrSelectSize::ThreeOctets)
        .with_selection(HashingAlgorithm::Sha256, slots)
        .build()
        .map_err(failed("select PCRs"))
}

fn read_pcrs(context: &mut Context) -> Result<[Sha256Digest; PCR_COUNT], TpmError> {
    values::collect(|missing| read_some(context, missing))
}

/// One TPM2_PCR_Read: the registers that fit into one response.
fn read_some(
    context: &mut Context,
    wanted: &[PcrIndex],
) -> Result<Vec<(usize, Sha256Digest)>, TpmError> {
    let slots = wanted.iter().copied().map(slot).collect::<Result<Vec<_>, _>>()?;
    let selection = select(&slots)?;
    let (_, read, digests) = context
        .execute_without_session(|context| context.pcr_read(selection))
        .map_err(failed("read PCRs"))?;
    let selected = read.get_selections().iter().flat_map(PcrSelection::selected);
    let value = |(slot, digest): (PcrSlot, &Digest)| {
        let digest = <[u8; 32]>::try_from(digest.value()).ok()?;
        let index = u32::from(slot).trailing_zeros() as usize;
        Some((index, Sha256Digest::new(digest)))
    };
    Ok(selected.zip(digests.value()).filter_map(value).collect())
}

/// A session that satisfies the endorsement key's policy: the password of its hierarchy.
fn endorsement_session(context: &mut Context) -> Result<AuthSession, TpmError> {
    let operation = failed("authorize the use of the endorsement key");
    let session = context
        .execute_without_session(|context| {
            context.start_auth_session(
                None,
                None,
                None,
                SessionType::Policy,
                SymmetricDefinition::AES_128_CFB,
                HashingAlgorithm::Sha256,
            )
        })
        .map_err(&operation)?
        .ok_or_else(|| operation(TssError::WrapperError(WrapperErrorKind::WrongValueFromTpm)))?;
    let authorized = PolicySession::try_from(session).and_then(|policy| {
        context.execute_with_session(Some(AuthSession::Password), |context| {
            context.policy_secret(
                policy,
                AuthHandle::Endorsement,
                Nonce::default(),
                Digest::default(),
                Nonce::default(),
                None,
            )
        })
    });
    if let Err(error) = authorized {
        let refused = operation(error);
        context
            .flush_context(SessionHandle::from(session).into())
            .map_err(failed("remove a session"))?;
        return Err(refused);
    }
    Ok(session)
}

fn activate(
    context: &mut Context,
    ak: KeyHandle,
    ek: KeyHandle,
    session: AuthSession,
    id_object: &[u8],
    secret: &[u8],
) -> Result<SecretBytes, TpmError> {
    let refused = |source: TssError| TpmError::ChallengeRefused(Box::new(source));
    let id_object = IdObject::try_from(id_object).map_err(refused)?;
    let secret = EncryptedSecret::try_from(secret).map_err(refused)?;
    let sessions = (Some(AuthSession::Password), Some(session), None);
    let answer = context
        .execute_with_sessions(sessions, |context| {
            context.activate_credential(ak, ek, id_object, secret)
        })
        .map_err(refused)?;
    Ok(SecretBytes::new(answer.value().to_vec()))
}
