//! Init-data (Trustee, verifiers): its digest, and its claims for policies.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::report_data::HashAlgorithm;
use crate::wire::InitData;

/// Largest init-data text.
const MAX_TEXT: usize = 256 * 1024;

#[derive(Deserialize)]
struct Document {
    #[expect(dead_code, reason = "must be there, any value is fine")]
    version: String,
    algorithm: String,
    #[serde(default)]
    data: std::collections::BTreeMap<String, String>,
}

/// What policies and verifiers see of init-data.
pub(super) struct Parsed {
    /// Digest over the raw text.
    pub(super) digest: Vec<u8>,
    /// The table `data`; documents that are known to be TOML are parsed.
    pub(super) claims: Value,
}

/// Parses init-data; `None` if its format or algorithm is not supported.
pub(super) fn parse(init_data: &InitData) -> Option<Parsed> {
    if init_data.format != "toml" || init_data.body.len() > MAX_TEXT {
        return None;
    }
    let document: Document = toml::from_str(&init_data.body).ok()?;
    let algorithm = HashAlgorithm::by_name(&document.algorithm)?;
    let mut claims = Map::new();
    for (name, text) in document.data {
        let value = if matches!(name.as_str(), "aa.toml" | "cdh.toml") {
            let table: toml::Table = text.parse().ok()?;
            serde_json::to_value(table).ok()?
        } else {
            Value::String(text)
        };
        claims.insert(name, value);
    }
    Some(Parsed {
        digest: algorithm.digest(init_data.body.as_bytes()),
        claims: Value::Object(claims),
    })
}

#[cfg(test)]
mod tests {
    use sha2::Digest as _;

    use super::*;

    fn init_data(format: &str, body: &str) -> InitData {
        InitData { format: format.to_owned(), body: body.to_owned() }
    }

    #[test]
    fn the_digest_is_over_the_raw_text() {
        let body = "version = \"0.1.0\"\nalgorithm = \"sha256\"\n[data]\nuuid = \"7c9e\"\n\
            \"aa.toml\" = \"a = 1\"\n";
        let parsed = parse(&init_data("toml", body)).unwrap();
        assert_eq!(parsed.digest, sha2::Sha256::digest(body).to_vec());
        assert_eq!(parsed.claims["uuid"], "7c9e");
        assert_eq!(parsed.claims["aa.toml"]["a"], 1);
    }

    #[test]
    fn other_formats_and_algorithms_are_refused() {
        let good = "version = \"0.1.0\"\nalgorithm = \"sha256\"\n";
        assert!(parse(&init_data("json", good)).is_none());
        assert!(parse(&init_data("toml", &good.replace("sha256", "sm3"))).is_none());
        assert!(parse(&init_data("toml", "algorithm = 1")).is_none());
    }
}
