//! Changes of files and variables, as encoded in an input.

/// What to change, and how.
#[derive(Clone, Debug)]
pub(super) struct Edit<'d> {
    /// The file or variable: a number modulo their count.
    pub(super) subject: u8,
    pub(super) change: Change<'d>,
    /// Whether a changed file is signed again, by its original signer.
    pub(super) signed: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Change<'d> {
    /// Overwrite bytes from an offset on.
    Overwrite(usize, &'d [u8]),
    /// Insert bytes.
    Insert(usize, &'d [u8]),
    /// Cut everything from an offset on.
    Cut(usize),
    /// Replace the content.
    Replace(&'d [u8]),
    /// Remove it.
    Remove,
    /// Change its attributes (variables), or its name to capital letters (files).
    Rename(u8),
}

impl Change<'_> {
    /// The bytes afterwards; `None` if removed.
    pub(super) fn of(&self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        match *self {
            Self::Overwrite(at, new) => {
                let at = at.min(bytes.len());
                let end = bytes.len().min(at + new.len());
                bytes.splice(at..end, new.iter().copied());
            }
            Self::Insert(at, new) => {
                let at = at.min(bytes.len());
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Cut(at) => bytes.truncate(at),
            Self::Replace(new) => bytes = new.to_vec(),
            Self::Remove => return None,
            Self::Rename(_) => {}
        }
        Some(bytes)
    }
}

/// Maximum number of changes per input.
const MAX_EDITS: usize = 16;

/// Subject, kind of change, offset in 16 bits, number of bytes in 16 bits, bytes.
pub(super) fn edits(mut data: &[u8]) -> Vec<Edit<'_>> {
    let mut edits = Vec::new();
    while let Some((&[subject, kind, p0, p1, l0, l1], rest)) = data.split_first_chunk() {
        if edits.len() == MAX_EDITS {
            break;
        }
        let place = usize::from(u16::from_le_bytes([p0, p1]));
        let length = usize::from(u16::from_le_bytes([l0, l1])).min(rest.len());
        let takes_bytes = matches!(kind & 7, 0 | 1 | 3);
        let (bytes, next) = rest.split_at(if takes_bytes { length } else { 0 });
        let change = match kind & 7 {
            0 => Change::Overwrite(place, bytes),
            1 => Change::Insert(place, bytes),
            2 => Change::Cut(place),
            3 => Change::Replace(bytes),
            4 => Change::Remove,
            _ => Change::Rename(p0),
        };
        let signed = kind & 0x80 != 0;
        edits.push(Edit { subject, change, signed });
        data = next;
    }
    edits
}

/// Encoding of a change in an input: 0 overwrites, 1 inserts, 2 cuts, 3 replaces, 4 removes; with 0x80 a file
/// is signed again.
pub(super) fn written(subject: u8, kind: u8, place: u16, bytes: &[u8]) -> Vec<u8> {
    let mut edit = vec![subject, kind];
    edit.extend(place.to_le_bytes());
    edit.extend(crate::bytes::le16(bytes.len()));
    edit.extend(bytes);
    edit
}
