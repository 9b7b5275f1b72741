//! Copies of files that cannot be read in place.

use std::collections::BTreeMap;
use std::io;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::error::LayerError;
use crate::compute::input::bytes::{Bytes, Window};
use crate::compute::input::tar::Item;

/// Copies of files in a temporary file, which is created when it is needed.
#[derive(Default)]
pub(super) struct Kept {
    bytes: Mutex<Option<Arc<Bytes>>>,
    /// By layer and offset.
    ranges: Mutex<BTreeMap<(usize, u64), Range<u64>>>,
}

/// Maximum number of bytes that are kept in the temporary file.
const MAX_KEPT: u64 = 16 << 30;

impl Kept {
    /// Copies the content of an entry.
    pub(super) fn copy(
        &self,
        item: &Item,
        content: &mut dyn Read,
    ) -> Result<Range<u64>, LayerError> {
        let copied = self.bytes().and_then(|b| b.append(content, MAX_KEPT));
        copied.map_err(|source| LayerError::Keep {
            offset: item.offset,
            path: item.path.clone().unwrap_or_default(),
            source,
        })
    }

    /// Adds copies from a layer that was read to its end, so that its digest is known to be right.
    pub(super) fn add(&self, layer: usize, copies: Vec<(u64, Range<u64>)>) {
        let copies = copies.into_iter().map(|(at, range)| ((layer, at), range));
        lock(&self.ranges).extend(copies);
    }

    /// The copy of the entry whose content lies at `offset` in the stream.
    pub(super) fn find(&self, layer: usize, offset: u64) -> io::Result<Option<Window>> {
        let range = lock(&self.ranges).get(&(layer, offset)).cloned();
        match range {
            Some(range) => Ok(Some(self.bytes()?.window(range))),
            None => Ok(None),
        }
    }

    fn bytes(&self) -> io::Result<Arc<Bytes>> {
        let mut bytes = lock(&self.bytes);
        if let Some(bytes) = bytes.as_ref() {
            return Ok(Arc::clone(bytes));
        }
        let made = Bytes::temporary()?;
        *bytes = Some(Arc::clone(&made));
        Ok(made)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
