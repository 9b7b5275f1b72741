//! The walk over the bytes of a PE file, in pieces of any size.

use std::sync::Arc;

use super::{PeFile, PeRequest};
use crate::compute::hash::MultiHasher;
use crate::compute::layout::{Layout, MAX_FILE, MAX_HEADERS, PeError, Section, Unwritten};

/// Largest section that is kept in memory; the largest that counts, shim's revocation list, has
/// some 10 KiB.
const MAX_KEPT: u64 = 64 << 10;
/// Maximum number of bytes of all sections that are kept because their long names are not known yet.
const MAX_CANDIDATES: u64 = 1 << 20;
/// Maximum number of bytes of the string table that are read; it begins with the names of sections.
const MAX_STRINGS: usize = 64 << 10;
/// First bytes of the file and of hashed sections that are kept: enough for the header of a Linux
/// kernel, with the text of its version.
const MAX_START: usize = 32 << 10;
/// Longest name in a section's header (PE format, "Section Table").
const SHORT_NAME: usize = 8;
/// Maximum number of zero bytes after the content of a section that are hashed.
const MAX_ZEROS: u64 = 1 << 20;

/// A section of which something is requested.
#[derive(Clone, Debug)]
pub(in crate::compute) struct Part {
    pub(in crate::compute) name: String,
    /// Where it begins in the file.
    offset: u64,
    pub(in crate::compute) kept: Option<Vec<u8>>,
    /// Not finished, so that what follows the content elsewhere can be hashed too.
    pub(in crate::compute) hasher: Option<MultiHasher>,
    /// Size in memory.
    pub(in crate::compute) size: u64,
    pub(in crate::compute) nested: Option<Arc<Result<PeFile, PeError>>>,
    /// The first bytes of the content.
    pub(in crate::compute) start: Vec<u8>,
    stream: Option<Box<PeStream>>,
    /// Bytes of the content that are still to come.
    left: u64,
    zeros: u64,
}

/// Takes the bytes of a PE file in pieces.
#[derive(Clone, Debug)]
pub(in crate::compute) struct PeStream {
    request: PeRequest,
    /// The beginning, until there is enough of it to read the headers.
    start: Vec<u8>,
    walk: Option<Box<Walk>>,
}

impl PeStream {
    pub(in crate::compute) fn new(request: PeRequest) -> Self {
        Self { request, start: Vec::new(), walk: None }
    }

