//! Commands as they are sent (TPM 2.0 Library Part 3, "Command/Response Structure").

use crate::wire::push_sized;

/// TPM_ST_NO_SESSIONS and TPM_ST_SESSIONS (Part 2, "TPM_ST").
pub(super) const ST_NO_SESSIONS: u16 = 0x8001;
pub(super) const ST_SESSIONS: u16 = 0x8002;
/// Tag, size, command code.
const HEADER: usize = 10;
/// TPM_RS_PW (Part 2, "TPM_RH"): authorization by password.
const RS_PASSWORD: u32 = 0x4000_0009;

/// Command codes (Part 2, "TPM_CC").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Code {
    EvictControl = 0x120,
    CreatePrimary = 0x131,
    PcrEvent = 0x13c,
    ActivateCredential = 0x147,
    NvRead = 0x14e,
    PolicySecret = 0x151,
    Create = 0x153,
    Load = 0x157,
    Quote = 0x158,
    FlushContext = 0x165,
    NvReadPublic = 0x169,
    ReadPublic = 0x173,
    StartAuthSession = 0x176,
    GetCapability = 0x17a,
    PcrRead = 0x17e,
    PcrExtend = 0x182,
}

impl Code {
    /// Whether the answer begins with a handle.
    fn answers_with_handle(self) -> bool {
        matches!(self, Self::CreatePrimary | Self::Load | Self::StartAuthSession)
    }
}

/// A command, put together front to back: handles, authorizations, parameters.
#[derive(Debug)]
pub(super) struct Command {
    code: Code,
    handles: Vec<u8>,
    authorizations: Vec<u8>,
    parameters: Vec<u8>,
}

impl Command {
    pub(super) fn new(code: Code) -> Self {
        Self { code, handles: Vec::new(), authorizations: Vec::new(), parameters: Vec::new() }
    }

    pub(super) fn handle(mut self, handle: u32) -> Self {
        self.handles.extend(handle.to_be_bytes());
        self
    }

    /// A handle that the empty password authorizes.
    pub(super) fn handle_by_password(self, handle: u32) -> Self {
        self.handle(handle).authorized_by(RS_PASSWORD)
    }

    /// A handle that a policy session authorizes. The session ends with the command if that
    /// succeeds, since `continueSession` is clear.
    pub(super) fn handle_by_session(self, handle: u32, session: u32) -> Self {
        self.handle(handle).authorized_by(session)
    }

    /// TPMS_AUTH_COMMAND with empty nonce, attributes and password (Part 2, "TPMS_AUTH_COMMAND").
    /// A policy session without key has no HMAC either.
    fn authorized_by(mut self, session: u32) -> Self {
        self.authorizations.extend(session.to_be_bytes());
        self.authorizations.extend([0; 5]);
        self
    }

    pub(super) fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    pub(super) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// A TPM2B.
    pub(super) fn sized(mut self, bytes: &[u8]) -> Self {
        push_sized(&mut self.parameters, bytes);
        self
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.parameters.extend(bytes);
        self
    }

    pub(super) fn answers_with_handle(&self) -> bool {
        self.code.answers_with_handle()
    }

    /// The bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = self.handles.clone();
        let mut tag = ST_NO_SESSIONS;
        if !self.authorizations.is_empty() {
            tag = ST_SESSIONS;
            body.extend(size(self.authorizations.len()).to_be_bytes());
            body.extend(&self.authorizations);
        }
        body.extend(&self.parameters);
        let mut bytes = tag.to_be_bytes().to_vec();
        bytes.extend(size(HEADER + body.len()).to_be_bytes());
        bytes.extend((self.code as u32).to_be_bytes());
        bytes.extend(body);
        bytes
    }
}

/// Commands have a few hundred bytes.
fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_handles_authorizations_and_parameters_in_this_order() {
        let command = Command::new(Code::PolicySecret)
            .handle_by_password(0x4000_000b)
            .handle(0x0300_0000)
            .sized(b"ab")
            .u32(7);
        assert_eq!(
            hex::encode(command.encode()),
            "80020000002700000151\
             4000000b03000000\
             00000009400000090000000000\
             00026162\
             00000007"
        );
    }

    #[test]
    fn without_authorization_there_is_no_area_for_it() {
        let command = Command::new(Code::FlushContext).u32(0x8000_0000);
        assert_eq!(hex::encode(command.encode()), "80010000000e0000016580000000");
    }
}
