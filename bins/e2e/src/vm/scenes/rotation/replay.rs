//! The disk at each write of a whole rotation: what a power failure could have left of it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use tec_core::port::Entropy;

use super::world::{World, opening};
use crate::qemu::{Entry, Write, WriteLog, disk};
use crate::vm::node;

/// Size of a LUKS2 header with its key slots, as cryptsetup creates it.
const HEADER: u64 = 16 << 20;
/// The two copies of its metadata. cryptsetup replaces a damaged one when it reads the other.
const COPIES: usize = 32 << 10;
/// Random outcomes that are tried at each write, besides the one with all writes on the disk.
const OUTCOMES: u32 = 2;

/// What was found.
#[derive(Debug, Default)]
struct Found {
    writes: u32,
    /// Number of outcomes that the old key alone, both, or the new key alone opens.
    old: u32,
    both: u32,
    new: u32,
    /// The last write at which the new key does not open the disk, in some outcome.
    last_without_new: usize,
    /// The first write at which the old key does not.
    first_without_old: Option<usize>,
}

impl World<'_> {
    /// Opens the disk at each write to its header since the machine was switched on.
    ///
    /// # Errors
    /// There is no moment at which the server can release the new key instead of the old one.
    pub(super) fn replay(&self) -> anyhow::Result<String> {
        let [old, new] = self.keys.as_slice() else {
            anyhow::bail!("no rotation was finished");
        };
        let log = WriteLog::read(&self.node.write_log())?;
        let path = self.node.disk_before().with_extension("replay");
        node::copy_root(&self.node.disk_before(), &path).context("cannot copy the root")?;
        let mut header = Header::of(&path)?;
        let mut found = Found::default();
        for (number, entry) in log.entries().iter().enumerate() {
            let write = match entry {
                Entry::Flush => {
                    header.flush()?;
                    continue;
                }
                Entry::Write(write) if is_in_header(write) => write,
                Entry::Write(_) => continue,
            };
            header.unflushed.push(write);
            found.writes += 1;
            for outcome in 0..=OUTCOMES {
                header.fail((outcome > 0).then_some(&self.entropy))?;
                let opens = |key| {
                    let opening = opening(&path, key);
                    opening.with_context(|| format!("outcome {outcome} of write {number}"))
                };
                found.add(number, [opens(old)?.is_some(), opens(new)?.is_some()])?;
            }
        }
        std::fs::remove_file(&path).context("cannot remove the copy of the root")?;
        found.check(&log)
    }
}

impl Found {
    fn add(&mut self, write: usize, opens: [bool; 2]) -> anyhow::Result<()> {
        match opens {
            [true, true] => self.both += 1,
            [true, false] => {
                self.old += 1;
                self.last_without_new = write;
            }
            [false, true] => {
                self.new += 1;
                self.first_without_old.get_or_insert(write);
            }
            [false, false] => anyhow::bail!("the disk is lost at write {write}"),
        }
        Ok(())
    }

    /// The server releases the new key at a moment when both keys open the disk, durably.
    fn check(&self, log: &WriteLog) -> anyhow::Result<String> {
        let first = self.first_without_old.context("the old key was not removed")?;
        let between = log.entries().get(self.last_without_new..first).unwrap_or_default();
        ensure!(between.contains(&Entry::Flush), "both keys never open the disk durably: {self:?}");
        Ok(format!(
            "{} writes to the header, {} outcomes of power failures: {} open with the old key, {} with \
             both, {} with the new key, none with neither",
            self.writes,
            self.old + self.both + self.new,
            self.old,
            self.both,
            self.new
        ))
    }
}

/// The header of the root as it is at some write.
struct Header<'w> {
    root: File,
    /// Without the unflushed writes.
    durable: Vec<u8>,
    unflushed: Vec<&'w Write>,
}

impl Header<'_> {
    fn of(root: &Path) -> anyhow::Result<Self> {
        let mut root = File::options().read(true).write(true).open(root)?;
        let mut durable = Vec::new();
        (&mut root).take(HEADER).read_to_end(&mut durable).context("cannot read the header")?;
        Ok(Self { root, durable, unflushed: Vec::new() })
    }

    /// Writes what is on the disk after a power failure: all unflushed writes, or a random part of them.
    fn fail(&mut self, entropy: Option<&impl Entropy>) -> anyhow::Result<()> {
        let copies = self.durable.get(..COPIES).context("the root is too small")?;
        put(&mut self.root, disk::offset_of_root(), copies)?;
        for write in &self.unflushed {
            let begin = usize::try_from(place(write.offset))?;
            let content = self.durable.get(begin..begin + write.content.len());
            put(&mut self.root, write.offset, content.context("a write leaves the header")?)?;
        }
        for write in &self.unflushed {
            match entropy {
                None => put(&mut self.root, write.offset, &write.content)?,
                Some(entropy) => {
                    for (offset, piece) in write.pieces(entropy) {
                        put(&mut self.root, offset, piece)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        for write in std::mem::take(&mut self.unflushed) {
            put(&mut self.root, write.offset, &write.content)?;
            let begin = usize::try_from(place(write.offset))?;
            let durable = self.durable.get_mut(begin..begin + write.content.len());
            durable.context("a write leaves the header")?.copy_from_slice(&write.content);
        }
        Ok(())
    }
}

/// Offset on the root.
fn place(offset: u64) -> u64 {
    offset - disk::offset_of_root()
}

fn is_in_header(write: &Write) -> bool {
    (disk::offset_of_root()..disk::offset_of_root() + HEADER).contains(&write.offset)
}

fn put(root: &mut File, offset: u64, content: &[u8]) -> anyhow::Result<()> {
    root.seek(SeekFrom::Start(place(offset)))?;
    root.write_all(content).context("cannot write the root")
}