    pub(in crate::compute) fn feed(&mut self, mut chunk: &[u8]) -> Result<(), PeError> {
        if self.walk.is_none() && self.start.is_empty() {
            // Headers that are whole need no copy. What is wrong with others is said when there
            // are enough bytes to tell.
            if let Ok(layout) = Layout::parse(chunk) {
                self.walk = Some(Box::new(Walk::new(layout, &self.request)?));
            }
        }
        if self.walk.is_none() {
            let room = MAX_HEADERS - self.start.len().min(MAX_HEADERS);
            let (now, rest) = chunk.split_at(room.min(chunk.len()));
            self.start.extend_from_slice(now);
            if self.start.len() < MAX_HEADERS {
                return Ok(());
            }
            self.begin()?;
            chunk = rest;
        }
        match &mut self.walk {
            Some(walk) => walk.feed(chunk),
            None => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<(), PeError> {
        let start = std::mem::take(&mut self.start);
        let mut walk = Walk::new(Layout::parse(&start)?, &self.request)?;
        walk.feed(&start)?;
        self.walk = Some(Box::new(walk));
        Ok(())
    }

    pub(in crate::compute) fn finish(mut self) -> Result<PeFile, PeError> {
        if self.walk.is_none() {
            self.begin()?;
        }
        match self.walk {
            Some(walk) => walk.finish(&self.request),
            None => {
                Err(PeError::Truncated { offset: 0, part: "MS-DOS header".to_owned(), needed: 64 })
            }
        }
    }
}

/// What is done with a part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Hash,
    Skip,
    /// Hashed; the number is the position in `Walk::parts` if something of it is requested.
    Section(Option<usize>),
    Certificates,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    end: u64,
    role: Role,
}

/// Walks the parts of a file in order.
#[derive(Clone, Debug)]
struct Walk {
    layout: Layout,
    stretches: Vec<Stretch>,
    current: usize,
    offset: u64,
    hasher: MultiHasher,
    whole: Option<MultiHasher>,
    parts: Vec<Part>,
    /// Bytes that are kept because of long names.
    candidates: u64,
    /// The bytes before the end of the sections that are hashed again, see [`Layout::gaps`].
    again: Vec<u8>,
    again_from: u64,
    /// Where the string table begins, if there are long names to read, and its beginning.
    strings_from: Option<u64>,
    strings: Vec<u8>,
    certificates: Vec<u8>,
    start: Vec<u8>,
}

impl Walk {
    fn new(layout: Layout, request: &PeRequest) -> Result<Self, PeError> {
        let wants_names = !request.keep.is_empty();
        let has_names = layout.sections.iter().any(|s| long_name(&s.name).is_some());
        let mut walk = Self {
            stretches: Vec::with_capacity(2 * layout.sections.len() + 8),
            current: 0,
            offset: 0,
            hasher: MultiHasher::new(request.banks),
            whole: request.whole.then(|| MultiHasher::new(request.banks)),
            parts: Vec::new(),
            candidates: 0,
            again: Vec::new(),
            again_from: layout.sections_end() - layout.gaps(),
            strings_from: layout.strings.filter(|_| wants_names && has_names),
            strings: Vec::new(),
            certificates: Vec::new(),
            start: Vec::new(),
            layout,
        };
        walk.refuse_unwritten(request)?;
        walk.until(walk.layout.checksum.start, Role::Hash);
        walk.until(walk.layout.checksum.end, Role::Skip);
        walk.until(walk.layout.certificate_entry.start, Role::Hash);
        walk.until(walk.layout.certificate_entry.end, Role::Skip);
        walk.until(walk.layout.headers, Role::Hash);
        for section in walk.layout.sections.clone() {
            walk.until(section.raw.start, Role::Skip);
            let part = walk.part(&section, request)?;
            walk.until(section.raw.end, Role::Section(part));
        }
        match walk.layout.certificates.clone() {
            Some(certificates) => {
                walk.until(certificates.start, Role::Hash);
                walk.until(certificates.end, Role::Certificates);
            }
            None => walk.until(MAX_FILE, Role::Hash),
        }
        Ok(walk)
    }

    fn until(&mut self, end: u64, role: Role) {
        self.stretches.push(Stretch { end, role });
    }

    /// A requested section must have content: nothing is made up.
    fn refuse_unwritten(&self, request: &PeRequest) -> Result<(), PeError> {
        let wanted =
            |(name, _): &&Unwritten| request.keep.contains(name) || request.hash.contains(name);
        match self.layout.unwritten.iter().find(wanted) {
            Some((name, offset)) => {
                Err(PeError::SectionWithoutContent { section: name.clone(), offset: *offset })
            }
            None => Ok(()),
        }
    }

    /// Records what is requested of a section; returns its position.
    fn part(&mut self, section: &Section, request: &PeRequest) -> Result<Option<usize>, PeError> {
        let candidate = self.strings_from.is_some() && long_name(&section.name).is_some();
        let mut keep = request.keep.contains(&section.name);
        let hash = request.hash.contains(&section.name);
        let nested = request.nested.as_ref() == Some(&section.name);
        let left_out = request.left_out.contains(&section.raw.start);
        if left_out || !(candidate || keep || hash || nested) {
            return Ok(None);
        }
        if self.parts.iter().any(|part| part.name == section.name) {
            return Err(PeError::RepeatedSection {
                section: section.name.clone(),
                offset: section.raw.start,
            });
        }
        let offset = section.raw.start;
        if keep && section.content > MAX_KEPT {
            return Err(too_large(&section.name, offset, section.content, MAX_KEPT));
        }
        if hash && section.zeros > MAX_ZEROS {
            return Err(too_large(&section.name, offset, section.zeros, MAX_ZEROS));
        }
        if candidate && section.content <= MAX_KEPT {
            self.candidates += section.content;
            keep = self.candidates <= MAX_CANDIDATES;
        }
        let inner = PeRequest::new(request.banks);
        self.parts.push(Part {
            name: section.name.clone(),
            offset,
            kept: keep.then(Vec::new),
            hasher: hash.then(|| MultiHasher::new(request.banks)),
            size: section.content + section.zeros,
            nested: None,
            start: Vec::new(),
            stream: nested.then(|| Box::new(PeStream::new(inner))),
            left: section.content,
            zeros: section.zeros,
        });
        Ok(Some(self.parts.len() - 1))
    }

