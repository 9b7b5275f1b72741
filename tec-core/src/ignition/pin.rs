//! Configuration of the Clevis pin `trustee`, byte-compatible with the existing pin.

use serde::{Deserialize, Serialize};

use crate::endpoint::Endpoint;
use crate::id::{MachineId, ResourcePath};

/// Name of the pin.
pub const PIN_NAME: &str = "trustee";
/// Maximum size of a configuration: enough for a few servers with their CA bundles.
const MAX_CONFIG: usize = 256 * 1024;
/// Maximum number of servers in a pin.
const MAX_SERVERS: usize = 32;

/// How many times the list of servers is tried. Counts rounds, not servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "NumRetriesWire", into = "NumRetriesWire")]
#[non_exhaustive]
pub enum NumRetries {
    /// This many rounds, at least one.
    Rounds(u32),
    /// Until one succeeds.
    Infinity,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumRetriesWire {
    Number(u32),
    Word(String),
}

impl TryFrom<NumRetriesWire> for NumRetries {
    type Error = &'static str;

    fn try_from(wire: NumRetriesWire) -> Result<Self, Self::Error> {
        match wire {
            NumRetriesWire::Number(rounds) if rounds > 0 => Ok(Self::Rounds(rounds)),
            NumRetriesWire::Word(word) if word == "infinity" => Ok(Self::Infinity),
            _ => Err("num_retries is a positive number or \"infinity\""),
        }
    }
}

impl From<NumRetries> for NumRetriesWire {
    fn from(retries: NumRetries) -> Self {
        match retries {
            NumRetries::Rounds(rounds) => Self::Number(rounds),
            NumRetries::Infinity => Self::Word("infinity".to_owned()),
        }
    }
}

/// Where the node registers its attestation key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AkRegistration {
    /// Full URL, `…/register-ak`.
    pub url: String,
    /// The machine.
    pub uuid: MachineId,
    /// PEM bundle of the CA; empty for plain HTTP.
    #[serde(default)]
    pub cert: String,
}

/// Settings of the attestation key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttestationKeyConfig {
    /// Where it is registered.
    pub registration: AkRegistration,
}

/// The JSON that `clevis luks bind … trustee '<config>'` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PinConfig {
    /// KBS servers in the order in which they are tried.
    pub servers: Vec<Endpoint>,
    /// Path of the key.
    pub path: ResourcePath,
    /// Init-data as JSON, if any.
    #[serde(default)]
    pub initdata: Option<String>,
    /// Number of rounds over the list of servers.
    #[serde(default)]
    pub num_retries: Option<NumRetries>,
    /// Present if the node registers its key itself.
    #[serde(default)]
    pub attestation_key: Option<AttestationKeyConfig>,
}

/// The object `clevis` in the protected header of the sealed passphrase: the part of the
/// configuration that stays on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeaderConfig {
    /// Always [`PIN_NAME`].
    pub pin: String,
    /// As in [`PinConfig`].
    pub servers: Vec<Endpoint>,
    /// As in [`PinConfig`].
    pub path: ResourcePath,
    /// As in [`PinConfig`].
    #[serde(default)]
    pub initdata: Option<String>,
    /// As in [`PinConfig`].
    #[serde(default)]
    pub num_retries: Option<NumRetries>,
}

/// The string is not a configuration of the pin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePinConfigError {
    /// Longer than any sensible configuration.
    #[error("the pin configuration has {0} bytes, more than the limit of 262144")]
    TooLarge(usize),
    /// Not the expected JSON.
    #[error("the pin configuration is not valid")]
    Json(#[source] serde_json::Error),
    /// No server, or more than 32.
    #[error("the pin configuration names {0} servers; 1 to 32 are allowed")]
    Servers(usize),
    /// The header is that of another pin.
    #[error("the header belongs to a different Clevis pin, {0:?}")]
    OtherPin(String),
}

fn check_servers(servers: &[Endpoint]) -> Result<(), ParsePinConfigError> {
    if (1..=MAX_SERVERS).contains(&servers.len()) {
        Ok(())
    } else {
        Err(ParsePinConfigError::Servers(servers.len()))
    }
}

impl PinConfig {
    /// A configuration that asks these servers, in this order, for the key at `path`. It registers
    /// no key of the node, has no init-data, and uses the default number of rounds.
    pub fn new(servers: Vec<Endpoint>, path: ResourcePath) -> Self {
        Self { servers, path, initdata: None, num_retries: None, attestation_key: None }
    }

    /// Parses a configuration. Unknown members are ignored, as in the existing pin.
    pub fn parse(json: &str) -> Result<Self, ParsePinConfigError> {
        if json.len() > MAX_CONFIG {
            return Err(ParsePinConfigError::TooLarge(json.len()));
        }
        let config: Self = serde_json::from_str(json).map_err(ParsePinConfigError::Json)?;
        check_servers(&config.servers)?;
        Ok(config)
    }

    /// The part that goes into the header of the sealed passphrase.
    pub fn to_header(&self) -> HeaderConfig {
        HeaderConfig {
            pin: PIN_NAME.to_owned(),
            servers: self.servers.clone(),
            path: self.path.clone(),
            initdata: self.initdata.clone(),
            num_retries: self.num_retries,
        }
    }
}

impl HeaderConfig {
    /// Reads the `clevis` object of a protected header.
    pub fn from_value(value: serde_json::Value) -> Result<Self, ParsePinConfigError> {
        let config: Self = serde_json::from_value(value).map_err(ParsePinConfigError::Json)?;
        if config.pin != PIN_NAME {
            return Err(ParsePinConfigError::OtherPin(config.pin));
        }
        check_servers(&config.servers)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn documented() -> String {
        format!(
            r#"{{"servers":[{{"url":"https://kbs.example.org:8080","cert":"PEM"}}],"path":"default/{ID}/root","initdata":null,"num_retries":null,"attestation_key":{{"registration":{{"url":"https://ak.example.org:8001/register-ak","uuid":"{ID}","cert":"PEM"}}}}}}"#
        )
    }

    #[test]
    fn the_documented_form_round_trips_to_the_byte() {
        let config = PinConfig::parse(&documented()).unwrap();
        assert_eq!(serde_json::to_string(&config).unwrap(), documented());
        assert_eq!(config.path.machine().unwrap().to_string(), ID);
    }

    #[test]
    fn older_forms_without_optional_members_are_read() {
        let old = format!(r#"{{"servers":[{{"url":"http://a"}}],"path":"default/{ID}/root"}}"#);
        let config = PinConfig::parse(&old).unwrap();
        assert_eq!((config.num_retries, config.attestation_key), (None, None));
    }

    #[test]
    fn retries_are_positive_or_infinite() {
        let parse = |text| serde_json::from_str::<NumRetries>(text);
        assert_eq!(parse("3").unwrap(), NumRetries::Rounds(3));
        assert_eq!(parse("\"infinity\"").unwrap(), NumRetries::Infinity);
        for bad in ["0", "-1", "\"forever\"", "1.5", "[]"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn headers_of_other_pins_and_empty_lists_are_refused() {
        let config = PinConfig::parse(&documented()).unwrap();
        let mut value = serde_json::to_value(config.to_header()).unwrap();
        assert!(HeaderConfig::from_value(value.clone()).is_ok());
        value["pin"] = "tang".into();
        assert!(matches!(HeaderConfig::from_value(value), Err(ParsePinConfigError::OtherPin(_))));
        let none = format!(r#"{{"servers":[],"path":"default/{ID}/root"}}"#);
        assert!(matches!(PinConfig::parse(&none), Err(ParsePinConfigError::Servers(0))));
    }
}
