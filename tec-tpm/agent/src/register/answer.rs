//! Interprets the replies of registration servers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tec_core::ak::Credential;
use tec_core::code::Code;
use tec_core::id::MachineId;

use super::Reply;

/// The message that the existing operator's server returns for a key that it knows.
const KNOWN_KEY: &str = "Public key already registered";
/// Longest challenge ID to send back: for a 4096-bit RSA key it is about 830 characters.
const MAX_CHALLENGE_ID: usize = 4096;

/// A parsed reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The key is registered, just now or earlier.
    Registered,
    /// An admin must decide.
    Pending,
    /// The TPM must prove the key. Has the ID of the challenge, and the challenge.
    Challenge(String, Credential),
    /// The server does not accept this form of body.
    NotUnderstood(Code),
    /// The server cannot answer now.
    Busy(Code),
    /// The key belongs to this machine.
    Elsewhere(MachineId),
    /// The server refused.
    Refused(Code),
}

#[derive(Default, Deserialize)]
struct Wire {
    #[serde(default)]
    status: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: serde_json::Value,
    /// The machine that a key belongs to.
    uuid: Option<String>,
    challenge: Option<String>,
    id_object: Option<String>,
    encrypted_secret: Option<String>,
}

impl Wire {
    fn code(&self) -> Option<Code> {
        self.code.as_str()?.parse().ok()
    }

    fn credential(&self) -> Option<(String, Credential)> {
        let id = self.challenge.clone()?;
        let id_object = STANDARD.decode(self.id_object.as_ref()?).ok()?;
        let secret = STANDARD.decode(self.encrypted_secret.as_ref()?).ok()?;
        (id.len() <= MAX_CHALLENGE_ID).then(|| (id, Credential::new(id_object, secret)))
    }

    /// 202: wait for an admin, or send a proof.
    fn accepted(&self) -> Answer {
        if self.status != "challenge" {
            return Answer::Pending;
        }
        match self.credential() {
            Some((id, credential)) => Answer::Challenge(id, credential),
            None => Answer::Refused(Code::RegisterEkProof),
        }
    }

    /// 409: the key is known, which is fine, or the machine has a different one.
    fn conflict(&self) -> Answer {
        match self.code() {
            Some(Code::RegisterAkKnown) => Answer::Registered,
            Some(code @ Code::RegisterKeyElsewhere) => {
                let machine = self.uuid.as_ref().and_then(|uuid| uuid.parse().ok());
                machine.map_or(Answer::Refused(code), Answer::Elsewhere)
            }
            Some(code) => Answer::Refused(code),
            None if self.message == KNOWN_KEY => Answer::Registered,
            None => Answer::Refused(Code::RegisterMachineTaken),
        }
    }
}

impl Answer {
    /// Parses a reply. If the body is not JSON, only the status counts.
    pub(super) fn read(reply: &Reply) -> Self {
        let wire: Wire = serde_json::from_slice(&reply.body).unwrap_or_default();
        let code = |otherwise| wire.code().unwrap_or(otherwise);
        match reply.status {
            200 | 201 | 204 => Self::Registered,
            202 => wire.accepted(),
            409 => wire.conflict(),
            400 | 422 => match wire.code() {
                Some(code @ Code::RegisterKeyRefused) => Self::Refused(code),
                other => Self::NotUnderstood(other.unwrap_or(Code::RegisterMalformed)),
            },
            401 => Self::Refused(code(Code::RegisterToken)),
            403 => Self::Refused(code(Code::RegisterEkProof)),
            405 => Self::Refused(code(Code::RegisterMethod)),
            413 => Self::Refused(code(Code::RegisterTooLarge)),
            415 => Self::Refused(code(Code::RegisterContentType)),
            429 => Self::Busy(code(Code::RegisterRate)),
            500..=599 => Self::Busy(code(Code::RegisterUnavailable)),
            // Includes 404 and redirects: keys are not registered here.
            _ => Self::Refused(code(Code::RegisterNotFound)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> Answer {
        Answer::read(&Reply { status, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn a_key_that_is_registered_already_is_fine_however_the_server_says_it() {
        assert_eq!(read(201, r#"{"status":"success"}"#), Answer::Registered);
        let theirs = r#"{"status":"error","message":"Public key already registered"}"#;
        assert_eq!(read(409, theirs), Answer::Registered);
        let ours = r#"{"status":"error","message":"reworded","code":"TEC-R409"}"#;
        assert_eq!(read(409, ours), Answer::Registered);
    }

    #[test]
    fn other_conflicts_are_refusals_with_the_server_s_code() {
        let taken = r#"{"status":"error","message":"x","code":"TEC-R410"}"#;
        assert_eq!(read(409, taken), Answer::Refused(Code::RegisterMachineTaken));
        assert_eq!(read(409, "duplicate"), Answer::Refused(Code::RegisterMachineTaken));
        let lying = r#"{"message":"Public key already registered","code":"TEC-R410"}"#;
        assert_eq!(read(409, lying), Answer::Refused(Code::RegisterMachineTaken));
    }

    #[test]
    fn a_key_of_another_machine_names_it() {
        let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
        let said = format!(r#"{{"code":"TEC-R412","uuid":"{id}"}}"#);
        assert_eq!(read(409, &said), Answer::Elsewhere(id.parse().unwrap()));
        let refused = Answer::Refused(Code::RegisterKeyElsewhere);
        for silent in [r#"{"code":"TEC-R412"}"#, r#"{"code":"TEC-R412","uuid":"x"}"#] {
            assert_eq!(read(409, silent), refused);
        }
    }

    #[test]
    fn only_a_body_that_is_not_understood_is_shortened() {
        let text = "Failed to deserialize the JSON body into the target type";
        let not_understood = Answer::NotUnderstood(Code::RegisterMalformed);
        assert_eq!(read(422, text), not_understood);
        assert_eq!(read(400, r#"{"code":"TEC-R400"}"#), not_understood);
        assert_eq!(read(422, r#"{"code":"TEC-R422"}"#), Answer::Refused(Code::RegisterKeyRefused));
    }

    #[test]
    fn challenges_are_decoded_and_broken_ones_refused() {
        let body = r#"{"status":"challenge","challenge":"ab","id_object":"AQ==","encrypted_secret":"Ag=="}"#;
        assert_eq!(
            read(202, body),
            Answer::Challenge("ab".to_owned(), Credential::new(vec![1], vec![2]))
        );
        let broken = r#"{"status":"challenge","challenge":"ab","id_object":"?"}"#;
        assert_eq!(read(202, broken), Answer::Refused(Code::RegisterEkProof));
        assert_eq!(read(202, r#"{"status":"pending"}"#), Answer::Pending);
    }

    #[test]
    fn load_and_outages_are_not_refusals() {
        assert_eq!(read(429, ""), Answer::Busy(Code::RegisterRate));
        assert_eq!(read(429, r#"{"code":"TEC-R430"}"#), Answer::Busy(Code::RegisterFull));
        assert_eq!(read(502, "<html>"), Answer::Busy(Code::RegisterUnavailable));
        assert_eq!(
            read(302, ""),
            Answer::Refused(Code::RegisterNotFound),
            "redirects are not followed"
        );
    }
}
