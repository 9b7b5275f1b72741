//! What a registry requires before it answers (RFC 9110, 11.6.1; Docker Registry v2 authentication via
//! central service).

/// How the registry wants clients to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password with each call.
    Basic,
    /// A token that a different service issues.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// Reads one header `WWW-Authenticate` with one challenge, as registries send it.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let header = header.trim();
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest;
        while let Some((name, value, after)) = parameter(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
            rest = after;
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// `name="value"` or `name=value`, and what follows.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let text = text.trim_start_matches([' ', ',', '\t']);
    let (name, rest) = text.split_once('=')?;
    if let Some(quoted) = rest.strip_prefix('"') {
        let (value, after) = quoted.split_once('"')?;
        return Some((name.trim(), value.to_owned(), after));
    }
    let (value, after) = rest.split_once(',').unwrap_or((rest, ""));
    Some((name.trim(), value.trim().to_owned(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_registries_are_understood() {
        let header = r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#;
        assert_eq!(
            Challenge::parse(header),
            Some(Challenge::Bearer {
                realm: "https://auth.example/token".to_owned(),
                service: Some("r.example".to_owned()),
                scope: Some("repository:a/b:pull,push".to_owned()),
            })
        );
        assert_eq!(Challenge::parse("basic realm=x"), Some(Challenge::Basic));
        for none in ["", "Bearer", "Bearer service=x", "Negotiate", "Bearer realm=\"open"] {
            assert_eq!(Challenge::parse(none), None, "{none}");
        }
    }
}
