//! Stdin and stdout, limited in size and without leaving copies of secrets.

use std::fs::File;
use std::io;
use std::io::{IsTerminal as _, Read, StdinLock, Write as _};
use std::os::fd::AsFd as _;

use tec_agent::failure::Failure;
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

/// Maximum number of bytes to seal: Clevis passes a passphrase, and `clevis encrypt` is for keys.
const MAX_PLAINTEXT: usize = 64 * 1024;
/// Maximum number of bytes of a sealed passphrase, as in `tec_trustee::clevis`.
const MAX_SEALED: usize = 1024 * 1024;

/// Reads the plaintext to seal.
pub fn read_plaintext() -> Result<SecretBytes, Failure> {
    piped_stdin()
        .and_then(|stdin| read_bounded(stdin, MAX_PLAINTEXT))
        .map(|bytes| SecretBytes::new(bytes.to_vec()))
        .map_err(Failure::io("read what is to be sealed from stdin"))
}

/// Reads a sealed passphrase.
/// Errors: `Io`, including for more than 1 MiB and for anything that is not text.
pub fn read_sealed() -> Result<String, Failure> {
    let operation = "read the sealed passphrase from stdin";
    let bytes = piped_stdin()
        .and_then(|stdin| read_bounded(stdin, MAX_SEALED))
        .map_err(Failure::io(operation))?;
    std::str::from_utf8(&bytes)
        .map(|text| text.trim().to_owned())
        .map_err(|_| Failure::io(operation)(io::Error::other("it is not UTF-8 text")))
}

/// Refuses a terminal: a passphrase must not be typed where it is visible.
fn piped_stdin() -> io::Result<StdinLock<'static>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(io::Error::other("it is a terminal, and a pipe is needed"));
    }
    Ok(stdin.lock())
}

/// The buffer has its full size from the start: growing would leave copies behind.
fn read_bounded(input: impl Read, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(most + 1));
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    input.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::other(format!("more than {most} bytes")));
    }
    Ok(bytes)
}

/// Writes bytes to stdout unchanged, without a newline.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    // Bypasses the buffer of `Stdout`, which would keep a copy.
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    stdout.and_then(|fd| File::from(fd).write_all(bytes)).map_err(Failure::io("write to stdout"))
}

/// Writes one or more lines to stdout.
pub fn write_line(line: &str) -> Result<(), Failure> {
    write(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_bounded_and_whole() {
        assert_eq!(&**read_bounded(&b"12345"[..], 5).unwrap(), b"12345");
        assert!(read_bounded(&b"123456"[..], 5).is_err());
        assert!(read_bounded(&b""[..], 5).unwrap().is_empty());
    }
}
