//! Rendering of Ignition configs.

use std::error::Error;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ignition_config::v3_6::{
    Clevis, ClevisCustom, Config, Filesystem, HttpHeadersItem, Ignition, IgnitionConfig, Luks,
    Resource, Security, SecurityTls, Storage,
};

use super::pin::{AkRegistration, AttestationKeyConfig};
use super::{PIN_NAME, PinConfig};
use crate::endpoint::{BaseUrl, Endpoint};
use crate::id::{MachineId, ResourcePath};

/// Renders what a new machine receives.
///
/// *Contract*: pure; the same machine gives the same bytes. *Implemented by* [`ClevisPinGenerator`].
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait PinGenerator: fmt::Debug + Send + Sync {
    /// The pin's configuration for a machine.
    fn pin_config(&self, machine: &MachineId) -> PinConfig;

    /// The Ignition config that contains the pin's configuration.
    fn render_ignition(&self, machine: &MachineId) -> Result<Vec<u8>, RenderError>;
}

/// An Ignition config cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the Ignition config of machine {machine}")]
#[non_exhaustive]
pub struct RenderError {
    /// The machine that the config is for.
    pub machine: String,
    /// The cause.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

impl RenderError {
    /// The config of this machine cannot be rendered.
    pub fn new(machine: &MachineId, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { machine: machine.to_string(), source: source.into() }
    }
}

/// Ignition 3.6 with one LUKS volume `root` and the custom pin `trustee`, for any number of KBS
/// servers.
///
/// ```
/// use tec_core::endpoint::Endpoint;
/// use tec_core::ignition::{ClevisPinGenerator, PinGenerator};
///
/// let kbs = Endpoint::new("https://kbs.example.org:8080".parse()?, "");
/// let generator = ClevisPinGenerator::new(kbs);
/// let ignition = generator.render_ignition(&"7c9e6679-7425-40de-944b-e07fc1f90ae7".parse()?)?;
/// assert!(String::from_utf8(ignition)?.contains(r#""pin":"trustee""#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClevisPinGenerator {
    servers: Vec<Endpoint>,
    ak_registration: Option<Endpoint>,
    device: String,
}

impl ClevisPinGenerator {
    /// A generator for one KBS server.
    pub fn new(kbs: Endpoint) -> Self {
        let device = "/dev/disk/by-partlabel/root".to_owned();
        Self { servers: vec![kbs], ak_registration: None, device }
    }

    /// Adds another KBS server, tried after the earlier ones.
    pub fn also(mut self, kbs: Endpoint) -> Self {
        self.servers.push(kbs);
        self
    }

    /// Lets nodes register their attestation key at this service.
    pub fn register_ak_at(mut self, service: Endpoint) -> Self {
        self.ak_registration = Some(service);
        self
    }

    /// Uses a block device other than `/dev/disk/by-partlabel/root`.
    pub fn on_device(mut self, device: impl Into<String>) -> Self {
        self.device = device.into();
        self
    }

    fn luks(&self, config: String) -> Luks {
        let custom = ClevisCustom {
            pin: Some(PIN_NAME.to_owned()),
            needs_network: Some(true),
            config: Some(config),
        };
        let mut luks = Luks::new("root".to_owned());
        luks.label = Some("root".to_owned());
        luks.device = Some(self.device.clone());
        luks.wipe_volume = Some(true);
        luks.clevis = Some(Clevis { custom: Some(custom), ..Clevis::default() });
        luks
    }
}

impl PinGenerator for ClevisPinGenerator {
    fn pin_config(&self, machine: &MachineId) -> PinConfig {
        PinConfig {
            servers: self.servers.clone(),
            path: ResourcePath::luks_root(machine),
            initdata: None,
            num_retries: None,
            attestation_key: self.ak_registration.as_ref().map(|service| AttestationKeyConfig {
                registration: AkRegistration {
                    url: format!("{}/register-ak", service.url),
                    uuid: *machine,
                    cert: service.cert.clone(),
                },
            }),
        }
    }

    fn render_ignition(&self, machine: &MachineId) -> Result<Vec<u8>, RenderError> {
        let failed = |error: serde_json::Error| RenderError::new(machine, error);
        let pin = serde_json::to_string(&self.pin_config(machine)).map_err(failed)?;
        let mut filesystem = Filesystem::new("/dev/mapper/root".to_owned());
        filesystem.format = Some("ext4".to_owned());
        filesystem.label = Some("root".to_owned());
        filesystem.wipe_filesystem = Some(true);
        let config = Config {
            storage: Some(Storage {
                filesystems: Some(vec![filesystem]),
                luks: Some(vec![self.luks(pin)]),
                ..Storage::default()
            }),
            ..Config::default()
        };
        serde_json::to_vec(&config).map_err(failed)
    }
}

