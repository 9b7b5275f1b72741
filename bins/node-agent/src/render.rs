//! Results, for people and for programs.

use serde_json::json;
use tec_agent::failure::Failure;
use tec_agent::key::Shown;
use tec_agent::rebind::Rebound;
use tec_agent::recovery::Enrolled;
use tec_agent::refresh::Refreshed;
use tec_agent::rotate::Rotated;

use crate::output::Output;
use crate::stream;

/// A result that a command prints.
pub trait Render {
    /// The output, without a final newline.
    fn render(&self, output: Output) -> String;
}

/// Prints a result.
pub fn print(done: Result<impl Render, Failure>, output: Output) -> Result<(), Failure> {
    stream::write_line(&done?.render(output))
}

impl Render for Shown {
    fn render(&self, output: Output) -> String {
        let handle = self.handle.to_string();
        let fingerprint = self.public.fingerprint().to_string();
        match output {
            Output::Json => json!({
                "handle": handle,
                "fingerprint": fingerprint,
                "public_key": self.public.to_pem(),
                "registered_for": self.registered_for,
            })
            .to_string(),
            Output::Text => {
                let registered = self.registered_for.map(|id| format!("registered  {id}\n"));
                format!(
                    "handle      {handle}\nfingerprint {fingerprint}\n{}{}",
                    registered.unwrap_or_default(),
                    self.public.to_pem().trim_end()
                )
            }
        }
    }
}

impl Render for Rebound {
    fn render(&self, output: Output) -> String {
        match output {
            Output::Json => json!({ "token": self.token, "removed": self.removed }).to_string(),
            Output::Text => {
                let removed: Vec<_> = self.removed.iter().map(u32::to_string).collect();
                let removed = match removed.as_slice() {
                    [] => "nothing had to go".to_owned(),
                    ids => format!("removed {}", ids.join(", ")),
                };
                format!("token {} names the new servers; {removed}", self.token)
            }
        }
    }
}

impl Render for Refreshed {
    fn render(&self, output: Output) -> String {
        match output {
            Output::Json => json!({
                "disks": self.disks, "changed": self.changed, "reported": self.reported,
            })
            .to_string(),
            Output::Text if self.disks.is_empty() => "no disk is bound to key brokers".to_owned(),
            Output::Text if self.changed.is_empty() => "the CAs in the pin are current".to_owned(),
            Output::Text => format!("the pin has new CAs of {}", self.changed.join(", ")),
        }
    }
}

impl Render for Enrolled {
    fn render(&self, output: Output) -> String {
        let slot = self.slot;
        match (output, self.number) {
            (Output::Json, number) => json!({ "slot": slot, "number": number }).to_string(),
            (Output::Text, Some(number)) => {
                format!("key slot {slot} has a new recovery key, number {number} at the server")
            }
            (Output::Text, None) => format!("key slot {slot} has a recovery key already"),
        }
    }
}

impl Render for Rotated {
    fn render(&self, output: Output) -> String {
        let (word, text) = match self {
            Self::Replaced => {
                ("replaced", "the disk key was replaced, and the old key slots removed")
            }
            Self::Cleaned => (
                "cleaned",
                "no new disk key is pending; key slots of a canceled rotation were removed",
            ),
            Self::NothingPending => ("nothing-pending", "no new disk key is pending"),
            Self::NotOffered => ("not-offered", "this key broker rotates no disk keys"),
        };
        match output {
            Output::Json => json!({ "rotation": word }).to_string(),
            Output::Text => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;
    use tec_tpm::ak::AkHandle;

    use super::*;

    #[test]
    fn the_key_is_shown_for_people_and_programs() {
        let shown = Shown {
            handle: AkHandle::DEFAULT,
            public: sample::public_key(1),
            registered_for: Some(sample::machine_id(7)),
        };
        let text = shown.render(Output::Text);
        assert!(text.starts_with("handle      0x81010002\nfingerprint "));
        assert!(text.ends_with("-----END PUBLIC KEY-----"));
        let json: serde_json::Value = serde_json::from_str(&shown.render(Output::Json)).unwrap();
        assert_eq!(json["handle"], "0x81010002");
        assert_eq!(json["registered_for"], sample::machine_id(7).to_string());
        assert_eq!(json["public_key"], sample::public_key(1).to_pem());
    }
}