    fn feed(&mut self, mut chunk: &[u8]) -> Result<(), PeError> {
        if self.whole.is_some() {
            push_start(&mut self.start, chunk);
        }
        while !chunk.is_empty() {
            let Some(stretch) = self.stretches.get(self.current).copied() else {
                return Err(self.too_long());
            };
            let room = usize::try_from(stretch.end - self.offset).unwrap_or(usize::MAX);
            let (now, rest) = chunk.split_at(room.min(chunk.len()));
            self.take(stretch.role, now);
            self.offset += now.len() as u64;
            if self.offset == stretch.end {
                self.current += 1;
            }
            chunk = rest;
        }
        Ok(())
    }

    fn take(&mut self, role: Role, bytes: &[u8]) {
        self.remember(bytes);
        self.remember_strings(bytes);
        if self.offset >= self.layout.sections_end() && !self.again.is_empty() {
            let again = std::mem::take(&mut self.again);
            self.hasher.update(&again);
        }
        match role {
            Role::Hash | Role::Section(None) => self.hash(bytes),
            Role::Skip => self.hash_whole(bytes),
            Role::Certificates => {
                self.hash_whole(bytes);
                self.certificates.extend_from_slice(bytes);
            }
            Role::Section(Some(part)) => self.take_part(part, bytes),
        }
    }

    fn take_part(&mut self, position: usize, bytes: &[u8]) {
        let Some(part) = self.parts.get_mut(position) else {
            return;
        };
        let (content, padding) = part.take(bytes);
        match &mut part.hasher {
            Some(hasher) => {
                self.hasher.update(content);
                hasher.update(content);
                self.hasher.update(padding);
                self.hash_whole(bytes);
            }
            None => self.hash(bytes),
        }
    }

    /// Adds bytes that count for Authenticode.
    fn hash(&mut self, bytes: &[u8]) {
        match &mut self.whole {
            Some(whole) => {
                self.hasher.update(bytes);
                whole.update(bytes);
            }
            None => self.hasher.update(bytes),
        }
    }

    fn hash_whole(&mut self, bytes: &[u8]) {
        if let Some(whole) = &mut self.whole {
            whole.update(bytes);
        }
    }

    /// Remembers the part of `bytes` that lies between `again_from` and the end of the sections.
    fn remember(&mut self, bytes: &[u8]) {
        let end = self.offset + bytes.len() as u64;
        if end > self.again_from && self.offset < self.layout.sections_end() {
            // Stretches never cross the end of the sections, so only the beginning is cut.
            let skip = self.again_from.saturating_sub(self.offset);
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            self.again.extend_from_slice(bytes.get(skip..).unwrap_or_default());
        }
    }

