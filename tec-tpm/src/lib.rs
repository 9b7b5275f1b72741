//! tec-tpm
