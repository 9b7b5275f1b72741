//! Hashes of a transcript that has base64 where rustls has a host name.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{SupportedCipherSuite, Tls13CipherSuite};

use super::hello;

/// The provider, with other hashes of transcripts; TLS 1.3 only.
pub(in super::super) fn provider(of: &CryptoProvider) -> Arc<CryptoProvider> {
    let suites = of.cipher_suites.iter().filter_map(SupportedCipherSuite::tls13);
    Arc::new(CryptoProvider {
        cipher_suites: suites.map(|suite| SupportedCipherSuite::Tls13(restoring(suite))).collect(),
        ..of.clone()
    })
}

/// The same suite with another hash. rustls wants it for good, so each is made once.
fn restoring(suite: &'static Tls13CipherSuite) -> &'static Tls13CipherSuite {
    type Made = Vec<(&'static Tls13CipherSuite, &'static Tls13CipherSuite)>;
    static MADE: Mutex<Made> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, restoring)) = made.iter().find(|(of, _)| std::ptr::eq(*of, suite)) {
        return restoring;
    }
    let common = CipherSuiteCommon {
        suite: suite.common.suite,
        hash_provider: Box::leak(Box::new(Restoring(suite.common.hash_provider))),
        confidentiality_limit: suite.common.confidentiality_limit,
    };
    let restoring = Box::leak(Box::new(Tls13CipherSuite {
        common,
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    }));
    made.push((suite, restoring));
    restoring
}

struct Restoring(&'static dyn Hash);

impl Hash for Restoring {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Transcript(self.0.start()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct Transcript(Box<dyn Context>);

impl Context for Transcript {
    fn fork_finish(&self) -> Output {
        self.0.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self(self.0.fork()))
    }

    fn finish(self: Box<Self>) -> Output {
        self.0.finish()
    }

    /// A transcript begins with the ClientHello, which is added whole.
    fn update(&mut self, data: &[u8]) {
        match hello::restored(data) {
            Some(restored) => self.0.update(&restored),
            None => self.0.update(data),
        }
    }
}
