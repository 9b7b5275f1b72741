//! TPM2_PCR_Event, which libtss2's wrapper does not have.

use tec_core::pcr::PcrIndex;

use super::{
    AlgorithmIdentifier, AuthSession, CapabilityData, CapabilityType, Context, Digest,
    DigestValues, HashingAlgorithm, PcrHandle, TpmError, TssError, WrapperErrorKind, failed,
};
use crate::event_log::Bank;

/// Extends a register of every bank by the bank's own digest of `data`.
pub(super) fn pcr_event(
    context: &mut Context,
    index: PcrIndex,
    data: &[u8],
) -> Result<(), TpmError> {
    let operation = failed("measure an event");
    let handle = PcrHandle::try_from(u32::from(u8::from(index))).map_err(&operation)?;
    let (banks, _) = context
        .execute_without_session(|context| {
            context.get_capability(CapabilityType::AssignedPcr, 0, 1)
        })
        .map_err(&operation)?;
    let mut values = DigestValues::new();
    if let CapabilityData::AssignedPcr(banks) = banks {
        for bank in banks.get_selections().iter().filter(|one| !one.is_empty()) {
            let algorithm = bank.hashing_algorithm();
            let digest = bank_digest(algorithm, data).map_err(&operation)?;
            values.set(algorithm, digest);
        }
    }
    context
        .execute_with_session(Some(AuthSession::Password), |context| {
            context.pcr_extend(handle, values)
        })
        .map_err(&operation)
}

/// A bank of an unknown algorithm must not be left unchanged silently: it is an error.
fn bank_digest(algorithm: HashingAlgorithm, data: &[u8]) -> Result<Digest, TssError> {
    let bank = Bank::from_algorithm_id(AlgorithmIdentifier::from(algorithm).into());
    let unsupported = TssError::WrapperError(WrapperErrorKind::UnsupportedParam);
    let bytes = bank.ok_or(unsupported)?.hash(data);
    Digest::try_from(bytes)
}
