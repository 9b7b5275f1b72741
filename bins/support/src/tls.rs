//! TLS: certificates from files or from a built-in CA, reloaded at run time.
//!
//! The built-in CA lives in the state directory (`ca.pem`, `ca.key`). Its leaf is renewed when a third of its
//! life is left. Files that other programs renew are read again when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tec_core::code::Code;
use tec_core::port::Clock;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use time::OffsetDateTime;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::exit::CodedError;
use crate::files::write_private;
use crate::serve::Shutdown;

/// Lifetime of a leaf certificate.
const LEAF_DAYS: i64 = 90;
/// Remaining life below which a leaf is renewed.
const RENEW_DAYS: i64 = 30;
/// Lifetime of the built-in CA: disks pin it, so it must outlive them.
const CA_DAYS: i64 = 3650;
/// Certificates are backdated by this much, for nodes whose clock is behind.
const SKEW_SECONDS: i64 = 3600;
/// Polling interval of files.
const POLL: Duration = Duration::from_secs(5);
const DAY: i64 = 86_400;
const EXPIRY: &str = "tec_tls_certificate_not_after_seconds";

/// Where certificates come from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// Files that other programs keep up to date.
    Files {
        /// Certificate chain, PEM.
        cert: PathBuf,
        /// Private key, PEM.
        key: PathBuf,
    },
    /// The built-in CA in this directory, for these names and addresses.
    BuiltIn {
        /// State directory.
        directory: PathBuf,
        /// DNS names and IP addresses of the leaf.
        names: Vec<String>,
    },
}

/// A certificate that can change while connections come in.
#[derive(derive_more::Debug)]
#[debug("LiveCertificate {{ source: {source:?}, .. }}")]
pub struct LiveCertificate {
    source: Source,
    current: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for LiveCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

impl LiveCertificate {
    /// Reads the files, or creates the CA and the leaf if they are missing or old.
    pub fn load(source: Source, clock: &dyn Clock) -> anyhow::Result<Arc<Self>> {
        let current = RwLock::new(Arc::new(read(&source, clock)?));
        Ok(Arc::new(Self { source, current }))
    }

    /// A server configuration that always presents the current certificate. TLS 1.2 and 1.3, no client
    /// certificates.
    pub fn server_config(self: &Arc<Self>) -> Arc<ServerConfig> {
        let resolver = Arc::clone(self) as Arc<dyn ResolvesServerCert>;
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// When the served certificate expires, as a metric in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let current = Arc::clone(&self.current.read());
        let Some((_, end)) = current.cert.first().and_then(|leaf| dates(leaf)) else {
            return String::new();
        };
        format!(
            "# HELP {EXPIRY} When the served certificate expires, in seconds since 1970.\n\
             # TYPE {EXPIRY} gauge\n{EXPIRY} {}\n",
            end.unix_seconds()
        )
    }

    /// Keeps the certificate up to date until shutdown. If the files cannot be read, the old certificate
    /// stays in use, and a warning is logged once per change.
    pub async fn keep_fresh(self: Arc<Self>, clock: Arc<dyn Clock>, mut shutdown: Shutdown) {
        let mut seen = self.stamp();
        let mut checked = clock.now();
        loop {
            tokio::select! {
                () = shutdown.triggered() => return,
                () = tokio::time::sleep(POLL) => {},
            }
            let stamp = self.stamp();
            let due = clock.now() >= checked.plus_seconds(DAY / 24);
            if stamp == seen && !due {
                continue;
            }
            checked = clock.now();
            match read(&self.source, &*clock) {
                Ok(fresh) => {
                    *self.current.write() = Arc::new(fresh);
                    if stamp != seen {
                        tracing::info!("certificate reloaded");
                    }
                }
                Err(error) => {
                    tracing::error!(error = %format!("{error:#}"), "certificate not reloaded");
                }
            }
            seen = self.stamp();
        }
    }

