//! A transport whose first message is a ClientHello with a nonce for server name.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::super::Nonce;
use super::hello;

/// ContentType handshake, and the bytes before a record's content (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
const HEADER: usize = 5;
/// Largest content (the same section).
const MAX_RECORD: usize = 1 << 14;

/// Passes everything on, but for that message.
#[derive(Debug)]
pub(in super::super) struct Wire<IO> {
    io: IO,
    /// What was read before, and how much of it was given out.
    read: (Vec<u8>, usize),
    /// What is written in place of the first bytes, and how much of it was.
    written: (Vec<u8>, usize),
    restores: bool,
}

impl<IO> Wire<IO> {
    /// Everything as it is.
    pub(in super::super) fn plain(io: IO) -> Self {
        Self { io, read: (Vec::new(), 0), written: (Vec::new(), 0), restores: false }
    }

    /// The client's: the host name in what is written first becomes base64.
    pub(in super::super) fn restoring(io: IO) -> Self {
        Self { restores: true, ..Self::plain(io) }
    }

    pub(in super::super) fn transport(&self) -> &IO {
        &self.io
    }
}

impl<IO: AsyncRead + Unpin> Wire<IO> {
    /// The server's: if the name that the client sends is a nonce, it becomes a host name.
    pub(in super::super) async fn hello(mut io: IO) -> io::Result<(Self, Option<Nonce>)> {
        let mut first = Vec::with_capacity(HEADER);
        (&mut io).take(HEADER as u64).read_to_end(&mut first).await?;
        if let [HANDSHAKE, _, _, high, low] = first[..] {
            let length = usize::from(u16::from_be_bytes([high, low])).min(MAX_RECORD);
            (&mut io).take(length as u64).read_to_end(&mut first).await?;
        }
        let nonce = first.get_mut(HEADER..).and_then(hello::replace);
        let wire = Self { read: (first, 0), ..Self::plain(io) };
        Ok((wire, nonce))
    }
}

impl<IO: AsyncWrite + Unpin> Wire<IO> {
    /// Writes what stands for the first bytes.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (bytes, at) = &mut self.written;
        while let Some(rest) = bytes.get(*at..).filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *at += count;
        }
        self.written = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (bytes, at) = &mut this.read;
        if let Some(rest) = bytes.get(*at..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(buf.remaining());
            buf.put_slice(rest.get(..count).unwrap_or_default());
            *at += count;
            if *at == bytes.len() {
                this.read = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        // Nothing comes before that is written.
        ready!(this.poll_written(cx))?;
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Wire<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.restores && !buf.is_empty() {
            // rustls writes a ClientHello as one record at once.
            let (header, hello) = buf.split_at_checked(HEADER).unwrap_or((buf, &[]));
            let restored = hello::restored(hello).ok_or(io::ErrorKind::InvalidInput)?;
            this.restores = false;
            this.written = ([header, &restored].concat(), 0);
            return Poll::Ready(Ok(buf.len()));
        }
        ready!(this.poll_written(cx))?;
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.restores {
            let first = bufs.iter().find(|one| !one.is_empty());
            return Pin::new(this).poll_write(cx, first.map_or(&[], |one| one));
        }
        ready!(this.poll_written(cx))?;
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_written(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_written(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
