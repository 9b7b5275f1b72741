//! PEM files.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tec_core::code::Code;

use crate::exit::CodedError;

/// The certificates of a PEM file, as DER.
/// Errors: `TEC-T500` when the file cannot be read.
pub fn certificates(path: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let unusable = |error: rustls::pki_types::pem::Error| {
        CodedError::new(Code::TlsMaterial, format!("read {}: {error}", path.display()))
    };
    let mut list = Vec::new();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unusable)? {
        list.push(certificate.map_err(unusable)?.to_vec());
    }
    Ok(list)
}
