//! Images of operating systems in the forms in which they are distributed.
//!
//! *What it is*: [`BootSource`] turns a path or a stream into a
//! [`BootImage`](tec_core::reference::BootImage), whose files are read as they are needed. Where
//! the format allows it, they are read in place; files in packed streams are copied to a temporary
//! file without a name. No file is held in memory.
//!
//! *What it is not*: a file system driver for a whole disk. Of a disk, the EFI system partition is read, and
//! `/boot` and the root if they are ext4; other file systems must be mounted.
//!
//! ```text
//! directory ─┬─────────────────────────────────────────────────► DirectoryImage
//!            ├─ ostree/deploy/… ─ one deployment ──────────────► DirectoryImage
//!            └─ oci-layout ─┐
//! tar, tar.gz, tar.zst ─────┼─ index.json ─ manifest ─ layers ─► files by path,
//!            └──────────────┴──────────────────────────────────► with links and whiteouts
//! registry ── manifest, parts by digest and range ─────────────► the same
//! program for firmware ────────────────────────────────────────► one file on a partition
//! disk ─ GPT or MBR ─ partitions ─ FAT, ext4 ──────────────────► files by path
//! ```
//!
//! # Security
//! Images may be hostile. Sizes, counts, depths, names and ratios are bounded; links and paths do
//! not leave the image; anything that programs interpret differently is an error, not a guess.
//! Errors name the file and the offset.

mod allowance;
mod blob;
mod bytes;
mod disk;
mod docker;
mod error;
mod ext4;
mod fat;
mod format;
mod layers;
mod mounted;
mod oci;
mod opening;
mod ostree;
mod parts;
mod program;
mod source;
mod table;
mod tar;
mod tree;
mod unpack;
mod unpack_error;
mod zstd;

pub use blob::BlobError;
pub use disk::{DiskError, Partition};
pub use error::InputError;
pub use layers::LayerError;
pub use oci::OciError;
pub(super) use ostree::Folders;
pub use parts::{Extent, ImageParts};
pub use source::{BootSource, OpenImage, SourceKind};
pub use table::TableError;
pub use tar::TarError;
pub use tree::TreeError;
pub use unpack_error::UnpackError;
