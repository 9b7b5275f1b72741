//! Answers as received, bounded and checked.

use zeroize::Zeroizing;

use super::code::ResponseCode;
use super::command::{ST_NO_SESSIONS, ST_SESSIONS};
use crate::wire::{WireError, WireReader};

/// Largest answer that is read; what TPMs announce as TPM_PT_MAX_RESPONSE_SIZE is 4096 at most.
pub(super) const MAX_ANSWER: usize = 4096;
/// Tag, size, response code (TPM 2.0 Library Part 3, "Command/Response Structure").
pub(super) const HEADER: usize = 10;
/// Offset of the size.
const SIZE: usize = 2;

/// The answer of a TPM is inconsistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The answer ends early, or a field has an impossible value.
    #[error("the answer is malformed")]
    Malformed(#[from] WireError),
    /// The answer states a size other than its own.
    #[error("the answer states a length of {said} bytes, but has {length}")]
    Size {
        /// Size that the answer states.
        said: u32,
        /// Size that the answer has.
        length: usize,
    },
    /// The tag is not that of an answer.
    #[error("the answer has the unexpected tag {0:#06x}")]
    Tag(u16),
}

/// A successful answer: the handle, if the command returns one, and the parameters, which may be
/// secret.
pub(super) struct Answer {
    bytes: Zeroizing<Vec<u8>>,
    handle: Option<u32>,
    parameters: std::ops::Range<usize>,
}

impl Answer {
    /// Reads an answer; the outer error is that of the structure, the inner that of the TPM.
    pub(super) fn read(
        bytes: Zeroizing<Vec<u8>>,
        with_handle: bool,
    ) -> Result<Result<Self, ResponseCode>, AnswerError> {
        let mut reader = WireReader::new(&bytes);
        let tag = reader.u16()?;
        let said = reader.u32()?;
        if usize::try_from(said) != Ok(bytes.len()) {
            return Err(AnswerError::Size { said, length: bytes.len() });
        }
        let code = reader.u32()?;
        if code != 0 {
            return Ok(Err(ResponseCode::new(code)));
        }
        let handle = with_handle.then(|| reader.u32()).transpose()?;
        let parameters = match tag {
            ST_NO_SESSIONS => reader.offset()..bytes.len(),
            ST_SESSIONS => sized_range(&mut reader)?,
            found => return Err(AnswerError::Tag(found)),
        };
        Ok(Ok(Self { bytes, handle, parameters }))
    }

    /// The handle; zero, which no object has, after a command that returns none.
    pub(super) fn handle(&self) -> u32 {
        self.handle.unwrap_or_default()
    }

    /// A reader of the parameters.
    pub(super) fn parameters(&self) -> WireReader<'_> {
        WireReader::new(self.bytes.get(self.parameters.clone()).unwrap_or_default())
    }
}

/// The size that an answer says it has, once its header is there.
pub(super) fn announced(header: &[u8; HEADER]) -> usize {
    let mut reader = WireReader::new(header);
    let size = reader.take(SIZE).and_then(|_| reader.u32());
    size.map_or(0, |size| usize::try_from(size).unwrap_or(usize::MAX))
}

/// Parameters after their size, since authorizations follow them.
fn sized_range(reader: &mut WireReader<'_>) -> Result<std::ops::Range<usize>, WireError> {
    let offset = reader.offset();
    let size = reader.u32()?;
    let wanted =
        usize::try_from(size).map_err(|_| WireError::Value { offset, value: size.into() })?;
    let start = reader.offset();
    reader.take(wanted)?;
    Ok(start..reader.offset())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(hex::decode(hex).unwrap())
    }

    #[test]
    fn handles_parameters_and_sessions_are_told_apart() {
        let answer = bytes("800200000015000000008000000100000002abcdee");
        let answer = Answer::read(answer, true).unwrap().unwrap();
        assert_eq!(answer.handle(), 0x8000_0001);
        assert_eq!(answer.parameters().take(2), Ok(&[0xab, 0xcd][..]));
        assert!(answer.parameters().take(3).is_err());
    }

    #[test]
    fn a_code_is_the_answer_of_the_tpm_and_not_a_malformed_one() {
        let code = Answer::read(bytes("80010000000a00000921"), true).unwrap().err();
        assert_eq!(code, Some(ResponseCode::new(0x921)));
    }

    #[test]
    fn sizes_that_lie_and_unknown_tags_are_refused() {
        let error = |hex| Answer::read(bytes(hex), false).err();
        let said = |said, length| Some(AnswerError::Size { said, length });
        assert_eq!(error("80010000000b00000000"), said(11, 10));
        assert_eq!(error("8001ffffffff00000000"), said(u32::MAX, 10));
        assert_eq!(error("00c40000000a00000000"), Some(AnswerError::Tag(0xc4)));
        for cut in ["", "8001", "80020000000e00000000ffffffff"] {
            assert!(matches!(error(cut), Some(AnswerError::Malformed(_))), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_nothing_panics(mut bytes: Vec<u8>, with_handle: bool, honest: bool) {
            if honest && bytes.len() >= HEADER {
                let size = u32::try_from(bytes.len()).unwrap().to_be_bytes();
                bytes[2..6].copy_from_slice(&size);
                bytes[6..10].fill(0);
            }
            if let Ok(Ok(answer)) = Answer::read(Zeroizing::new(bytes), with_handle) {
                let _ = answer.parameters().take(1);
            }
        }
    }
}
