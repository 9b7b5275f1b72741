//! What an OpenSearch node reads before it starts, and how to change a password while it runs.
//!
//! *What it is*: `opensearch.yml`, JVM options, the log format, and the files of the security
//! plugin: all ten types, since the plugin never becomes ready with fewer; users with hashes only; three
//! roles: full access, write telemetry, read telemetry. The files are JSON, which is valid YAML.
//!
//! The plugin reads its files only when its index is first created. After that, changes go through its API,
//! with the certificate of [`ADMIN_DN`]: [`login`] checks a password, [`new_hash`] sets a new one, and
//! [`roles`] updates roles and mappings to those of this release.

mod security;

use core::net::SocketAddr;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tec_core::secret::{SecretArray, SecretBytes};

/// Cost of bcrypt: the value that OpenSearch's own tools use.
pub const BCRYPT_COST: u32 = 12;
/// Maximum length of a password that bcrypt considers, in bytes.
const BCRYPT_MAX: usize = 72;
/// Distinguished name of the certificate that may do everything.
pub const ADMIN_DN: &str = "CN=opensearch-admin";

/// A password that cannot be hashed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// It is too long: bcrypt would ignore the rest.
    #[error("a password of {0} bytes is too long for bcrypt")]
    TooLong(usize),
    /// It is empty: anyone could log in.
    #[error("a password must not be empty")]
    Empty,
    /// bcrypt itself refused.
    #[error("bcrypt refused the password")]
    Bcrypt,
}

/// Hashes a password. `cost` is the logarithm of the work; see [`BCRYPT_COST`].
pub fn hash(
    password: &SecretBytes,
    salt: &SecretArray<16>,
    cost: u32,
) -> Result<String, HashError> {
    match password.len() {
        0 => return Err(HashError::Empty),
        length if length > BCRYPT_MAX => return Err(HashError::TooLong(length)),
        _ => {}
    }
    let parts = bcrypt::hash_with_salt(
        password.expose("to hash it for OpenSearch"),
        cost,
        *salt.expose("to hash a password"),
    );
    parts
        .map(|parts| parts.format_for_version(bcrypt::Version::TwoB))
        .map_err(|_| HashError::Bcrypt)
}

/// Path that returns the logged-in user: status 200 if the password is correct, 401 if it is not.
pub const LOGIN: &str = "/_plugins/_security/authinfo";

/// The header of a login.
pub fn login(user: &str, password: &SecretBytes) -> SecretBytes {
    let mut header = b"Basic ".to_vec();
    header.extend_from_slice(credentials(user, password).expose("the header has a scheme, too"));
    SecretBytes::new(header)
}

/// The header of a login without its scheme.
pub fn credentials(user: &str, password: &SecretBytes) -> SecretBytes {
    let mut pair = format!("{user}:").into_bytes();
    pair.extend_from_slice(password.expose("to log in at OpenSearch"));
    let pair = SecretBytes::new(pair);
    SecretBytes::new(STANDARD.encode(pair.expose("to encode it")).into_bytes())
}

/// Path and body of the call that sets a new password. It takes effect immediately, and the old password is
/// no longer valid. Only the certificate of [`ADMIN_DN`] may request it.
pub fn new_hash(user: &str, hash: &str) -> (String, Value) {
    (
        format!("/_plugins/_security/api/internalusers/{user}"),
        json!([{"op": "add", "path": "/hash", "value": hash}]),
    )
}

/// Paths and bodies (PUT) that make this release's roles and mappings take effect in a cluster whose files an
/// older release wrote. Only the certificate of [`ADMIN_DN`] may request them.
pub fn roles() -> Vec<(String, Value)> {
    security::changes()
}

/// Hashes of the passwords of the three users.
#[derive(Clone, Debug)]
pub struct Hashes {
    /// Full access, except to the reserved parts of the security configuration.
    pub admin: String,
    /// Writes telemetry, and reads nothing.
    pub telemetry: String,
    /// Reads telemetry, and writes nothing.
    pub viewer: String,
}

/// Other settings of a node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the cluster.
    pub cluster: String,
    /// Data directory.
    pub data: String,
    /// Log directory.
    pub logs: String,
    /// Address where clients connect.
    pub listen: SocketAddr,
    /// Address where other nodes connect.
    pub transport: SocketAddr,
    /// Heap of the JVM, in mebibytes.
    pub heap: u32,
    /// Distinguished names of the nodes.
    pub nodes_dn: Vec<String>,
}

/// Every file below the configuration directory, by path. None of them contains a password.
pub fn files(node: &Node, hashes: &Hashes) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = security::files(hashes)
        .into_iter()
        .map(|(name, text)| (format!("opensearch-security/{name}.yml"), text))
        .collect();
    files.insert("opensearch.yml".to_owned(), pretty(&settings(node)));
    files.insert("jvm.options".to_owned(), jvm_options(node.heap));
    files.insert("log4j2.properties".to_owned(), LOG.to_owned());
    files
}

