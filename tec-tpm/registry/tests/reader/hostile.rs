//! Servers that misbehave as registries, mirrors and networks may.

use serde_json::json;
use tec_core::code::Code;
use tec_registry::testing::{Content, INDEX, MANIFEST, gzip, noise};
use tec_registry::{Credentials, RegistryOptions};
use tec_tpm::compute::testing::layer;

use crate::boot::{boot_files, borrowed};
use crate::fake::{Behaviour, Fake, altered};
use crate::real::{local_pcr4, pcr4, reader};

/// An image with an ordinary layer below its boot files, and its digest.
fn image() -> (Content, String) {
    let library = noise(2_000_000);
    let mut content = Content::default();
    let layers = [
        gzip(&[("usr/lib/libhuge.so", &library)]).unwrap(),
        gzip(&borrowed(&boot_files())).unwrap(),
    ];
    let digest = content.image(&json!({}), &layers);
    (content, digest)
}

fn mirrored(mirrors: &[String]) -> RegistryOptions {
    let mirrors = mirrors.iter().map(|mirror| mirror.parse().unwrap());
    RegistryOptions { mirrors: mirrors.collect(), ..RegistryOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_fetched_with_the_pull_secret_and_kept() {
    let (content, digest) = image();
    // `u:p` in base64.
    let bearer = Some(("Basic dTpw", "t0ken"));
    let fake = Fake::start(&content, Behaviour { bearer, ..Behaviour::default() }).await;
    let secret = format!(r#"{{"auths":{{"{}":{{"auth":"dTpw"}}}}}}"#, fake.host);
    let options = RegistryOptions {
        credentials: Credentials::parse(secret.as_bytes()).unwrap(),
        ..RegistryOptions::default()
    };
    let registry = reader(&[&fake.host], options);
    let reference = format!("{}/os@{digest}", fake.host);
    assert_eq!(pcr4(&registry, &reference).await.unwrap(), local_pcr4());
    let tokens = fake.calls().iter().filter(|path| *path == "/token").count();
    assert_eq!(tokens, 1);
    let anonymous = reader(&[&fake.host], RegistryOptions::default());
    let error = pcr4(&anonymous, &reference).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageDenied);
    // Passwords are for the token's service only.
    let seen = fake.seen.lock().unwrap();
    assert!(seen.authorized.iter().all(|value| value == "Bearer t0ken"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_realm_in_plain_text_gets_no_password() {
    let (content, digest) = image();
    let bearer = Some(("Basic dTpw", "t0ken"));
    let real = Fake::start(&content, Behaviour { bearer, ..Behaviour::default() }).await;
    let secret = format!(r#"{{"auths":{{"{}":{{"auth":"dTpw"}}}}}}"#, real.host);
    let options = RegistryOptions {
        credentials: Credentials::parse(secret.as_bytes()).unwrap(),
        ..RegistryOptions::default()
    };
    // Plain text is not allowed for this host, so nothing is sent at all.
    let registry = reader(&[], options);
    let error = pcr4(&registry, &format!("{}/os@{digest}", real.host)).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnreachable);
    assert_eq!(real.calls(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_do_not_follow_a_redirect_to_another_host() {
    let (content, digest) = image();
    let store = Fake::start(&content, Behaviour::default()).await;
    let bearer = Some(("Basic dTpw", "t0ken"));
    let redirect = Some(store.host.replace("127.0.0.1", "localhost"));
    let fake = Fake::start(&content, Behaviour { bearer, redirect, ..Behaviour::default() }).await;
    let secret = format!(r#"{{"auths":{{"{}":{{"auth":"dTpw"}}}}}}"#, fake.host);
    let options = RegistryOptions {
        credentials: Credentials::parse(secret.as_bytes()).unwrap(),
        ..RegistryOptions::default()
    };
    let registry = reader(&[&fake.host], options);
    let reference = format!("{}/os@{digest}", fake.host);
    assert_eq!(pcr4(&registry, &reference).await.unwrap(), local_pcr4());
    let seen = store.seen.lock().unwrap();
    assert!(!seen.calls.is_empty() && seen.authorized.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_are_asked_first_and_need_not_be_trusted() {
    let (content, digest) = image();
    let origin = Fake::start(&content, Behaviour::default()).await;
    let reference = format!("{}/os@{digest}", origin.host);
    let good = Fake::start(&content, Behaviour::default()).await;
    let options = mirrored(&[format!("{}={}/copies", origin.host, good.host)]);
    let registry = reader(&[&origin.host, &good.host], options);
    assert_eq!(pcr4(&registry, &reference).await.unwrap(), local_pcr4());
    assert!(good.calls().iter().all(|path| path.starts_with("/v2/copies/os/")));
    assert_eq!(origin.calls(), Vec::<String>::new());

    let empty = Fake::start(&Content::default(), Behaviour::default()).await;
    let options = mirrored(&[
        format!("{}=127.0.0.1:1", origin.host),
        format!("{}={}", origin.host, empty.host),
    ]);
    let registry = reader(&[&origin.host, &empty.host], options);
    assert_eq!(pcr4(&registry, &reference).await.unwrap(), local_pcr4());

    // The configuration is wrong there, and right at the origin; a wrong layer is refused.
    let liar = Fake::start(&altered(&content), Behaviour::default()).await;
    let options = mirrored(&[format!("{}={}", origin.host, liar.host)]);
    let registry = reader(&[&origin.host, &liar.host], options);
    assert!(registry.find(&reference.parse().unwrap()).await.is_ok());
    let error = pcr4(&registry, &reference).await.unwrap_err();
    assert!(matches!(error.code(), Code::ImageAltered | Code::ImageUnreadable), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_breaks_off_is_taken_up_again() {
    let (content, digest) = image();
    for ignores_ranges in [false, true] {
        let cut = if ignores_ranges { None } else { Some(400_000) };
        let behaviour = Behaviour { cut, ignores_ranges, busy: 1, ..Behaviour::default() };
        let fake = Fake::start(&content, behaviour).await;
        let registry = reader(&[&fake.host], RegistryOptions::default());
        let reference = format!("{}/os@{digest}", fake.host);
        assert_eq!(pcr4(&registry, &reference).await.unwrap(), local_pcr4());
    }
    let behaviour = Behaviour { cut: Some(10), ..Behaviour::default() };
    let fake = Fake::start(&content, behaviour).await;
    let registry = reader(&[&fake.host], RegistryOptions::default());
    let error = pcr4(&registry, &format!("{}/os@{digest}", fake.host)).await.unwrap_err();
    assert_eq!(error.code(), Code::RegistryUnreachable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_needed_is_fetched() {
    let (library, files) = (noise(3_000_000), boot_files());
    let mut all = borrowed(&files);
    all.push(("usr/lib/libhuge.so", &library));
    let mut content = Content::default();
    let tables = [
        ("zstd", layer::zstd_chunked(&all, 65_536).unwrap()),
        ("gzip", layer::estargz(&all, 65_536).unwrap()),
    ];
    let boot = files.iter().map(|(_, content)| content.len()).sum::<usize>();
    for table in tables {
        let digest = content.image(&json!({}), &[table]);
        let fake = Fake::start(&content, Behaviour::default()).await;
        let registry = reader(&[&fake.host], RegistryOptions::default());
        assert_eq!(
            pcr4(&registry, &format!("{}/os@{digest}", fake.host)).await.unwrap(),
            local_pcr4()
        );
        assert!(fake.bytes() < boot + 100_000, "{} bytes, {boot} of boot files", fake.bytes());
    }

    // An image for bootc is read from above.
    let moved: Vec<(String, Vec<u8>)> = files
        .into_iter()
        .map(|(path, content)| {
            let kernel =
                path.contains("vmlinuz").then(|| "usr/lib/modules/6.12/vmlinuz".to_owned());
            (kernel.unwrap_or(path), content)
        })
        .collect();
    let layers =
        [gzip(&[("usr/lib/libhuge.so", &library)]).unwrap(), gzip(&borrowed(&moved)).unwrap()];
    let digest = content.image(&json!({ "containers.bootc": "1" }), &layers);
    let fake = Fake::start(&content, Behaviour::default()).await;
    let registry = reader(&[&fake.host], RegistryOptions::default());
    assert_eq!(pcr4(&registry, &format!("{}/os@{digest}", fake.host)).await.unwrap(), local_pcr4());
    assert!(fake.bytes() < boot + 100_000, "{} bytes, {boot} of boot files", fake.bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_lie_are_refused_with_their_codes() {
    let mut content = Content::default();
    let good = content.image(&json!({}), &[]);
    let broken = content.image(&json!({ "org.coreos.pcrs": "{\"pcrs\":7}" }), &[]);
    let both = json!({ "manifests": [], "config": { "digest": "x", "size": 1 }, "layers": [] });
    let both = content.manifest(MANIFEST, &both);
    let huge = json!({ "schemaVersion": 2, "padding": " ".repeat(5 << 20) });
    let huge = content.manifest(MANIFEST, &huge);
    let enormous = content.blob(b"{}");
    let layers = json!([{ "digest": enormous["digest"], "size": u64::MAX }]);
    let enormous = json!({ "config": enormous, "layers": layers });
    let enormous = content.manifest(MANIFEST, &enormous);
    let nested = json!({ "manifests": [] });
    let nested = content.manifest(INDEX, &nested);
    let platform = json!({ "os": "linux", "architecture": "amd64" });
    let outer = json!({ "manifests": [{ "digest": nested, "size": 1, "platform": platform }] });
    let outer = content.manifest(INDEX, &outer);
    let odd = json!({ "manifests": [{ "digest": "sha512:00", "size": 1, "platform": platform }] });
    let odd = content.manifest(INDEX, &odd);
    let mut swapped = content.clone();
    let other = swapped.manifests[&broken].clone();
    swapped.manifests.insert(good.clone(), other);

    let fake = Fake::start(&content, Behaviour::default()).await;
    let liar = Fake::start(&swapped, Behaviour::default()).await;
    let registry = reader(&[&fake.host, &liar.host], RegistryOptions::default());
    for (host, digest, code) in [
        (&fake.host, &both, Code::ImageUnreadable),
        (&fake.host, &huge, Code::ImageTooLarge),
        (&fake.host, &enormous, Code::ImageTooLarge),
        (&fake.host, &nested, Code::ImagePlatform),
        (&fake.host, &outer, Code::ImageUnreadable),
        (&fake.host, &odd, Code::ImageUnreadable),
        (&liar.host, &good, Code::ImageAltered),
    ] {
        let reference = format!("{host}/os@{digest}").parse().unwrap();
        let error = registry.find(&reference).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    let reference = format!("{}/os@{broken}", fake.host).parse().unwrap();
    let image = registry.find(&reference).await.unwrap();
    assert_eq!(image.labeled_pcrs().unwrap_err().code(), Code::ImageLabel);
}
