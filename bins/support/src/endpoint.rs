//! Servers on a command line.

use anyhow::{Context as _, anyhow};
use tec_core::endpoint::{Endpoint, ParseBaseUrlError};

/// Reads `URL` or `URL=CA-FILE`, where the file contains the certificate of the CA that vouches for the
/// server, PEM.
pub fn parse(text: &str) -> anyhow::Result<Endpoint> {
    let (url, ca) = match text.split_once('=') {
        Some((url, file)) => {
            let pem = std::fs::read_to_string(file);
            (url, pem.with_context(|| format!("cannot read {file}"))?)
        }
        None => (text, String::new()),
    };
    // On one line, because clap reports a wrong argument on one line.
    let url = url.parse().map_err(|error: ParseBaseUrlError| anyhow!("{url:?}: {error}"))?;
    Ok(Endpoint::new(url, ca))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_is_read_from_the_file_after_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, "PEM").unwrap();
        let endpoint = parse(&format!("https://kbs:8080={}", file.display())).unwrap();
        assert_eq!((endpoint.url.as_str(), endpoint.cert.as_str()), ("https://kbs:8080", "PEM"));
        assert_eq!(parse("http://kbs").unwrap().cert, "");
        assert!(parse("https://kbs=/no/such/file").is_err());
        assert!(parse("kbs:8080").is_err());
    }
}