    /// Changes when a file is replaced.
    fn stamp(&self) -> Vec<Option<(std::time::SystemTime, u64)>> {
        let (cert, key) = paths(&self.source);
        let of = |path: PathBuf| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        vec![of(cert), of(key)]
    }
}

fn paths(source: &Source) -> (PathBuf, PathBuf) {
    match source {
        Source::Files { cert, key } => (cert.clone(), key.clone()),
        Source::BuiltIn { directory, .. } => (built_in_leaf(directory), directory.join("tls.key")),
    }
}

fn read(source: &Source, clock: &dyn Clock) -> anyhow::Result<CertifiedKey> {
    if let Source::BuiltIn { directory, names } = source {
        renew_leaf(directory, names, clock.now())?;
    }
    let (cert, key) = paths(source);
    let unusable = |path: &Path, error: String| {
        CodedError::new(Code::TlsMaterial, format!("use {}: {error}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(&cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(&cert, error.to_string()))?;
    let private =
        PrivateKeyDer::from_pem_file(&key).map_err(|error| unusable(&key, error.to_string()))?;
    let provider = rustls::crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, private, &provider)
        .map_err(|error| unusable(&cert, error.to_string()))?;
    Ok(certified)
}

/// A new P-256 key: PKCS #8 as PEM.
pub fn new_private_key() -> anyhow::Result<SecretBytes> {
    let key = KeyPair::generate().context("cannot generate a key")?;
    Ok(SecretBytes::new(key.serialize_pem().into_bytes()))
}

/// PEM of the CA that nodes should pin.
/// Errors: `TEC-T500` when the file cannot be read.
pub fn ca_pem(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|error| {
        CodedError::caused(Code::TlsMaterial, format!("read {}", path.display()), error).into()
    })
}

/// Path of the built-in CA's certificate.
pub fn built_in_ca(directory: &Path) -> PathBuf {
    directory.join("ca.pem")
}

/// Path of the certificate that the built-in CA signed for the server.
pub fn built_in_leaf(directory: &Path) -> PathBuf {
    directory.join("tls.crt")
}

/// Not before 1970: a clock without a battery starts there, and earlier dates cannot be parsed.
fn instant(at: Timestamp) -> anyhow::Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(at.unix_seconds().max(0))
        .context("the time of the clock is out of range")
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn ca_params(now: Timestamp) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("TEC built-in CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = instant(now.plus_seconds(-SKEW_SECONDS))?;
    params.not_after = instant(now.plus_seconds(CA_DAYS * DAY))?;
    Ok(params)
}

/// Creates the CA once: the key is durable before the certificate appears, and stays for good. The certificate
/// is issued again, with the same name and key, when it is not yet valid or expires. Of a pinned CA, rustls
/// (`node-agent`, `tec`) compares name and key, not the dates, so nodes continue with the old certificate. Go
/// and OpenSSL (Ignition, curl) also look at the dates: they refuse the old one as before, and need the new.
fn ensure_ca(directory: &Path, now: Timestamp) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let (cert_path, key_path) = (built_in_ca(directory), directory.join("ca.key"));
    if !cert_path.exists() {
        let made = new_ca(now)?;
        let key = made.key.expose("write it to its file");
        let stored = |path: &Path| format!("write {}", path.display());
        write_private(&key_path, key).context(stored(&key_path))?;
        write_private(&cert_path, made.chain.as_bytes()).context(stored(&cert_path))?;
    }
    let unusable =
        |what: &Path| CodedError::new(Code::TlsMaterial, format!("use {}", what.display()));
    let pem = fs::read_to_string(&key_path).map_err(|_| unusable(&key_path))?;
    let key = KeyPair::from_pem(&pem).map_err(|_| unusable(&key_path))?;
    let mut pem = fs::read_to_string(&cert_path).map_err(|_| unusable(&cert_path))?;
    let (begin, end) = validity(&pem)?;
    if now < begin || is_due(end, now) {
        let why = if now < begin {
            "this server's clock was ahead when it was issued, or is behind now"
        } else {
            "it expires: it is old, or this server's clock was behind when it was issued"
        };
        tracing::warn!(%begin, %end, %now, why, "issuing the CA certificate again, with its key");
        let mut params = ca_params(now)?;
        // Not earlier than before, in case that it is now that the clock is wrong.
        params.not_after = params.not_after.max(instant(end)?);
        pem = params.self_signed(&key).context("cannot sign the CA's certificate")?.pem();
        write_private(&cert_path, pem.as_bytes())
            .with_context(|| format!("write {}", cert_path.display()))?;
    }
    Ok(Issuer::from_ca_cert_pem(&pem, key).map_err(|_| unusable(&cert_path))?)
}

/// A certificate with its private key, in PEM.
#[derive(Debug)]
pub struct Pair {
    /// The certificate.
    pub chain: String,
    /// PKCS #8.
    pub key: SecretBytes,
}

impl Pair {
    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self { chain: certificate.pem(), key: SecretBytes::new(key.serialize_pem().into_bytes()) }
    }
}

