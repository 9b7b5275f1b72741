//! HTTP requests from bytes: readable, so that seeds can be read and mutations remain requests.
//!
//! ```text
//! PUT /register-ak␊
//! content-type: application/json␊
//! ␊
//! {"uuid": …}␞GET …
//! ```

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};

/// Separates requests: the record separator of ASCII.
const SEPARATOR: u8 = 0x1e;
/// Maximum number of requests per input, so that an input takes milliseconds.
const MOST: usize = 6;

/// The requests in an input. What `http` refuses never reaches a service, so it is skipped.
pub(crate) fn requests(data: &[u8]) -> impl Iterator<Item = Request<Bytes>> {
    data.split(|byte| *byte == SEPARATOR).take(MOST).filter_map(request)
}

fn request(data: &[u8]) -> Option<Request<Bytes>> {
    let end = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = match end.and_then(|end| Some((data.get(..end)?, data.get(end + 2..)?))) {
        Some((head, body)) => (head, body),
        None => (data, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let mut request = Request::new(Bytes::copy_from_slice(body));
    *request.method_mut() = Method::from_bytes(first.get(..space)?).ok()?;
    *request.uri_mut() = Uri::try_from(first.get(space + 1..)?).ok()?;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(line.get(..colon)?).ok()?;
        let value = line.get(colon + 1..)?.trim_ascii();
        request.headers_mut().append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(request)
}

/// The reverse direction, for seeds.
pub(crate) struct Written(Vec<u8>);

impl Written {
    /// An input that starts with this prefix.
    pub(crate) fn new(prefix: &str) -> Self {
        Self(prefix.as_bytes().to_vec())
    }

    /// Adds a request with a JSON body.
    pub(crate) fn json(self, line: &str, body: &serde_json::Value) -> Self {
        self.with(&format!("{line}\ncontent-type: application/json\n\n{body}"))
    }

    /// Adds a request unchanged.
    pub(crate) fn with(mut self, request: &str) -> Self {
        if self.0.len() > 1 {
            self.0.push(SEPARATOR);
        }
        self.0.extend(request.as_bytes());
        self
    }

    /// The input.
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let body = serde_json::json!({"a": 1});
        let input = Written::new("x").with("GET /a?b=c\ncookie: d=e").json("PUT /f", &body).bytes();
        let read: Vec<_> = requests(&input[1..]).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].uri().query(), Some("b=c"));
        assert_eq!(read[0].headers()["cookie"], "d=e");
        assert_eq!(read[1].method(), Method::PUT);
        assert_eq!(read[1].body(), &body.to_string());
    }

    #[test]
    fn what_is_no_request_is_left_out() {
        assert_eq!(requests(b"").count(), 0);
        assert_eq!(requests(b"GET\x1e\x1ebad request line\nx\x1eGET /\n").count(), 0);
    }
}
