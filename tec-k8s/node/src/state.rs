//! The state that a bootstrapped node keeps on its state disk.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use derive_more::Display;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::derive::MeasurementSalt;

/// The role of a node in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Display)]
#[non_exhaustive]
pub enum Role {
    /// Runs the control plane.
    #[display("control-plane")]
    ControlPlane,
    /// Runs workloads only.
    #[display("worker")]
    Worker,
}

impl Role {
    /// Parses the name in any case, with or without a hyphen: metadata and older files write it differently.
    pub fn of_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "controlplane" | "control-plane" => Some(Self::ControlPlane),
            "worker" => Some(Self::Worker),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::of_name(&name).ok_or_else(|| D::Error::custom("not a role"))
    }
}

/// `node_state.json`: `{"Role": "ControlPlane", "MeasurementSalt": "<base64>"}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeState {
    /// The node's role.
    #[serde(rename = "Role")]
    pub role: Role,
    /// Determines, together with the measurement secret, the ID of its cluster.
    #[serde(rename = "MeasurementSalt")]
    pub measurement_salt: MeasurementSalt,
}

/// The file is not a valid node state.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the state of the node")]
#[non_exhaustive]
pub struct NodeStateError {
    /// The cause, with line and column.
    #[source]
    pub source: serde_json::Error,
}

impl NodeState {
    /// State of a node.
    pub fn new(role: Role, measurement_salt: MeasurementSalt) -> Self {
        Self { role, measurement_salt }
    }

    /// Parses the file.
    pub fn from_json(json: &[u8]) -> Result<Self, NodeStateError> {
        serde_json::from_slice(json).map_err(|source| NodeStateError { source })
    }

    /// Content of the file.
    pub fn to_json(self) -> String {
        serde_json::to_string(&self).unwrap_or_default()
    }
}

impl Serialize for MeasurementSalt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.as_bytes()))
    }
}

impl<'de> Deserialize<'de> for MeasurementSalt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD
            .decode(text)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self::new)
            .ok_or_else(|| D::Error::custom("a measurement salt has 32 bytes in base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_that_of_constellation() {
        let state = NodeState::new(Role::ControlPlane, MeasurementSalt::new([0; 32]));
        let json = format!(r#"{{"Role":"ControlPlane","MeasurementSalt":"{}="}}"#, "A".repeat(43));
        assert_eq!(state.to_json(), json);
        let lower = json.replace("ControlPlane", "controlplane");
        assert_eq!(NodeState::from_json(lower.as_bytes()).unwrap(), state);
    }

    #[test]
    fn unknown_roles_and_short_salts_are_refused() {
        for json in [
            r#"{"Role":"Unknown","MeasurementSalt":"AA=="}"#,
            r#"{"Role":"Worker","MeasurementSalt":"AA=="}"#,
            r#"{"Role":"Worker"}"#,
        ] {
            assert!(NodeState::from_json(json.as_bytes()).is_err());
        }
    }
}
