//! A tar stream as a layer.

use std::io;
use std::io::Read;
use std::sync::Arc;

use super::error::LayerError;
use crate::compute::input::bytes::{Bytes, Window};
use crate::compute::input::table::Table;
use crate::compute::input::tar::{Archive, EndMark, Item, ItemKind};
use crate::compute::input::unpack::{Source, Stream};

/// A tar stream.
#[derive(Debug)]
pub(in crate::compute::input) enum Layer {
    /// Stored in a file as is; its files are read in place.
    Plain(Arc<Bytes>),
    /// Unpacked from another stream; its files are copied to a temporary file.
    Stream(Box<dyn Source>, EndMark),
    /// A table lists its contents; files are fetched one by one.
    Table(Table),
}

impl Layer {
    /// Whether the content of an entry is lost unless it is copied while the stream is read.
    pub(super) fn must_copy(&self, item: &Item) -> bool {
        matches!(self, Self::Stream(..)) && item.kind == ItemKind::File
    }

    /// Reports each entry, with its content, and reads the stream to its end.
    pub(super) fn read(
        &self,
        mut each: impl FnMut(&Item, &mut dyn Read) -> Result<(), LayerError>,
    ) -> Result<(), LayerError> {
        match self {
            Self::Plain(bytes) => {
                let window = bytes.window(0..bytes.size());
                let mut archive = Archive::new(window, EndMark::Required);
                while let Some(item) = archive.next(Window::skip).map_err(LayerError::Tar)? {
                    each(&item, &mut archive.content())?;
                }
                Ok(())
            }
            Self::Stream(source, end) => {
                let reader = source.open().map_err(LayerError::Open)?;
                let mut archive = Archive::new(reader, *end);
                while let Some(item) = archive.next(skip).map_err(LayerError::Tar)? {
                    each(&item, &mut archive.content())?;
                }
                let mut rest = archive.into_reader();
                io::copy(&mut rest, &mut io::sink()).map_err(LayerError::End)?;
                Ok(())
            }
            Self::Table(table) => {
                let mut items = table.items();
                items.try_for_each(|item| each(item, &mut io::empty()))
            }
        }
    }
}

fn skip(reader: &mut Stream, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut reader.take(count), &mut io::sink())?;
    if skipped < count {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}
