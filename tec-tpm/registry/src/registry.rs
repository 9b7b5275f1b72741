//! Finds images: tries all places of an image, and retries while that may help.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use rustls::crypto::CryptoProvider;
use tec_core::digest::Sha256Digest;
use tec_core::port::Entropy;

use crate::document::{Descriptor, Document, Platform};
use crate::error::RegistryError;
use crate::mirror::{Mirror, places};
use crate::options::RegistryOptions;
use crate::reference::{ImageReference, Place};
use crate::tag::TagReference;
use crate::transport::{Ask, Transport, read};

/// Registries and their mirrors.
#[derive(Debug)]
pub struct Registry {
    transport: Transport,
    mirrors: Vec<Mirror>,
    platform: Platform,
    entropy: Arc<dyn Entropy>,
}

/// Maximum size of a manifest or index: what registries accept (Distribution Specification 1.1, "Pushing
/// Manifests").
pub(crate) const MAX_MANIFEST: u64 = 4 << 20;
/// Maximum size of a configuration; histories and labels take a few KiB.
pub(crate) const MAX_CONFIG: u64 = 8 << 20;
/// Maximum size of an image, packed; those of operating systems have a few GiB.
pub(crate) const MAX_IMAGE: u64 = 64 << 30;
/// Number of rounds over all places, and the longest wait after the first one.
const ROUNDS: u32 = 4;
const BASE_WAIT: Duration = Duration::from_millis(500);

impl Registry {
    /// A reader of registries, over TLS of `provider`; `entropy` spreads its retries.
    pub fn new(
        mut options: RegistryOptions,
        provider: &Arc<CryptoProvider>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, RegistryError> {
        Ok(Self {
            transport: Transport::new(&mut options, provider)?,
            mirrors: options.mirrors,
            platform: options.platform,
            entropy,
        })
    }

    /// The image that a tag points to now. Mirrors are asked first.
    ///
    /// # Security
    /// Only the registry says where a tag points to, and it may say anything.
    pub async fn resolve(&self, reference: &TagReference) -> Result<ImageReference, RegistryError> {
        let ask = Ask::Manifest(reference.tag().to_owned());
        let response = self.answer(reference.place(), &ask).await?;
        let text = small(response, MAX_MANIFEST).await?;
        Document::parse(&text)
            .map_err(|detail| malformed("the manifest", reference.tag(), detail))?;
        Ok(reference.with_digest(Sha256Digest::of(&text)))
    }

    /// The manifest for the platform.
    pub(crate) async fn manifest(
        &self,
        reference: &ImageReference,
    ) -> Result<(Vec<u8>, Descriptor, Vec<Descriptor>), RegistryError> {
        let mut digest = reference.digest();
        let mut is_nested = false;
        loop {
            let ask = Ask::Manifest(format!("sha256:{digest}"));
            let text = self.document(reference, &ask, digest, MAX_MANIFEST).await?;
            let document = Document::parse(&text);
            let document = document
                .map_err(|detail| malformed("the manifest", &format!("sha256:{digest}"), detail))?;
            match document {
                Document::Manifest { config, layers } => return Ok((text, config, layers)),
                Document::Index(_) if is_nested => {
                    let detail = "an index lies in another one".to_owned();
                    return Err(malformed("the manifest", &format!("sha256:{digest}"), detail));
                }
                Document::Index(manifests) => {
                    let chosen = self.choose(reference, &manifests)?;
                    digest = parsed("the digest in the index", &chosen.digest)?;
                    is_nested = true;
                }
            }
        }
    }

    fn choose<'a>(
        &self,
        reference: &ImageReference,
        manifests: &'a [Descriptor],
    ) -> Result<&'a Descriptor, RegistryError> {
        let fitting = manifests.iter().filter(|m| m.is_for(&self.platform));
        match fitting.collect::<Vec<_>>().as_slice() {
            [only] => Ok(only),
            several => Err(RegistryError::Platform {
                reference: reference.to_string(),
                platform: self.platform.to_string(),
                count: several.len(),
                found: manifests.iter().take(32).map(Descriptor::platform).collect(),
            }),
        }
    }

    /// A small document with this digest. A document that is altered at one place may be intact at another.
    pub(crate) async fn document(
        &self,
        reference: &ImageReference,
        ask: &Ask,
        digest: Sha256Digest,
        limit: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut attempts = self.attempts(reference.place());
        loop {
            let place = attempts.next().await?;
            match self.whole(&place, ask, digest, limit).await {
                Ok(text) => return Ok(text),
                Err(error) => attempts.failed(&place, error),
            }
        }
    }

    async fn whole(
        &self,
        place: &Place,
        ask: &Ask,
        digest: Sha256Digest,
        limit: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let response = self.transport.get(place, ask).await?;
        let url = response.url().to_string();
        let url = url.split('?').next().unwrap_or_default();
        let text = read(response, url, limit).await?;
        if Sha256Digest::of(&text) != digest {
            let url = url.to_owned();
            return Err(RegistryError::Altered { url, digest });
        }
        Ok(text)
    }

    /// The first answer from the origin or one of its mirrors; of a blob, from the beginning of the range on.
    /// Nothing in it is verified.
    pub(crate) async fn answer(&self, origin: Place, ask: &Ask) -> Result<Response, RegistryError> {
        let mut attempts = self.attempts(origin);
        loop {
            let place = attempts.next().await?;
            match self.transport.get(&place, ask).await {
                Ok(response) => return Ok(response),
                Err(error) => attempts.failed(&place, error),
            }
        }
    }

    fn attempts(&self, origin: Place) -> Attempts<'_> {
        Attempts {
            registry: self,
            places: places(&self.mirrors, origin),
            index: 0,
            round: 0,
            last: None,
            is_worth_it: false,
        }
    }

    /// A random time between half and all of an exponentially growing delay.
    fn wait(&self, round: u32) -> Duration {
        let mut random = [0; 2];
        self.entropy.fill(&mut random);
        let longest = BASE_WAIT.saturating_mul(1 << round.min(8));
        let part = f64::from(u16::from_le_bytes(random)) / f64::from(u16::MAX);
        longest.mul_f64(0.5 + part / 2.0)
    }
}

