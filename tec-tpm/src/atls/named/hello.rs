//! The server name in a ClientHello (RFC 8446, section 4.1.2).

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::DnsName;

use super::super::Nonce;

/// 32 bytes in padded base64.
const LENGTH: usize = 44;
/// HandshakeType client_hello.
const CLIENT_HELLO: u8 = 1;
/// ExtensionType server_name, and NameType host_name (RFC 6066, section 3).
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

// Host names have the letters and digits of base64, and `-` and `_` for `+` and `/`. No host name
// begins with `-` or ends with the padding: the last letter says whether the first one stands for `+`.
const PADDING: u8 = b'=';
const PLAIN: u8 = b'A';
const FIRST_IS_PLUS: u8 = b'B';

/// The host name that stands for a nonce.
pub(in super::super) fn host_name(nonce: &Nonce) -> Option<DnsName<'static>> {
    let mut text = STANDARD.encode(nonce.as_bytes()).into_bytes();
    to_host_name(&mut text)?;
    DnsName::try_from(String::from_utf8(text).ok()?).ok()
}

/// A ClientHello with base64 for the host name that stands for a nonce.
pub(super) fn restored(hello: &[u8]) -> Option<Vec<u8>> {
    let name = server_name(hello)?;
    let mut restored = hello.to_vec();
    to_base64(restored.get_mut(name)?)?;
    Some(restored)
}

/// Puts a host name for the nonce in base64 of a ClientHello, and returns the nonce.
pub(super) fn replace(hello: &mut [u8]) -> Option<Nonce> {
    let name = hello.get_mut(server_name(hello)?)?;
    let nonce = STANDARD.decode(&*name).ok()?.try_into().ok()?;
    to_host_name(name)?;
    Some(Nonce::new(nonce))
}

fn to_host_name(text: &mut [u8]) -> Option<()> {
    let [first, middle @ .., last] = text else {
        return None;
    };
    if middle.len() + 2 != LENGTH || *last != PADDING {
        return None;
    }
    *last = PLAIN;
    if *first == b'+' {
        (*first, *last) = (b'_', FIRST_IS_PLUS);
    } else if *first == b'/' {
        *first = b'_';
    }
    for letter in middle {
        match letter {
            b'+' => *letter = b'-',
            b'/' => *letter = b'_',
            _ => {}
        }
    }
    Some(())
}

fn to_base64(name: &mut [u8]) -> Option<()> {
    let [first, middle @ .., last] = name else {
        return None;
    };
    if middle.len() + 2 != LENGTH || !matches!(*last, PLAIN | FIRST_IS_PLUS) {
        return None;
    }
    if *first == b'_' {
        *first = if *last == FIRST_IS_PLUS { b'+' } else { b'/' };
    }
    *last = PADDING;
    for letter in middle {
        match letter {
            b'-' => *letter = b'+',
            b'_' => *letter = b'/',
            _ => {}
        }
    }
    Some(())
}

/// Where the only host name of a ClientHello is.
fn server_name(hello: &[u8]) -> Option<Range<usize>> {
    let mut reader = Reader { all: hello, at: 0 };
    if reader.number(1)? != usize::from(CLIENT_HELLO) {
        return None;
    }
    let _length = reader.number(3)?;
    // legacy_version and random
    reader.skip(2 + 32)?;
    // legacy_session_id, cipher_suites, legacy_compression_methods
    for length_of in [1, 2, 1] {
        let length = reader.number(length_of)?;
        reader.skip(length)?;
    }
    let _extensions = reader.number(2)?;
    loop {
        let (kind, length) = (reader.number(2)?, reader.number(2)?);
        if kind == usize::from(SERVER_NAME) {
            return reader.host_name();
        }
        reader.skip(length)?;
    }
}

struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// An unsigned number of so many bytes, at most three.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.all.get(self.at..)?.get(..bytes)?;
        self.at += bytes;
        Some(taken.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.at += bytes;
        (self.at <= self.all.len()).then_some(())
    }

    /// Of ServerNameList, if it has one entry.
    fn host_name(&mut self) -> Option<Range<usize>> {
        let list = self.number(2)?;
        let (kind, length) = (self.number(1)?, self.number(2)?);
        let name = self.at..self.at + length;
        (kind == usize::from(HOST_NAME) && list == length + 3 && name.end <= self.all.len())
            .then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nonce_has_a_host_name_and_is_got_back() {
        for byte in 0..=u8::MAX {
            // 0xf8 to 0xff begin with `+` and `/`.
            let nonce = Nonce::new([byte; 32]);
            let mut name = host_name(&nonce).unwrap().as_ref().as_bytes().to_vec();
            to_base64(&mut name).unwrap();
            assert_eq!(STANDARD.decode(name).unwrap(), [byte; 32]);
        }
    }

    /// A ClientHello with these extensions and, last, this server name.
    fn hello(extensions: &[(u16, Vec<u8>)], name: &[u8]) -> Vec<u8> {
        let long = |bytes: &[u8]| {
            let length = u16::try_from(bytes.len()).unwrap();
            [&length.to_be_bytes(), bytes].concat()
        };
        let list = long(&[&[HOST_NAME][..], &long(name)].concat());
        let others = extensions.iter().map(|(kind, data)| (*kind | 0x8000, long(data)));
        let all = others.chain([(SERVER_NAME, long(&list))]);
        let all: Vec<u8> =
            all.flat_map(|(kind, data)| [&kind.to_be_bytes(), &*data].concat()).collect();
        let body =
            [&[3, 3][..], &[7; 32], &[1, 9], &*long(&[0x13, 1]), &[1, 0], &long(&all)].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    proptest::proptest! {
        #[test]
        fn a_nonce_is_found_among_all_extensions_and_put_back(
            nonce: [u8; 32],
            extensions: Vec<(u16, Vec<u8>)>,
            cut: proptest::sample::Index,
        ) {
            let sent = hello(&extensions, STANDARD.encode(nonce).as_bytes());
            let mut changed = sent.clone();
            proptest::prop_assert_eq!(replace(&mut changed), Some(Nonce::new(nonce)));
            proptest::prop_assert_eq!(restored(&changed), Some(sent.clone()));
            let end = cut.index(sent.len());
            let mut short = sent[..end].to_vec();
            proptest::prop_assert_eq!(replace(&mut short), None);
            proptest::prop_assert_eq!(short, &sent[..end]);
        }
    }

    #[test]
    fn what_is_no_hello_or_has_no_nonce_stays_as_it_is() {
        for bytes in [&[][..], &[1], &[2, 0, 0, 0], &[1, 0, 0, 200, 3, 3]] {
            let mut changed = bytes.to_vec();
            assert!(replace(&mut changed).is_none());
            assert!(restored(&changed).is_none());
            assert_eq!(changed, bytes);
        }
    }
}
