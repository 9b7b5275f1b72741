//! A real registry: what is pushed there is read from there.

use std::sync::Arc;

use serde_json::json;
use tec_core::code::Code;
use tec_core::pcr::PcrIndex;
use tec_core::reference::PcrComputer as _;
use tec_core::testing::SeededEntropy;
use tec_registry::testing::{Access, Content, INDEX, RealRegistry, USER, gzip, noise};
use tec_registry::{Credentials, Registry, RegistryError, RegistryOptions};
use tec_tpm::compute::testing::{debian_chain, layer};
use tec_tpm::compute::{ChainComputer, SecureBoot};
use tec_tpm::output;

use crate::boot::{boot_files, borrowed};
use crate::provider;

/// Files with their paths.
type Files<'a> = &'a [(&'a str, &'a [u8])];

/// A reader that may talk to these hosts without TLS.
pub(crate) fn reader(hosts: &[&str], options: RegistryOptions) -> Arc<Registry> {
    let mut options = options;
    let hosts = hosts.iter().map(|host| (*host).to_owned());
    options.dangerous_plain_http = hosts.collect();
    Arc::new(Registry::new(options, &provider(), Arc::new(SeededEntropy::new(1))).unwrap())
}

/// PCR 4 of an image, computed on a thread that may block.
pub(crate) async fn pcr4(
    registry: &Arc<Registry>,
    reference: &str,
) -> Result<String, RegistryError> {
    let reference = reference.parse().unwrap();
    let image = registry.find(&reference).await?;
    let (registry, runtime) = (Arc::clone(registry), tokio::runtime::Handle::current());
    let computed = tokio::task::spawn_blocking(move || {
        let opened = image.open(&registry, &runtime)?;
        let expected = ChainComputer::new(SecureBoot::On).compute(&opened).unwrap();
        Ok(expected.pcr(PcrIndex::BOOT_MANAGER).unwrap().value.to_string())
    });
    computed.await.unwrap()
}

pub(crate) fn local_pcr4() -> String {
    let expected = ChainComputer::new(SecureBoot::On).compute(&debian_chain("2.12")).unwrap();
    expected.pcr(PcrIndex::BOOT_MANAGER).unwrap().value.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn boot_files_of_every_sort_of_layer_give_the_same_value() {
    let server = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let files = boot_files();
    let (old, library) = ([("boot/vmlinuz-6.1.0-amd64", &b"old"[..])], noise(300_000));
    let huge = [("usr/lib/libhuge.so", library.as_slice())];
    let gone = [("boot/.wh.vmlinuz-6.1.0-amd64", &b""[..])];
    let mut content = Content::default();
    let plain = |files: Files<'_>| gzip(files).unwrap();
    let chunked = |files: Files<'_>| ("zstd", layer::zstd_chunked(files, 4096).unwrap());
    let estargz = |files: Files<'_>| ("gzip", layer::estargz(files, 4096).unwrap());
    let all: [&dyn Fn(Files<'_>) -> _; 3] = [&plain, &chunked, &estargz];
    let digests: Vec<String> = all
        .iter()
        .map(|pack| {
            let layers = [pack(&old), pack(&huge), pack(&borrowed(&files)), pack(&gone)];
            content.image(&json!({}), &layers)
        })
        .collect();
    server.push("team/os", &content).await.unwrap();
    let registry = reader(&[server.host()], RegistryOptions::default());
    for digest in digests {
        let reference = format!("{}/team/os@{digest}", server.host());
        assert_eq!(pcr4(&registry, &reference).await.unwrap(), local_pcr4());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_label_of_the_platforms_image_is_read_without_its_layers() {
    let server = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let expected = ChainComputer::new(SecureBoot::On).compute(&debian_chain("2.12")).unwrap();
    let label = output::label(&expected).unwrap();
    let mut content = Content::default();
    let labeled =
        content.image(&json!({ "org.coreos.pcrs": label }), &[gzip(&[("a", b"a")]).unwrap()]);
    let bare = content.image(&json!({}), &[gzip(&[("b", b"b")]).unwrap()]);
    let describe = |digest: &str, architecture: &str| {
        let (media_type, bytes) = &content.manifests[digest];
        json!({
            "mediaType": media_type, "digest": digest, "size": bytes.len(),
            "platform": { "os": "linux", "architecture": architecture },
        })
    };
    let manifests = [describe(&bare, "arm64"), describe(&labeled, "amd64")];
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
    let index = content.manifest(INDEX, &index);
    server.push("os", &content).await.unwrap();

    let reference = format!("{}/os@{index}", server.host()).parse().unwrap();
    let registry = reader(&[server.host()], RegistryOptions::default());
    let image = registry.find(&reference).await.unwrap();
    let read = image.labeled_pcrs().unwrap().unwrap();
    let value =
        |pcrs: &tec_core::image::ExpectedPcrs| pcrs.pcr(PcrIndex::BOOT_MANAGER).map(|p| p.value);
    assert_eq!(value(&read), value(&expected));

    let options =
        RegistryOptions { platform: "linux/arm64".parse().unwrap(), ..RegistryOptions::default() };
    let image = reader(&[server.host()], options).find(&reference).await.unwrap();
    assert_eq!(image.labeled_pcrs().unwrap(), None);

    let options =
        RegistryOptions { platform: "linux/s390x".parse().unwrap(), ..RegistryOptions::default() };
    let error = reader(&[server.host()], options).find(&reference).await.unwrap_err();
    assert_eq!(error.code(), Code::ImagePlatform, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_image_needs_the_pull_secret() {
    let server = RealRegistry::start(Access::User, &provider()).await.unwrap();
    let mut content = Content::default();
    let digest = content.image(&json!({}), &[gzip(&borrowed(&boot_files())).unwrap()]);
    server.push("private/os", &content).await.unwrap();
    let reference = format!("{}/private/os@{digest}", server.host());
    let with = |host: &str, password: &str| {
        let login = json!({ "username": USER.0, "password": password });
        let secret = json!({ "auths": { host: login } }).to_string();
        let options = RegistryOptions {
            credentials: Credentials::parse(secret.as_bytes()).unwrap(),
            ..RegistryOptions::default()
        };
        reader(&[server.host()], options)
    };
    let good = with(server.host(), USER.1);
    assert_eq!(pcr4(&good, &reference).await.unwrap(), local_pcr4());
    let anonymous = reader(&[server.host()], RegistryOptions::default());
    for refused in [with(server.host(), "wrong"), with("other.example", USER.1), anonymous] {
        let error = pcr4(&refused, &reference).await.unwrap_err();
        assert_eq!(error.code(), Code::ImageDenied, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_is_told_from_a_registry_that_is_not_there() {
    let server = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let digest = format!("sha256:{}", "ab".repeat(32));
    let registry = reader(&[server.host(), "127.0.0.1:1"], RegistryOptions::default());
    let absent = format!("{}/os@{digest}", server.host()).parse().unwrap();
    let error = registry.find(&absent).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageAbsent, "{error}");
    let nowhere = format!("127.0.0.1:1/os@{digest}").parse().unwrap();
    let error = registry.find(&nowhere).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnreachable, "{error}");
}