/// The places of an image in their order, until one answers. A call that may succeed later is retried after a
/// delay. Of several errors, the last one is returned, which is the registry's own.
struct Attempts<'a> {
    registry: &'a Registry,
    places: Vec<Place>,
    /// Index of the next place.
    index: usize,
    /// Completed rounds.
    round: u32,
    last: Option<RegistryError>,
    is_worth_it: bool,
}

impl Attempts<'_> {
    /// The place to try next.
    async fn next(&mut self) -> Result<Place, RegistryError> {
        if self.index == self.places.len() {
            self.round += 1;
            let is_end = !self.is_worth_it || self.round == ROUNDS;
            if let Some(error) = self.last.take().filter(|_| is_end) {
                return Err(error);
            }
            tokio::time::sleep(self.registry.wait(self.round)).await;
            (self.index, self.is_worth_it) = (0, false);
        }
        let place = self.places.get(self.index).cloned();
        self.index += 1;
        place.ok_or_else(|| malformed("the reference", "", "it names no place".to_owned()))
    }

    fn failed(&mut self, place: &Place, error: RegistryError) {
        let text = tec_core::port::chain(&error);
        tracing::debug!(host = place.host, error = text, "no answer from here");
        self.is_worth_it |= error.is_retryable();
        self.last = Some(error);
    }
}

/// Reads a small answer. Queries of its URL may contain signatures.
pub(crate) async fn small(response: Response, limit: u64) -> Result<Vec<u8>, RegistryError> {
    let url = response.url().to_string();
    read(response, url.split('?').next().unwrap_or_default(), limit).await
}

pub(crate) fn malformed(what: &'static str, digest: &str, detail: String) -> RegistryError {
    RegistryError::Document { what, digest: digest.chars().take(256).collect(), detail }
}

/// Documents are named by SHA-256 digests, whatever digests layers have.
pub(crate) fn parsed(what: &'static str, digest: &str) -> Result<Sha256Digest, RegistryError> {
    let hex = digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
    hex.ok_or_else(|| malformed(what, digest, "it is not a SHA-256 digest".to_owned()))
}
