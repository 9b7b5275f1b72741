//! Pin configurations, and the Ignition configs that carry them to a node.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ignition_config::{Config, v3_6};
use tec_core::endpoint::Endpoint;
use tec_core::id::MachineId;
use tec_core::ignition::{
    ClevisPinGenerator, HeaderConfig, MergeSource, PIN_NAME, PinConfig, PinGenerator as _,
    render_merge,
};

use crate::Seed;
use crate::sample::MACHINE;

/// Largest configuration that the pin reads.
const MAX_CONFIG: usize = 256 << 10;

/// A pin configuration has one value in any form. Whatever the servers of a generator are, it renders valid
/// Ignition without surprises, and a node reads exactly what was put in.
pub(crate) fn ignition(data: &[u8]) {
    if let Ok((config, _warnings)) = Config::parse_slice(data)
        && let Some(pin) = pin_text(config)
        && let Ok(pin) = PinConfig::parse(&pin)
    {
        check_pin(&pin);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(pin) = PinConfig::parse(text) {
        check_pin(&pin);
        check_rendering(&pin);
    }
}

fn check_pin(pin: &PinConfig) {
    let json = serde_json::to_string(pin).expect("a configuration is an object");
    if json.len() <= MAX_CONFIG {
        assert_eq!(PinConfig::parse(&json).ok().as_ref(), Some(pin));
    }
    let header = pin.to_header();
    let value = serde_json::to_value(&header).expect("a header is an object");
    assert_eq!(HeaderConfig::from_value(value).ok().as_ref(), Some(&header));
    let own = pin.path.machine().map(|machine| format!("default/{machine}/root"));
    assert!(own.is_none_or(|own| own == pin.path.as_str()));
}

/// A generator and a merge config built from the servers of the configuration.
fn check_rendering(pin: &PinConfig) {
    let mut servers = pin.servers.iter().cloned();
    let first = servers.next().expect("at least one server");
    let device = pin.initdata.clone().unwrap_or_default();
    let generator = servers
        .fold(ClevisPinGenerator::new(first.clone()), ClevisPinGenerator::also)
        .register_ak_at(first.clone())
        .on_device(device.clone());
    let machine: MachineId = MACHINE.parse().expect("a machine id");
    let rendered = generator.render_ignition(&machine).expect("texts can be written");
    let config = parse(&rendered);
    let luks = luks(&config).expect("a LUKS volume");
    assert_eq!(luks.device.as_deref(), Some(device.as_str()));
    let text = pin_of(luks).expect("a pin");
    if text.len() <= MAX_CONFIG {
        let read = PinConfig::parse(&text).expect("what was rendered is read");
        assert_eq!(read, generator.pin_config(&machine));
        assert_eq!(read.servers, pin.servers);
        assert_eq!(read.path.machine(), Some(machine));
    }
    check_merge(first, device);
}

fn check_merge(service: Endpoint, token: String) {
    let mut source = MergeSource::new(service);
    source.token = Some(token);
    let rendered = render_merge(&source).expect("texts can be written");
    let ignition = parse(&rendered).ignition;
    let merges = ignition.config.and_then(|config| config.merge).unwrap_or_default();
    let [merge] = merges.as_slice() else {
        panic!("one merge directive");
    };
    let url = format!("{}/ignition-clevis-pin-trustee", source.service.url);
    assert_eq!(merge.source.as_ref(), Some(&url));
    let headers = merge.http_headers.as_deref().unwrap_or_default();
    let sent = headers.first().and_then(|header| header.value.as_ref()?.strip_prefix("Bearer "));
    assert_eq!(sent, source.token.as_deref());
    let authorities = ignition
        .security
        .and_then(|security| security.tls?.certificate_authorities)
        .unwrap_or_default();
    let ca = authorities.first().and_then(|ca| ca.source.as_ref()?.strip_prefix("data:;base64,"));
    let ca = ca.map(|text| STANDARD.decode(text).expect("base64"));
    assert_eq!(ca.unwrap_or_default(), source.service.cert.as_bytes());
}

/// Reads a rendered config like Ignition: version 3.6, without unknown members.
fn parse(rendered: &[u8]) -> v3_6::Config {
    match Config::parse_slice(rendered).expect("what was rendered is Ignition") {
        (Config::V3_6(config), warnings) if warnings.is_empty() => config,
        (config, warnings) => panic!("rendered {config:?} with {warnings:?}"),
    }
}

fn luks(config: &v3_6::Config) -> Option<&v3_6::Luks> {
    config.storage.as_ref()?.luks.as_ref()?.first()
}

fn pin_of(luks: &v3_6::Luks) -> Option<String> {
    let custom = luks.clevis.as_ref()?.custom.as_ref()?;
    (custom.pin.as_deref() == Some(PIN_NAME)).then(|| custom.config.clone())?
}

fn pin_text(config: Config) -> Option<String> {
    match config {
        Config::V3_6(config) => pin_of(luks(&config)?),
        _ => None,
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let url = |text: &str| text.parse().expect("an address");
    let kbs = Endpoint::new(url("https://kbs.example.org:8080"), "-----BEGIN CERTIFICATE-----");
    let generator = ClevisPinGenerator::new(kbs.clone())
        .also(Endpoint::new(url("http://[fd00::1]:8080"), ""))
        .register_ak_at(Endpoint::new(url("https://ak.example.org:8001"), "PEM"));
    let machine: MachineId = MACHINE.parse().expect("a machine id");
    let pin = serde_json::to_string(&generator.pin_config(&machine)).expect("an object");
    let old = format!(r#"{{"servers":[{{"url":"http://a"}}],"path":"default/{MACHINE}/root"}}"#);
    let retries = r#"{"servers":[{"url":"http://a/","cert":"\u00e9\n"}],"path":"a/b/c",
        "num_retries":7,"initdata":"version = \"0.1.0\"","unknown":[1,{}]}"#;
    let mut merge = MergeSource::new(kbs);
    merge.token = Some("t0ken".to_owned());
    vec![
        Seed::new("pin", pin),
        Seed::new("pin_old", old),
        Seed::new("pin_retries", retries),
        Seed::new("served", generator.render_ignition(&machine).expect("texts can be written")),
        Seed::new("merge", render_merge(&merge).expect("texts can be written")),
    ]
}