/// Logs everything to standard output, where Kubernetes expects it.
const LOG: &str = "\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
";

/// A node that runs out of memory exits instead of answering partially.
fn jvm_options(heap: u32) -> String {
    format!(
        "-Xms{heap}m\n-Xmx{heap}m\n-XX:+UseG1GC\n-XX:+ExitOnOutOfMemoryError\n\
         -Djava.io.tmpdir=${{OPENSEARCH_TMPDIR}}\n\
         -Djava.util.concurrent.ForkJoinPool.common.threadFactory=\
         org.opensearch.secure_sm.SecuredForkJoinWorkerThreadFactory\n\
         18-:-Djava.security.manager=allow\n"
    )
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn settings(node: &Node) -> Value {
    json!({
        "cluster.name": node.cluster, "discovery.type": "single-node",
        "path.data": node.data, "path.logs": node.logs,
        "http.host": node.listen.ip(), "http.port": node.listen.port(),
        "transport.host": node.transport.ip(), "transport.port": node.transport.port(),
        "plugins.security.ssl.transport.pemcert_filepath": "certs/tls.crt",
        "plugins.security.ssl.transport.pemkey_filepath": "certs/tls.key",
        "plugins.security.ssl.transport.pemtrustedcas_filepath": "certs/ca.crt",
        "plugins.security.ssl.transport.enforce_hostname_verification": false,
        "plugins.security.ssl.http.enabled": true,
        "plugins.security.ssl.http.pemcert_filepath": "certs/tls.crt",
        "plugins.security.ssl.http.pemkey_filepath": "certs/tls.key",
        "plugins.security.ssl.http.pemtrustedcas_filepath": "certs/ca.crt",
        "plugins.security.ssl.http.clientauth_mode": "OPTIONAL",
        "plugins.security.ssl.http.enabled_protocols": ["TLSv1.3"],
        // The node keeps checking the files, and loads new ones while it runs.
        "plugins.security.ssl.certificates_hot_reload.enabled": true,
        "plugins.security.authcz.admin_dn": [ADMIN_DN],
        "plugins.security.nodes_dn": node.nodes_dn,
        "plugins.security.restapi.roles_enabled": ["all_access"],
        "plugins.security.allow_default_init_securityindex": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> BTreeMap<String, String> {
        let node = Node {
            cluster: "tec".to_owned(),
            data: "/data".to_owned(),
            logs: "/logs".to_owned(),
            listen: "127.0.0.1:9200".parse().unwrap(),
            transport: "127.0.0.1:9300".parse().unwrap(),
            heap: 512,
            nodes_dn: vec!["CN=opensearch.platform.svc".to_owned()],
        };
        let hash = |text: &str| text.to_owned();
        let hashes = Hashes {
            admin: hash("$2b$12$a"),
            telemetry: hash("$2b$12$t"),
            viewer: hash("$2b$12$v"),
        };
        files(&node, &hashes)
    }

    #[test]
    fn all_ten_types_are_written_since_fewer_never_become_ready() {
        let files = written();
        let types: std::collections::BTreeSet<String> = files
            .iter()
            .filter(|(path, _)| path.starts_with("opensearch-security/"))
            .map(|(_, text)| {
                let file: Value = serde_json::from_str(text).unwrap();
                file["_meta"]["type"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(types.len(), 10);
        assert_eq!(files, written(), "equal values give equal bytes");
    }

    #[test]
    fn a_login_is_written_as_http_wants_it_and_not_printed() {
        // RFC 7617, section 2.
        let header = login("Aladdin", &SecretBytes::new(b"open sesame".to_vec()));
        assert_eq!(header.expose("test"), b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn a_hash_is_of_the_form_that_opensearch_takes_and_of_the_whole_password() {
        let salt = SecretArray::new([7; 16]);
        let password = SecretBytes::new(b"correct horse".to_vec());
        // The lowest cost that bcrypt accepts, for a fast test.
        let hashed = hash(&password, &salt, 4).unwrap();
        assert!(hashed.starts_with("$2b$04$"), "{hashed}");
        assert_eq!(bcrypt::verify("correct horse", &hashed).ok(), Some(true));
        assert_eq!(bcrypt::verify("correct horsf", &hashed).ok(), Some(false));
        let long = SecretBytes::new(vec![b'x'; 73]);
        assert_eq!(hash(&long, &salt, 4), Err(HashError::TooLong(73)));
        assert_eq!(hash(&SecretBytes::new(vec![]), &salt, 4), Err(HashError::Empty));
    }
}
