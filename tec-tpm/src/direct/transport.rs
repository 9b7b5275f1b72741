//! Ways to a TPM: bytes out, bytes in.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use std::{fmt, io};

use zeroize::Zeroizing;

use super::answer::{HEADER, MAX_ANSWER, announced};
use crate::tpm::TpmError;

/// Forms of the configuration string, for error messages.
const FORMS: &str = "device:<path>, swtpm:host=<host>,port=<port>";
/// Where libtss2 looks for `swtpm` by default (tss2-tcti-swtpm(7)).
const SWTPM_HOST: &str = "localhost";
const SWTPM_PORT: u16 = 2321;
/// How long an emulator may take to answer: an RSA key takes seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// One command, one answer.
pub(super) trait Transport: fmt::Debug + Send {
    /// Sends a command and waits for the answer.
    fn transmit(&mut self, command: &[u8]) -> io::Result<Zeroizing<Vec<u8>>>;
}

/// Opens the TPM that a configuration names. Anything not understood is refused: using a TPM other
/// than the intended one would be worse.
pub(super) fn open(tcti: &str) -> Result<Box<dyn Transport>, TpmError> {
    let refused = || TpmError::Tcti { tcti: tcti.to_owned(), forms: FORMS };
    let opened: io::Result<Box<dyn Transport>> = match tcti.split_once(':') {
        Some(("device", path)) if !path.is_empty() => Device::open(path).map(boxed),
        Some(("swtpm", options)) => {
            let (host, port) = socket_address(options).ok_or_else(refused)?;
            Socket::connect(host, port).map(boxed)
        }
        _ => return Err(refused()),
    };
    opened.map_err(|source| TpmError::Open { tcti: tcti.to_owned(), source: source.into() })
}

fn boxed(transport: impl Transport + 'static) -> Box<dyn Transport> {
    Box::new(transport)
}

fn socket_address(options: &str) -> Option<(&str, u16)> {
    let (mut host, mut port) = (SWTPM_HOST, SWTPM_PORT);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=')? {
            ("host", value) if !value.is_empty() => host = value,
            ("port", value) => port = value.parse().ok()?,
            _ => return None,
        }
    }
    Some((host, port))
}

/// The kernel's device: one write is one command, one read is one answer (Linux,
/// Documentation/security/tpm).
#[derive(Debug)]
struct Device(File);

impl Device {
    fn open(path: &str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self(file))
    }
}

impl Transport for Device {
    fn transmit(&mut self, command: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        let written = uninterrupted(|| self.0.write(command))?;
        if written != command.len() {
            return Err(io::Error::other("the kernel took part of a command only"));
        }
        let mut answer = Zeroizing::new(vec![0; MAX_ANSWER]);
        let length = uninterrupted(|| self.0.read(&mut answer))?;
        answer.truncate(length);
        Ok(answer)
    }
}

fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The data channel of `swtpm`: a stream in which each answer states its size (swtpm(8),
/// "--server").
#[derive(Debug)]
struct Socket(TcpStream);

impl Socket {
    fn connect(host: &str, port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self(stream))
    }
}

impl Transport for Socket {
    fn transmit(&mut self, command: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        self.0.write_all(command)?;
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header)?;
        let size = announced(&header);
        let Some(rest) = size.checked_sub(HEADER).filter(|_| size <= MAX_ANSWER) else {
            return Err(io::Error::other(format!("an answer of {size} bytes")));
        };
        let mut answer = Zeroizing::new(Vec::with_capacity(size));
        answer.extend(header);
        answer.resize(HEADER + rest, 0);
        if let Some((_, body)) = answer.split_at_mut_checked(HEADER) {
            self.0.read_exact(body)?;
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_have_the_defaults_of_libtss2() {
        assert_eq!(socket_address(""), Some(("localhost", 2321)));
        assert_eq!(socket_address("port=7"), Some(("localhost", 7)));
        assert_eq!(socket_address("host=a,port=7"), Some(("a", 7)));
        for bad in ["path=/run/x", "port=x", "host=", "host"] {
            assert_eq!(socket_address(bad), None, "{bad}");
        }
    }
}
