//! The second serial port of a machine: bytes both ways, with a deadline.

use std::io;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The second serial port, with a deadline.
#[derive(Debug)]
pub struct Line<'r> {
    stream: &'r UnixStream,
    end: Instant,
}

impl<'r> Line<'r> {
    pub(super) fn new(stream: &'r UnixStream, limit: Duration) -> Self {
        Self { stream, end: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(too_late());
        }
        Ok(left)
    }
}

impl Read for Line<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        match (&mut &*self.stream).read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(too_late()),
            other => other,
        }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&mut &*self.stream).flush()
    }
}

fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing came in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_its_deadline() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&mut &theirs).write_all(b"ab").unwrap();
        let mut both = [0; 2];
        let mut line = Line::new(&ours, Duration::from_mins(1));
        line.read_exact(&mut both).unwrap();
        assert_eq!(both, *b"ab");
        let mut line = Line::new(&ours, Duration::from_millis(20));
        let error = line.read_exact(&mut both).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }
}
