//! Calls whose body or answer is too large for memory: it comes from a file or goes into one.

use std::fs::File;
use std::io::Write;

use reqwest::Method;

use super::http::{Headers, HttpError};
use super::{Http, Reply};

/// Maximum size of an answer that is not stored, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// Status of an answer that is stored.
const OK: u16 = 200;

impl Http {
    /// Writes the answer to `to`. Every part must arrive within the deadline. An answer with another status
    /// than 200 is returned instead of written.
    ///
    /// # Errors
    /// [`HttpError`]. Part of the answer may have been written.
    ///
    /// # Cancel safety
    /// When dropped, part of the answer may have been written.
    pub async fn download(
        &self,
        path: &str,
        headers: Headers<'_>,
        to: &mut (dyn Write + Send),
    ) -> Result<Reply, HttpError> {
        let request = self.request(Method::GET, path, headers)?;
        let mut answer = self.in_time(self.send(request)).await?;
        let status = answer.status().as_u16();
        if status != OK {
            return self.in_time(self.read(answer, MAX_ANSWER)).await;
        }
        let cut = |error: reqwest::Error| {
            HttpError::Answer(self.target.clone(), error.without_url().into())
        };
        while let Some(part) = self.in_time(async { answer.chunk().await.map_err(cut) }).await? {
            to.write_all(&part).map_err(|error| HttpError::Store(self.target.clone(), error))?;
        }
        Ok(Reply { status, body: Vec::new() })
    }

    /// Sends a file. The answer must come within the deadline.
    ///
    /// # Errors
    /// [`HttpError`]; any status is an answer, not an error.
    ///
    /// # Cancel safety
    /// When dropped, the call may or may not have happened.
    pub async fn upload(
        &self,
        path: &str,
        headers: Headers<'_>,
        file: File,
    ) -> Result<Reply, HttpError> {
        let length = file.metadata().map(|found| found.len());
        let length = length.map_err(|error| HttpError::Store(self.target.clone(), error))?;
        let request = self.request(Method::POST, path, headers)?.header("content-length", length);
        let request = request.body(tokio::fs::File::from_std(file));
        let answer = self.in_time(self.send(request)).await?;
        self.in_time(self.read(answer, MAX_ANSWER)).await
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;
    use tokio::task::JoinSet;

    use super::*;
    use crate::shell::Target;

    /// Size of a part of a file, in bytes.
    const PART: usize = 64 * 1024;

    fn http(socket: &Path) -> Http {
        Http::new(Target::Unix(socket.to_owned()), Duration::from_secs(5))
    }

    /// Answers one call with these bytes, and returns what it received up to `length` bytes.
    /// Answers a request with a body of this length once all of it has arrived, and closes.
    fn serve(socket: &Path, answer: &'static [u8], length: usize) -> JoinSet<Vec<u8>> {
        let listener = UnixListener::bind(socket).unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            let mut buffer = [0; 4096];
            let body = |received: &[u8]| {
                let end = received.windows(4).position(|four| four == b"\r\n\r\n")?;
                Some(received.len() - end - 4)
            };
            while body(&received).is_none_or(|arrived| arrived < length) {
                let read = stream.read(&mut buffer).await.unwrap();
                received.extend(&buffer[..read]);
            }
            stream.write_all(answer).await.unwrap();
            received
        });
        server
    }

    async fn download(answer: &'static [u8]) -> (Result<Reply, HttpError>, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _server = serve(&socket, answer, 0);
        let mut stored = Vec::new();
        let reply = http(&socket).download("/", &[], &mut stored).await;
        (reply, stored)
    }

    #[tokio::test]
    async fn a_whole_answer_is_stored_and_one_that_was_cut_off_is_an_error() {
        let chunked =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nsnap\r\n0\r\n\r\n";
        let (reply, stored) = download(chunked).await;
        assert_eq!((reply.unwrap().status, stored.as_slice()), (200, &b"snap"[..]));

        let cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nsnap\r\n";
        let (reply, _) = download(cut).await;
        assert!(matches!(reply, Err(HttpError::Answer(..))), "{reply:?}");
    }

    #[tokio::test]
    async fn a_refusal_is_returned_and_not_stored() {
        let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno";
        let (reply, stored) = download(refusal).await;
        let reply = reply.unwrap();
        assert_eq!((reply.status, reply.body.as_slice()), (403, &b"no"[..]));
        assert!(stored.is_empty());
    }

    #[tokio::test]
    async fn a_full_disk_ends_the_download() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _server = serve(&socket, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsnap", 0);
        let stored = http(&socket).download("/", &[], &mut Full).await;
        assert!(matches!(stored, Err(HttpError::Store(..))), "{stored:?}");
    }

    #[tokio::test]
    async fn a_file_of_many_parts_is_sent_whole() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let content: Vec<u8> = (0..=3 * PART).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
        let mut server = serve(&socket, answer, content.len());
        let reply = http(&socket).upload("/", &[], file).await.unwrap();
        assert_eq!(reply.status, 204);
        let received = server.join_next().await.unwrap().unwrap();
        let length = format!("content-length: {}", content.len());
        assert!(String::from_utf8_lossy(&received).contains(&length));
        let sent = received.windows(64).any(|window| window == &content[..64]);
        assert!(sent);
    }
}
