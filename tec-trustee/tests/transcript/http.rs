//! As much of HTTP/1.1 as a transcript needs, byte for byte.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;

use crate::template::{Values, filled, matches};

/// A message from a transcript, with placeholders, or from the wire, without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// `POST /path`, or the status.
    pub(crate) start: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Headers that must be absent.
    absent: Vec<String>,
    pub(crate) body: String,
}

impl Message {
    /// The lines after `>>>` or `<<<`.
    pub(crate) fn parse(start: &str, lines: &[&str]) -> Self {
        let mut message = Self { start: start.trim().to_owned(), ..Self::default() };
        let end = lines.iter().position(|line| line.is_empty());
        let (head, body) = lines.split_at(end.unwrap_or(lines.len()));
        for line in head {
            if let Some(name) = line.strip_prefix('!') {
                message.absent.push(name.to_owned());
            } else {
                let (name, value) = line.split_once(": ").unwrap();
                message.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        message.body = body.concat();
        message
    }

    /// Checks that `heard` is this message.
    pub(crate) fn check(&self, heard: &Self, values: &mut Values) -> Result<(), String> {
        matches(&self.start, &heard.start, values)?;
        for (name, value) in &self.headers {
            let found = heard.headers.iter().find(|(other, _)| other == name);
            let (_, found) = found.ok_or_else(|| format!("no header {name}"))?;
            matches(value, found, values)?;
        }
        for name in &self.absent {
            if heard.headers.iter().any(|(other, _)| other == name) {
                return Err(format!("there is a header {name}"));
            }
        }
        matches(&self.body, &heard.body, values)
    }
}

/// Reads a message; `None` at the end of the connection.
pub(crate) async fn read(stream: &mut BufStream<TcpStream>) -> Option<Message> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let start = match words[..] {
        ["HTTP/1.1", status, ..] => status.to_owned(),
        [method, path, "HTTP/1.1"] => format!("{method} {path}"),
        _ => panic!("{line:?} begins no message"),
    };
    let mut message = Message { start, ..Message::default() };
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        let name = name.to_lowercase();
        if name == "content-length" {
            length = value.parse().unwrap();
        }
        message.headers.push((name, value.to_owned()));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    message.body = String::from_utf8(body).unwrap();
    Some(message)
}

/// Writes a message with its placeholders filled.
pub(crate) async fn write(stream: &mut BufStream<TcpStream>, message: &Message, values: &Values) {
    let start = match message.start.split_once(' ') {
        Some(_) => format!("{} HTTP/1.1\r\nhost: kbs", message.start),
        None => format!("HTTP/1.1 {} X", message.start),
    };
    let body = filled(&message.body, values);
    let mut text = format!("{start}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &message.headers {
        text.push_str(&format!("{name}: {}\r\n", filled(value, values)));
    }
    text.push_str("\r\n");
    text.push_str(&body);
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
}
