//! A wire tap on a software TPM: stops a program at a TPM command.

use std::io;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use anyhow::Context as _;

/// Tag, size, command or response code (TPM 2.0 Library Part 3, "Command/Response Structure").
const HEADER: usize = 10;
/// Longest wait for the command.
const LIMIT: Duration = Duration::from_mins(5);

/// A TPM command at which a program stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "tests write it out")]
pub struct Stop {
    /// TPM_CC of the command.
    pub code: u32,
    /// Which of the commands with this code, counted from 1.
    pub number: u32,
    /// When the TPM has carried it out, before the program gets the answer; otherwise before the TPM gets it.
    pub after: bool,
}

/// A TPM for one connection, which stops once.
#[derive(Debug)]
pub struct Tap {
    port: u16,
    reached: Receiver<()>,
    go: Sender<()>,
}

impl Tap {
    /// Passes on the commands for the TPM with this TCTI.
    ///
    /// # Errors
    /// The TCTI is not that of a software TPM, or there is no port.
    pub fn start(tcti: &str, stop: Stop) -> anyhow::Result<Self> {
        let (_, port) = tcti.rsplit_once("port=").context("not the TCTI of a software TPM")?;
        let tpm: u16 = port.parse()?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let ((reach, reached), (go, gone)) = (mpsc::channel(), mpsc::channel());
        std::thread::spawn(move || {
            // A connection that ends early is what the test is about.
            let _ = pass(&listener, tpm, stop, (&reach, &gone));
        });
        Ok(Self { port, reached, go })
    }

    /// The TCTI for the program.
    pub fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// Waits until the program has stopped.
    ///
    /// # Errors
    /// It did not send the command.
    pub fn wait(&self) -> anyhow::Result<()> {
        self.reached.recv_timeout(LIMIT).context("the TPM did not get the command")
    }

    /// Lets the program continue.
    pub fn go_on(self) {
        // It may have been killed.
        let _ = self.go.send(());
    }
}

fn pass(
    listener: &TcpListener,
    tpm: u16,
    stop: Stop,
    (reach, gone): (&Sender<()>, &Receiver<()>),
) -> io::Result<()> {
    let (mut program, _) = listener.accept()?;
    program.set_nodelay(true)?;
    let mut tpm = TcpStream::connect(("127.0.0.1", tpm))?;
    tpm.set_nodelay(true)?;
    let mut number = 0;
    let pause = || {
        // Who does not wait has ended, and continues nothing.
        let _ = reach.send(());
        gone.recv().map_err(io::Error::other)
    };
    loop {
        let (code, command) = message(&mut program)?;
        number += u32::from(code == stop.code);
        let is_it = code == stop.code && number == stop.number;
        if is_it && !stop.after {
            pause()?;
        }
        tpm.write_all(&command)?;
        let (_, answer) = message(&mut tpm)?;
        if is_it && stop.after {
            pause()?;
        }
        program.write_all(&answer)?;
    }
}

/// A command or an answer, and its code.
fn message(from: &mut TcpStream) -> io::Result<(u32, Vec<u8>)> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let [_, _, s0, s1, s2, s3, c0, c1, c2, c3] = header;
    let size = usize::try_from(u32::from_be_bytes([s0, s1, s2, s3])).unwrap_or(HEADER);
    let mut message = header.to_vec();
    message.resize(size.clamp(HEADER, 4096), 0);
    from.read_exact(message.get_mut(HEADER..).unwrap_or_default())?;
    Ok((u32::from_be_bytes([c0, c1, c2, c3]), message))
}
