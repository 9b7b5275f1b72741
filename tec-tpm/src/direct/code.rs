//! Response codes, as people look them up.

use std::fmt;

/// The response codes of a TPM (TPM 2.0 Library Part 2, "TPM_RC").
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResponseCode(u32);

/// RC_FMT1: the code names a handle, a session or a parameter.
const FORMAT_ONE: u32 = 0x080;
/// Bits of the error's number in a code of format one.
const NUMBER: u32 = 0x03f;
/// RC_P: it is a parameter.
const PARAMETER: u32 = 0x040;
/// RC_S: it is a session.
const SESSION: u32 = 0x800;

/// TPM_RC_TESTING, _YIELDED and _RETRY: send the same command again later.
const AGAIN: [u32; 3] = [0x90a, 0x908, 0x922];
/// TPM_RC_LOCKOUT.
const LOCKOUT: u32 = 0x921;

/// Codes of format zero, and warnings, that a node may encounter.
const PLAIN: [(u32, &str); 12] = [
    (0x100, "TPM_RC_INITIALIZE"),
    (0x101, "TPM_RC_FAILURE"),
    (0x120, "TPM_RC_DISABLED"),
    (0x143, "TPM_RC_COMMAND_CODE"),
    (0x14c, "TPM_RC_NV_DEFINED"),
    (0x902, "TPM_RC_OBJECT_MEMORY"),
    (0x903, "TPM_RC_SESSION_MEMORY"),
    (0x905, "TPM_RC_SESSION_HANDLES"),
    (0x907, "TPM_RC_LOCALITY"),
    (LOCKOUT, "TPM_RC_LOCKOUT"),
    (0x922, "TPM_RC_RETRY"),
    (0x923, "TPM_RC_NV_UNAVAILABLE"),
];

/// Codes of format one, by their number.
const NUMBERED: [(u32, &str); 12] = [
    (0x04, "TPM_RC_VALUE"),
    (0x05, "TPM_RC_HIERARCHY"),
    (0x0b, "TPM_RC_HANDLE"),
    (0x0e, "TPM_RC_AUTH_FAIL"),
    (0x12, "TPM_RC_SCHEME"),
    (0x15, "TPM_RC_SIZE"),
    (0x1b, "TPM_RC_KEY"),
    (0x1d, "TPM_RC_POLICY_FAIL"),
    (0x1f, "TPM_RC_INTEGRITY"),
    (0x22, "TPM_RC_BAD_AUTH"),
    (0x26, "TPM_RC_CURVE"),
    (0x2f, "TPM_RC_AUTH_UNAVAILABLE"),
];

impl ResponseCode {
    /// From the field of a response.
    pub const fn new(code: u32) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// Whether the TPM protects itself against guessed passwords.
    pub fn is_lockout(self) -> bool {
        self.0 == LOCKOUT
    }

    /// Whether the TPM asks for the same command again.
    pub(super) fn means_again(self) -> bool {
        AGAIN.contains(&self.0)
    }

    fn name(self) -> Option<&'static str> {
        let (table, code) =
            if self.0 & FORMAT_ONE == 0 { (&PLAIN, self.0) } else { (&NUMBERED, self.0 & NUMBER) };
        let found = table.iter().find(|(number, _)| *number == code);
        found.map(|(_, name)| *name)
    }
}

impl fmt::Display for ResponseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05x}", self.0)?;
        if let Some(name) = self.name() {
            write!(f, " ({name}")?;
            if self.0 & FORMAT_ONE != 0 {
                let which = self.0 >> 8;
                match (self.0 & PARAMETER != 0, self.0 & SESSION != 0) {
                    (true, _) => write!(f, ", parameter {}", which & 0xf)?,
                    (false, true) => write!(f, ", session {}", which & 0x7)?,
                    (false, false) => write!(f, ", handle {}", which & 0x7)?,
                }
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ResponseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseCode({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_the_error_and_what_it_is_about() {
        for (code, text) in [
            (0x921, "0x921 (TPM_RC_LOCKOUT)"),
            (0x14c, "0x14c (TPM_RC_NV_DEFINED)"),
            (0x18b, "0x18b (TPM_RC_HANDLE, handle 1)"),
            (0x9a2, "0x9a2 (TPM_RC_BAD_AUTH, session 1)"),
            (0x2df, "0x2df (TPM_RC_INTEGRITY, parameter 2)"),
            (0x150, "0x150"),
        ] {
            assert_eq!(ResponseCode::new(code).to_string(), text);
        }
        assert!(ResponseCode::new(0x921).is_lockout());
        assert!(ResponseCode::new(0x922).means_again());
    }
}