/// Where a node with the installer config fetches the rest of its config.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MergeSource {
    /// Registration service and its CA.
    pub service: Endpoint,
    /// Token, if the server requires one.
    pub token: Option<String>,
}

impl MergeSource {
    /// A registration service that requires no token.
    pub fn new(service: Endpoint) -> Self {
        Self { service, token: None }
    }
}

/// The config for the installer: a merge directive, the CA, and the token as a header.
///
/// # Security
/// The installer config contains the token in clear text; the token only limits who may register.
pub fn render_merge(source: &MergeSource) -> Result<Vec<u8>, serde_json::Error> {
    let header = |token: &String| HttpHeadersItem {
        name: "Authorization".to_owned(),
        value: Some(format!("Bearer {token}")),
    };
    let merge = Resource {
        source: Some(merge_url(&source.service.url)),
        http_headers: source.token.as_ref().map(|token| vec![header(token)]),
        ..Resource::default()
    };
    let ca = Resource {
        source: Some(format!("data:;base64,{}", STANDARD.encode(&source.service.cert))),
        ..Resource::default()
    };
    let ignition = Ignition {
        config: Some(IgnitionConfig { merge: Some(vec![merge]), replace: None }),
        security: (!source.service.cert.is_empty()).then(|| Security {
            tls: Some(SecurityTls { certificate_authorities: Some(vec![ca]) }),
        }),
        ..Ignition::default()
    };
    serde_json::to_vec(&Config { ignition, ..Config::default() })
}

fn merge_url(service: &BaseUrl) -> String {
    format!("{service}/ignition-clevis-pin-trustee")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn generator() -> ClevisPinGenerator {
        let endpoint = |url: &str| Endpoint::new(url.parse().unwrap(), "PEM\n");
        ClevisPinGenerator::new(endpoint("https://kbs:8080"))
            .register_ak_at(endpoint("https://ak:8001"))
    }

    #[test]
    fn the_config_has_the_documented_shape() {
        let bytes = generator().render_ignition(&ID.parse().unwrap()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["ignition"]["version"], "3.6.0");
        let luks = &json["storage"]["luks"][0];
        assert_eq!(luks["device"], "/dev/disk/by-partlabel/root");
        assert_eq!(luks["wipeVolume"], true);
        assert_eq!(luks["clevis"]["custom"]["pin"], "trustee");
        assert_eq!(luks["clevis"]["custom"]["needsNetwork"], true);
        let pin = luks["clevis"]["custom"]["config"].as_str().unwrap();
        let pin = PinConfig::parse(pin).unwrap();
        assert_eq!(pin.path.as_str(), format!("default/{ID}/root"));
        assert_eq!(pin.attestation_key.unwrap().registration.url, "https://ak:8001/register-ak");
        assert_eq!(json["storage"]["filesystems"][0]["device"], "/dev/mapper/root");
        assert!(json["ignition"].get("attestation").is_none());
    }

    #[test]
    fn the_same_machine_gets_the_same_bytes() {
        let id = ID.parse().unwrap();
        let render = || generator().render_ignition(&id).unwrap();
        assert_eq!(render(), render());
    }

    #[test]
    fn servers_keep_their_order() {
        let second = Endpoint::new("https://inside:8080".parse().unwrap(), "");
        let pin = generator().also(second).pin_config(&ID.parse().unwrap());
        let urls: Vec<_> = pin.servers.iter().map(|s| s.url.as_str()).collect();
        assert_eq!(urls, ["https://kbs:8080", "https://inside:8080"]);
    }

    #[test]
    fn the_merge_config_carries_ca_and_token() {
        let mut source =
            MergeSource::new(Endpoint::new("https://reg:8000".parse().unwrap(), "PEM"));
        source.token = Some("t0ken".to_owned());
        let json: serde_json::Value =
            serde_json::from_slice(&render_merge(&source).unwrap()).unwrap();
        let merge = &json["ignition"]["config"]["merge"][0];
        assert_eq!(merge["source"], "https://reg:8000/ignition-clevis-pin-trustee");
        assert_eq!(merge["httpHeaders"][0]["value"], "Bearer t0ken");
        let ca = &json["ignition"]["security"]["tls"]["certificateAuthorities"][0]["source"];
        assert_eq!(ca, "data:;base64,UEVN");
    }
}
