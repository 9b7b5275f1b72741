//! The protocol between guest and host: named pieces of data, each preceded by its length.

use std::io;
use std::io::{Read, Write};

/// The first bytes from the guest. Firmware may have printed on the same line before.
pub const GREETING: &[u8] = b"\0TEC guest 1\n";
/// Size of the nonce that the host answers with: the minimum for a quote (SHA-256).
pub const NONCE_SIZE: usize = 32;
/// Largest content; the largest real one, an event log, is about 100 KiB.
const MAX_CONTENT: u32 = 16 << 20;

/// A piece of data that the guest found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Its name, for example `eventlog.bin`.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// Sends a piece: length of the name (1 byte), name, length of the content (4 bytes, big-endian), content.
/// Errors: the name is longer than 255 bytes, the content is too large, or the connection is broken.
pub fn write(line: &mut impl Write, name: &str, content: &[u8]) -> io::Result<()> {
    let name_size = u8::try_from(name.len()).map_err(|_| too_large())?;
    let size = u32::try_from(content.len()).map_err(|_| too_large())?;
    if size > MAX_CONTENT {
        return Err(too_large());
    }
    let mut bytes = vec![name_size];
    bytes.extend(name.as_bytes());
    bytes.extend(size.to_be_bytes());
    bytes.extend(content);
    line.write_all(&bytes)
}

/// Marks the end of the report.
pub fn write_end(line: &mut impl Write) -> io::Result<()> {
    write(line, "", &[])
}

/// Receives a piece; `None` at the end.
/// Errors: the connection is broken, or the data received is not a piece.
pub fn read(line: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut name_size = [0];
    line.read_exact(&mut name_size)?;
    let mut name = vec![0; usize::from(name_size[0])];
    line.read_exact(&mut name)?;
    let mut size = [0; 4];
    line.read_exact(&mut size)?;
    let size = u32::from_be_bytes(size);
    if size > MAX_CONTENT {
        return Err(too_large());
    }
    let mut content = Vec::new();
    line.take(size.into()).read_to_end(&mut content)?;
    if content.len() as u64 != u64::from(size) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let name =
        String::from_utf8(name).map_err(|_| io::Error::other("the name of a frame is not text"))?;
    Ok((!name.is_empty()).then_some(Frame { name, content }))
}

/// Skips everything up to the end of the greeting.
pub fn find_greeting(line: &mut impl Read) -> io::Result<()> {
    let mut window: Vec<u8> = Vec::new();
    while !window.ends_with(GREETING) {
        let mut byte = [0];
        line.read_exact(&mut byte)?;
        window.extend(byte);
        if window.len() > GREETING.len() {
            window.remove(0);
        }
    }
    Ok(())
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_as_they_were_sent_after_whatever_firmware_printed() {
        let mut line = b"BdsDxe: loading\0TEC\0TEC guest".to_vec();
        line.extend(GREETING);
        write(&mut line, "pcrs", b"sha256 4 00").unwrap();
        write(&mut line, "empty", b"").unwrap();
        write_end(&mut line).unwrap();
        let mut line = line.as_slice();
        find_greeting(&mut line).unwrap();
        let frame = read(&mut line).unwrap().unwrap();
        assert_eq!((frame.name.as_str(), frame.content.len()), ("pcrs", 11));
        assert_eq!(read(&mut line).unwrap().unwrap().name, "empty");
        assert_eq!(read(&mut line).unwrap(), None);
        assert!(line.is_empty());
    }

    #[test]
    fn a_line_that_breaks_or_lies_is_an_error() {
        let mut whole = Vec::new();
        write(&mut whole, "pcrs", b"sha256").unwrap();
        for end in 0..whole.len() {
            assert!(read(&mut &whole[..end]).is_err(), "{end}");
        }
        let mut huge = vec![1, b'x'];
        huge.extend(u32::MAX.to_be_bytes());
        assert!(read(&mut huge.as_slice()).is_err());
        assert!(find_greeting(&mut &b"no greeting"[..]).is_err());
    }
}
