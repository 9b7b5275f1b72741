//! The frames of a zstd stream, one after the other (RFC 8878, section 3).

use std::io;
use std::io::{Cursor, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::bytes::le32;

/// Reads all frames of a zstd stream.
///
/// The decoder of the crate stops after one frame and accepts any window for the first one; here
/// the header is checked first.
pub(super) struct ZstdReader<R: Read> {
    state: State<R>,
}

type Decoder<R> = StreamingDecoder<io::Chain<Cursor<Vec<u8>>, R>, FrameDecoder>;

enum State<R: Read> {
    /// Before a frame.
    Between(R),
    Within(Box<Decoder<R>>),
    /// After the last frame, or after an error.
    Done,
}

/// Largest window, which is held in memory: what `zstd --long` takes.
const MAX_WINDOW: u64 = 128 << 20;

impl<R: Read> ZstdReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { state: State::Between(reader) }
    }
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            self.state = match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Ok(0),
                State::Between(reader) => next_frame(reader)?,
                State::Within(mut decoder) => {
                    let count = decoder.read(buffer)?;
                    if count > 0 {
                        self.state = State::Within(decoder);
                        return Ok(count);
                    }
                    let (chain, decoder) = decoder.into_parts();
                    check(&decoder)?;
                    State::Between(chain.into_inner().1)
                }
            };
        }
    }
}

/// The next frame; skippable ones are skipped.
fn next_frame<R: Read>(mut reader: R) -> io::Result<State<R>> {
    loop {
        let mut magic = Vec::new();
        reader.by_ref().take(4).read_to_end(&mut magic)?;
        match magic.as_slice() {
            [] => return Ok(State::Done),
            [0x28, 0xb5, 0x2f, 0xfd] => return frame(magic, reader),
            // RFC 8878, 3.1.2: the size of the content follows in 4 bytes.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                let mut size = [0; 4];
                reader.read_exact(&mut size)?;
                let size = u64::from(le32(&size, 0));
                let skipped = io::copy(&mut reader.by_ref().take(size), &mut io::sink())?;
                if skipped < size {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            _ => return Err(damaged("there is no frame after the last one")),
        }
    }
}

fn frame<R: Read>(mut header: Vec<u8>, mut reader: R) -> io::Result<State<R>> {
    // RFC 8878, 3.1.1.1.1: bits 6 and 7 of the descriptor tell the size of the content's size,
    // bit 5 that there is no window, bits 0 and 1 the size of the dictionary's number.
    let mut descriptor = [0; 1];
    reader.read_exact(&mut descriptor)?;
    let [flags] = descriptor;
    header.push(flags);
    let is_single = flags & 0x20 != 0;
    let dictionary: usize = [0, 1, 2, 4].into_iter().nth((flags & 3).into()).unwrap_or(0);
    let size: usize = match flags >> 6 {
        0 => usize::from(is_single),
        bits => 1 << bits,
    };
    let mut rest = vec![0; usize::from(!is_single) + dictionary + size];
    reader.read_exact(&mut rest)?;
    if window(is_single, size, &rest) > MAX_WINDOW {
        return Err(damaged("the window is larger than 128 MiB"));
    }
    header.append(&mut rest);
    let source = Cursor::new(header).chain(reader);
    let decoder = StreamingDecoder::new(source).map_err(io::Error::other)?;
    Ok(State::Within(Box::new(decoder)))
}

/// RFC 8878, 3.1.1.1.2: bits 3 to 7 are the exponent less 10, bits 0 to 2 eighths. Without this
/// field, the window is the whole content.
fn window(is_single: bool, size: usize, rest: &[u8]) -> u64 {
    if is_single {
        let field = rest.get(rest.len().saturating_sub(size)..);
        let bytes = field.unwrap_or_default().iter().rev();
        return bytes.fold(0, |value, byte| value << 8 | u64::from(*byte));
    }
    let descriptor = rest.first().copied().unwrap_or_default();
    let base = 1_u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

/// RFC 8878, 3.1.1: the low half of XXH64 of the content, if the frame has it.
fn check(decoder: &FrameDecoder) -> io::Result<()> {
    match decoder.get_checksum_from_data() {
        Some(expected) if decoder.get_calculated_checksum() != Some(expected) => {
            Err(damaged("the checksum does not match"))
        }
        _ => Ok(()),
    }
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