/// A new CA that signs server certificates. Disks pin it, so it is created only once.
/// Errors: the source of randomness failed, or the clock is out of range.
pub fn new_ca(now: Timestamp) -> anyhow::Result<Pair> {
    let key = KeyPair::generate().context("cannot generate the CA's key")?;
    let certificate = ca_params(now)?.self_signed(&key);
    Ok(Pair::new(&certificate.context("cannot sign the CA's certificate")?, &key))
}

/// The first and the last second of the first certificate of a PEM text.
/// Errors: `TEC-T500` when there is none.
pub fn validity(pem: &str) -> anyhow::Result<(Timestamp, Timestamp)> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok();
    der.and_then(|der| dates(&der)).ok_or_else(|| {
        CodedError::new(Code::TlsMaterial, "read when a certificate is valid").into()
    })
}

fn dates(der: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let certificate = Certificate::from_der(der).ok()?;
    let validity = certificate.tbs_certificate().validity();
    let [begin, end] = [&validity.not_before, &validity.not_after].map(|time| {
        let seconds = i64::try_from(time.to_unix_duration().as_secs()).ok();
        seconds.map(Timestamp::from_unix_seconds)
    });
    begin.zip(end)
}

fn is_due(end: Timestamp, now: Timestamp) -> bool {
    now >= end.plus_seconds(-RENEW_DAYS * DAY)
}

/// A server certificate for these names, signed by a CA, and when it should be renewed.
/// Errors: `TEC-T500` when the CA cannot be used or a name is invalid.
pub fn issue(ca: &Pair, names: &[String], now: Timestamp) -> anyhow::Result<(Pair, Timestamp)> {
    let unusable = || CodedError::new(Code::TlsMaterial, "use the CA");
    let pem = std::str::from_utf8(ca.key.expose("sign with it")).map_err(|_| unusable())?;
    let key = KeyPair::from_pem(pem).map_err(|_| unusable())?;
    let issuer = Issuer::from_ca_cert_pem(&ca.chain, key).map_err(|_| unusable())?;
    let leaf = new_leaf(&issuer, names, now)?;
    Ok((leaf, now.plus_seconds((LEAF_DAYS - RENEW_DAYS) * DAY)))
}

fn new_leaf(
    issuer: &Issuer<'static, KeyPair>,
    names: &[String],
    now: Timestamp,
) -> anyhow::Result<Pair> {
    let mut params =
        CertificateParams::new(names.to_vec()).context("invalid names for the certificate")?;
    params.distinguished_name = named("TEC server");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.not_before = instant(now.plus_seconds(-SKEW_SECONDS))?;
    params.not_after = instant(now.plus_seconds(LEAF_DAYS * DAY))?;
    let key = KeyPair::generate().context("cannot generate the server's key")?;
    let certificate = params.signed_by(&key, issuer);
    Ok(Pair::new(&certificate.context("cannot sign the server's certificate")?, &key))
}

/// Whether the leaf is for these names, valid, and not due for renewal. A note next to it has its names.
fn leaf_is_fresh(directory: &Path, names: &[String], now: Timestamp) -> bool {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let dates = validity(&read(built_in_leaf(directory)));
    dates.is_ok_and(|(begin, end)| begin <= now && !is_due(end, now))
        && read(directory.join("tls.note")) == names.join(",")
        && directory.join("tls.key").exists()
}