    /// Remembers the beginning of the string table.
    fn remember_strings(&mut self, bytes: &[u8]) {
        let end = self.offset + bytes.len() as u64;
        let Some(from) = self.strings_from.filter(|from| end > *from) else {
            return;
        };
        let skip = usize::try_from(from.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let room = MAX_STRINGS.saturating_sub(self.strings.len());
        let rest = bytes.get(skip..).unwrap_or_default();
        self.strings.extend_from_slice(rest.get(..room.min(rest.len())).unwrap_or_default());
    }

    fn too_long(&self) -> PeError {
        match &self.layout.certificates {
            Some(table) => PeError::CertificateTable {
                offset: table.start,
                size: table.end - table.start,
                reason: "is not the last part of the file",
            },
            None => PeError::TooLarge(MAX_FILE),
        }
    }

    fn finish(mut self, request: &PeRequest) -> Result<PeFile, PeError> {
        self.check_complete()?;
        self.hasher.update(&self.again);
        let parts = std::mem::take(&mut self.parts);
        let mut named = Vec::with_capacity(parts.len());
        for part in parts {
            if let Some(part) = self.named(part.finished(), request)? {
                if named.iter().any(|other: &Part| other.name == part.name) {
                    return Err(PeError::RepeatedSection {
                        section: part.name,
                        offset: part.offset,
                    });
                }
                named.push(part);
            }
        }
        let names = self.layout.sections.into_iter().map(|s| s.name);
        Ok(PeFile {
            authenticode: self.hasher.finish(),
            whole: self.whole.map(MultiHasher::finish),
            size: self.offset,
            parts: named,
            sections: names.collect(),
            certificates: self.certificates,
            start: self.start,
        })
    }

    fn check_complete(&self) -> Result<(), PeError> {
        let mut sections = self.layout.sections.iter();
        if let Some(section) = sections.find(|s| self.offset < s.raw.end) {
            return Err(PeError::Truncated {
                offset: self.offset,
                part: format!("section {}", section.name),
                needed: section.raw.end,
            });
        }
        match &self.layout.certificates {
            Some(table) if self.offset < table.end => Err(PeError::Truncated {
                offset: self.offset,
                part: "the certificate table".to_owned(),
                needed: table.end,
            }),
            _ => Ok(()),
        }
    }

    /// Resolves a long name; what turns out not to be requested is dropped.
    fn named(&self, mut part: Part, request: &PeRequest) -> Result<Option<Part>, PeError> {
        let Some(at) = long_name(&part.name).filter(|_| self.strings_from.is_some()) else {
            return Ok(Some(part));
        };
        let Some(name) = self.strings.get(at..).and_then(|s| s.split(|b| *b == 0).next()) else {
            return Ok(None);
        };
        // Programs compare the header's eight bytes: a shorter name does not count in this place.
        if name.len() <= SHORT_NAME {
            return Ok(None);
        }
        part.name = name.escape_ascii().to_string();
        if !request.keep.contains(&part.name) {
            return Ok(None);
        }
        if part.kept.is_none() {
            return Err(too_large(&part.name, part.offset, part.size, MAX_KEPT));
        }
        Ok(Some(part))
    }
}

impl Part {
    /// Takes all but the digest; returns the content and the padding after it.
    fn take<'b>(&mut self, bytes: &'b [u8]) -> (&'b [u8], &'b [u8]) {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let (content, padding) = bytes.split_at(room.min(bytes.len()));
        self.left -= content.len() as u64;
        push_start(&mut self.start, content);
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(content);
        }
        if let Some(stream) = &mut self.stream
            && let Err(error) = stream.feed(content)
        {
            self.stream = None;
            self.nested = Some(Arc::new(Err(error)));
        }
        (content, padding)
    }

    fn finished(mut self) -> Self {
        if let Some(hasher) = &mut self.hasher {
            // At most `MAX_ZEROS`, which was checked before.
            let zeros = usize::try_from(self.zeros).unwrap_or(usize::MAX);
            if let Some(kept) = &mut self.kept {
                kept.resize(kept.len().saturating_add(zeros), 0);
            }
            for left in (0..zeros).step_by(ZEROS.len()) {
                let count = ZEROS.len().min(zeros - left);
                hasher.update(ZEROS.get(..count).unwrap_or_default());
            }
        }
        if let Some(stream) = self.stream.take() {
            self.nested = Some(Arc::new(stream.finish()));
        }
        self
    }
}

/// Keeps as many of the first bytes as fit.
fn push_start(start: &mut Vec<u8>, bytes: &[u8]) {
    let room = MAX_START.saturating_sub(start.len()).min(bytes.len());
    start.extend_from_slice(bytes.get(..room).unwrap_or_default());
}

const ZEROS: [u8; 4096] = [0; 4096];

/// PE format, "Section Table": a slash, then the decimal offset of the name in the string table.
fn long_name(name: &str) -> Option<usize> {
    let digits = name.strip_prefix('/')?;
    // `parse` would take a sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

fn too_large(section: &str, offset: u64, size: u64, limit: u64) -> PeError {
    PeError::SectionTooLarge { section: section.to_owned(), offset, size, limit }
}
