//! The configuration of a NATS server, as text.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::PublicKey;
use super::jwt::KEPT_BYTES;

/// How long a client may take to authenticate, in seconds. The default of two is too short for a
/// nonce that the vault signs.
const AUTHORIZATION_TIMEOUT: u32 = 5;
/// What the streams of a server may reserve, in bytes: the stream of events, and some more.
const STORE_BYTES: u64 = KEPT_BYTES + KEPT_BYTES / 4;
/// How long a stopping server takes to disconnect its clients.
const LAME_DUCK: &str = "30s";

/// Where the server looks up accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolver {
    /// In the configuration; a change needs a reload.
    Memory,
    /// In a directory, pushed by users of the system account.
    Full {
        /// The directory.
        dir: String,
    },
}

/// Where a server stores events, and the servers that it shares them with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Name of the server, unique among all servers.
    pub name: String,
    /// JetStream directory.
    pub dir: String,
    /// Address where the other servers connect.
    pub cluster: SocketAddr,
    /// Host and port of every server, this one included; none if it is alone.
    pub routes: Vec<String>,
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address where clients connect.
    pub listen: SocketAddr,
    /// Loopback address where the monitor listens.
    pub monitor: Option<SocketAddr>,
    /// The operator's JWT.
    pub operator: String,
    /// The system account.
    pub system_account: PublicKey,
    /// JWTs of accounts that are known from the start, including the system account.
    pub accounts: BTreeMap<PublicKey, String>,
    /// Where it looks up other accounts.
    pub resolver: Resolver,
    /// Where it stores events; `None` if it stores none.
    pub storage: Option<Storage>,
    /// Path of the file with the server's process ID, used to make it reload its certificate.
    pub pid_file: String,
    /// Path of the server's certificate.
    pub cert_file: String,
    /// Path of its key.
    pub key_file: String,
    /// Path of the CA certificates that client certificates must chain to.
    pub ca_file: String,
}

/// A value that is not safe to write into the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not a JWT.
    #[error("the JWT of {0} is malformed")]
    Jwt(String),
    /// A path with a quote, a backslash or a control character.
    #[error("the path {0:?} cannot be written into a configuration")]
    Path(String),
    /// A server name or route with characters that names do not have.
    #[error("{0:?} is not the name or address of a server")]
    Name(String),
    /// The system account is missing; the server would stop immediately.
    #[error("the JWT of the system account is missing")]
    NoSystemAccount,
}

impl ServerConfig {
    /// The file. Equal values give equal bytes.
    ///
    /// # Errors
    /// [`ConfigError`] if a value is not plainly a JWT, a path or a name.
    pub fn render(&self) -> Result<String, ConfigError> {
        if !self.accounts.contains_key(&self.system_account) {
            return Err(ConfigError::NoSystemAccount);
        }
        let mut text = format!("# Written by services-init.\nlisten: \"{}\"\n", self.listen);
        if let Some(monitor) = self.monitor {
            line(&mut text, format_args!("http: \"{monitor}\""));
        }
        line(&mut text, format_args!("operator: \"{}\"", jwt("the operator", &self.operator)?));
        line(&mut text, format_args!("system_account: {}", self.system_account));
        line(&mut text, format_args!("pid_file: \"{}\"", path(&self.pid_file)?));
        self.resolver(&mut text)?;
        line(&mut text, format_args!("tls {{\n{}  verify: true\n  timeout: 5\n}}", self.tls()?));
        self.storage(&mut text)?;
        line(&mut text, format_args!("authorization {{ timeout: {AUTHORIZATION_TIMEOUT} }}"));
        line(&mut text, format_args!("lame_duck_duration: \"{LAME_DUCK}\""));
        Ok(text)
    }

    fn resolver(&self, text: &mut String) -> Result<(), ConfigError> {
        match &self.resolver {
            Resolver::Memory => line(text, format_args!("resolver: MEMORY")),
            Resolver::Full { dir } => line(
                text,
                format_args!(
                    "resolver {{\n  type: full\n  dir: \"{}\"\n  allow_delete: false\n  \
                     interval: \"2m\"\n  timeout: \"2s\"\n}}",
                    path(dir)?
                ),
            ),
        }
        line(text, format_args!("resolver_preload {{"));
        for (key, account) in &self.accounts {
            line(text, format_args!("  {key}: \"{}\"", jwt(&key.to_string(), account)?));
        }
        line(text, format_args!("}}"));
        Ok(())
    }

    fn tls(&self) -> Result<String, ConfigError> {
        let (cert, key, ca) = (path(&self.cert_file)?, path(&self.key_file)?, path(&self.ca_file)?);
        // No minimum version: servers before 2.10 do not know the field and refuse the file.
        // Clients of this project only speak TLS 1.3.
        Ok(format!("  cert_file: \"{cert}\"\n  key_file: \"{key}\"\n  ca_file: \"{ca}\"\n"))
    }

    fn storage(&self, text: &mut String) -> Result<(), ConfigError> {
        let Some(storage) = &self.storage else {
            return Ok(());
        };
        line(text, format_args!("server_name: \"{}\"", name(&storage.name)?));
        // Otherwise the limit is what is free when the server starts, and stays that low.
        let limit = format_args!("max_file_store: {STORE_BYTES}");
        let dir = path(&storage.dir)?;
        line(text, format_args!("jetstream {{\n  store_dir: \"{dir}\"\n  {limit}\n}}"));
        if storage.routes.is_empty() {
            return Ok(());
        }
        line(text, format_args!("cluster {{\n  name: \"tec\"\n  listen: \"{}\"", storage.cluster));
        // Whoever connects here speaks for every account: only servers have a certificate that
        // names one of the routes.
        let known = "  verify_cert_and_check_known_urls: true\n  timeout: 5\n  }\n  routes: [";
        line(text, format_args!("  tls {{\n{}{known}", self.tls()?));
        for route in &storage.routes {
            line(text, format_args!("    \"tls://{}\"", name(route)?));
        }
        line(text, format_args!("  ]\n}}"));
        Ok(())
    }
}

/// Letters, digits, and the separators used in names and addresses.
fn name(text: &str) -> Result<&str, ConfigError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':');
    if !text.is_empty() && text.chars().all(fits) {
        Ok(text)
    } else {
        Err(ConfigError::Name(text.to_owned()))
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

/// Three parts of base64url and nothing else.
fn jwt<'a>(whose: &str, text: &'a str) -> Result<&'a str, ConfigError> {
    let is_part = |part: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !part.is_empty() && part.chars().all(fits)
    };
    if text.split('.').count() == 3 && text.split('.').all(is_part) {
        Ok(text)
    } else {
        Err(ConfigError::Jwt(whose.to_owned()))
    }
}

fn path(text: &str) -> Result<&str, ConfigError> {
    let is_bad = |c: char| c.is_control() || matches!(c, '"' | '\\' | '$');
    if text.is_empty() || text.chars().any(is_bad) {
        Err(ConfigError::Path(text.to_owned()))
    } else {
        Ok(text)
    }
}