fn renew_leaf(directory: &Path, names: &[String], now: Timestamp) -> anyhow::Result<()> {
    let issuer = ensure_ca(directory, now)?;
    if leaf_is_fresh(directory, names, now) {
        return Ok(());
    }
    let leaf = new_leaf(&issuer, names, now)?;
    let note = names.join(",");
    let files = [
        ("tls.key", leaf.key.expose("write it to its file")),
        ("tls.crt", leaf.chain.as_bytes()),
        // Last, because a leaf without a note is replaced.
        ("tls.note", note.as_bytes()),
    ];
    for (name, content) in files {
        let path = directory.join(name);
        write_private(&path, content)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct At(i64);

    impl Clock for At {
        fn now(&self) -> Timestamp {
            Timestamp::from_unix_seconds(self.0)
        }
    }

    const NOW: i64 = 1_795_000_000;

    fn built_in(directory: &Path) -> Source {
        Source::BuiltIn {
            directory: directory.to_owned(),
            names: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        }
    }

    #[test]
    fn the_ca_stays_and_the_leaf_is_renewed_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
        LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap();
        let (ca, leaf) = (read("ca.pem"), read("tls.crt"));
        LiveCertificate::load(built_in(dir.path()), &At(NOW + 59 * DAY)).unwrap();
        assert_eq!((read("ca.pem"), read("tls.crt")), (ca.clone(), leaf.clone()));
        LiveCertificate::load(built_in(dir.path()), &At(NOW + 61 * DAY)).unwrap();
        assert_eq!(read("ca.pem"), ca);
        assert_ne!(read("tls.crt"), leaf);
    }

    #[test]
    fn a_leaf_from_a_time_when_the_clock_was_ahead_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let read = || fs::read(dir.path().join("tls.crt")).unwrap();
        LiveCertificate::load(built_in(dir.path()), &At(NOW + 300 * DAY)).unwrap();
        let ahead = read();
        LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap();
        let right = read();
        assert_ne!(right, ahead);
        LiveCertificate::load(built_in(dir.path()), &At(NOW - 10)).unwrap();
        assert_eq!(read(), right, "the clock may be off by a little");
    }

    #[test]
    fn a_ca_from_a_time_when_the_clock_was_ahead_is_valid_at_once_and_keeps_its_key_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let at = Timestamp::from_unix_seconds;
        LiveCertificate::load(built_in(dir.path()), &At(NOW + 300 * DAY)).unwrap();
        let (key, ahead) = (read("ca.key"), read("ca.pem"));
        let (_, end) = validity(&ahead).unwrap();
        LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap();
        assert_eq!(validity(&read("ca.pem")).unwrap(), (at(NOW - SKEW_SECONDS), end));
        assert_eq!(read("ca.key"), key);
        let renewed = read("ca.pem");
        for pinned in [&ahead, &renewed] {
            assert_vouches(pinned, &read("tls.crt"));
        }
        LiveCertificate::load(built_in(dir.path()), &At(NOW - 10)).unwrap();
        assert_eq!(read("ca.pem"), renewed, "the clock may be off by a little");
    }

    #[test]
    fn the_expiry_of_the_served_certificate_is_a_metric() {
        let dir = tempfile::tempdir().unwrap();
        let live = LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap();
        let line = format!("{EXPIRY} {}", NOW + LEAF_DAYS * DAY);
        let text = live.metrics();
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }

    /// As a client verifies that pinned this CA, at [`NOW`].
    fn assert_vouches(pinned: &str, leaf: &str) {
        use rustls::RootCertStore;
        use rustls::client::WebPkiServerVerifier;
        use rustls::client::danger::ServerCertVerifier as _;
        use rustls::pki_types::{ServerName, UnixTime};

        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pinned.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW.unsigned_abs()));
        let verified = verifier.build().unwrap().verify_server_cert(&leaf, &[], &name, &[], now);
        assert!(verified.is_ok(), "{verified:?}");
    }

    #[test]
    fn a_pinned_ca_that_expired_still_vouches_for_its_servers() {
        let ca = new_ca(Timestamp::from_unix_seconds(NOW - CA_DAYS * DAY - DAY)).unwrap();
        assert!(validity(&ca.chain).unwrap().1 < Timestamp::from_unix_seconds(NOW));
        let names = ["localhost".to_owned()];
        let (leaf, _) = issue(&ca, &names, Timestamp::from_unix_seconds(NOW)).unwrap();
        assert_vouches(&ca.chain, &leaf.chain);
    }

    #[test]
    fn a_ca_from_a_time_when_the_clock_stood_at_1970_is_issued_again_with_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        LiveCertificate::load(built_in(dir.path()), &At(60)).unwrap();
        let (key, expired) = (read("ca.key"), read("ca.pem"));
        LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap();
        let end = Timestamp::from_unix_seconds(NOW + CA_DAYS * DAY);
        assert_eq!((read("ca.key"), validity(&read("ca.pem")).unwrap().1), (key, end));
        assert_vouches(&expired, &read("tls.crt"));
    }

    #[test]
    fn a_damaged_key_is_a_coded_error() {
        let dir = tempfile::tempdir().unwrap();
        LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap();
        fs::write(dir.path().join("tls.key"), "garbage").unwrap();
        let error = LiveCertificate::load(built_in(dir.path()), &At(NOW)).unwrap_err();
        let coded = error.downcast_ref::<CodedError>().unwrap();
        assert_eq!(coded.code, Code::TlsMaterial);
        assert!(coded.context.contains("tls.key"));
    }
}
