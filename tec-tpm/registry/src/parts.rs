//! Reads layers as they arrive.

use std::io;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use reqwest::{Response, StatusCode};
use tec_tpm::compute::input::ImageParts;
use tokio::runtime::Handle;

use crate::reference::ImageReference;
use crate::registry::Registry;
use crate::transport::{Ask, unreachable};

/// Layers of one image.
#[derive(Clone, Debug)]
pub(crate) struct RemoteParts {
    registry: Arc<Registry>,
    reference: ImageReference,
    runtime: Handle,
}

impl RemoteParts {
    pub(crate) fn new(
        registry: &Arc<Registry>,
        reference: &ImageReference,
        runtime: &Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            registry: Arc::clone(registry),
            reference: reference.clone(),
            runtime: runtime.clone(),
        })
    }

    fn ask(&self, digest: &str, range: Range<u64>) -> io::Result<(Response, u64)> {
        let start = range.start;
        let ask = Ask::Blob(digest.to_owned(), range);
        let response = self
            .runtime
            .block_on(self.registry.answer(self.reference.place(), &ask))
            .map_err(io::Error::other)?;
        // A server may send all of it, whatever was asked for (RFC 9110, 14.2).
        let surplus = match response.status() {
            StatusCode::PARTIAL_CONTENT => 0,
            _ => start,
        };
        Ok((response, surplus))
    }
}

impl ImageParts for RemoteParts {
    fn open(&self, digest: &str, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let (response, surplus) = self.ask(digest, range.clone())?;
        Ok(Box::new(Reader {
            parts: self.clone(),
            digest: digest.to_owned(),
            left: range,
            response,
            surplus,
            buffer: Bytes::new(),
            resumed: 0,
        }))
    }
}

/// Maximum number of interrupted connections per layer.
const MAX_RESUMED: u32 = 8;

/// A blob as it arrives. After an interruption it continues where it stopped: the digest covers all
/// of it anyway.
struct Reader {
    parts: RemoteParts,
    digest: String,
    /// The range that is still to come.
    left: Range<u64>,
    response: Response,
    /// Number of bytes before the requested ones.
    surplus: u64,
    buffer: Bytes,
    resumed: u32,
}

impl Reader {
    fn refill(&mut self) -> io::Result<()> {
        while self.buffer.is_empty() && self.left.start < self.left.end {
            match self.parts.runtime.block_on(self.response.chunk()) {
                Ok(Some(mut chunk)) => {
                    let dropped = self.surplus.min(chunk.len() as u64);
                    self.surplus -= dropped;
                    // At most the length of the chunk.
                    chunk.advance(usize::try_from(dropped).unwrap_or(chunk.len()));
                    self.buffer = chunk;
                }
                Ok(None) => self.resume(None)?,
                Err(error) => self.resume(Some(error))?,
            }
        }
        Ok(())
    }

    fn resume(&mut self, error: Option<reqwest::Error>) -> io::Result<()> {
        self.resumed += 1;
        if self.resumed > MAX_RESUMED {
            let url = self.response.url().clone();
            return Err(error.map_or_else(
                || io::ErrorKind::UnexpectedEof.into(),
                |error| io::Error::other(unreachable(url.path(), error)),
            ));
        }
        tracing::debug!(offset = self.left.start, "a layer broke off and is taken up again");
        (self.response, self.surplus) = self.parts.ask(&self.digest, self.left.clone())?;
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.refill()?;
        let left = usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX);
        let count = buffer.len().min(self.buffer.len()).min(left);
        if let Some(free) = buffer.get_mut(..count) {
            self.buffer.copy_to_slice(free);
        }
        self.left.start += count as u64;
        Ok(count)
    }
}
