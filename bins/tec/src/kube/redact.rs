//! Removes secrets from text that leaves the cluster.

use std::borrow::Cow;

/// Replaces a redacted value.
const MARK: &str = "[redacted]";
/// Words that precede a secret value, in lower case.
const WORDS: [&str; 6] = [BEARER, "authorization", "password", "private_key", "secret", "token"];
/// The only word whose value needs no separator (RFC 6750, section 2.1).
const BEARER: &str = "bearer";

/// The text without secrets, and the number of secrets removed: private keys in PEM, tokens in JWT form, and
/// values after words such as `password`.
pub(super) fn redact(text: &str) -> (String, usize) {
    let mut out = String::with_capacity(text.len());
    let mut count = 0;
    let mut in_key = false;
    for line in text.lines() {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            count += 1;
            out.push_str(MARK);
            out.push('\n');
        }
        if !in_key {
            let (line, more) = redact_line(line);
            count += more;
            out.push_str(&line);
            out.push('\n');
        }
        if line.contains("-----END") {
            in_key = false;
        }
    }
    (out, count)
}

fn redact_line(line: &str) -> (Cow<'_, str>, usize) {
    let mut out = String::new();
    let mut count = 0;
    // The preceding word, if a value after it would be a secret.
    let mut before: Option<&str> = None;
    for piece in pieces(line) {
        if !is_word(piece) {
            out.push_str(piece);
            // `secret=x` and `"secret":"x"` contain a value, `secret "x" not found` names an object.
            before = before.filter(|word| *word == BEARER || piece.contains(['=', ':']));
            continue;
        }
        let word = secret_word(piece);
        if is_token(piece) || (before.is_some() && word.is_none()) {
            out.push_str(MARK);
            count += 1;
        } else {
            out.push_str(piece);
        }
        before = word;
    }
    if count == 0 { (Cow::Borrowed(line), 0) } else { (Cow::Owned(out), count) }
}

/// Which of these words a word ends with: `admin_token`, `Secret`.
fn secret_word(piece: &str) -> Option<&'static str> {
    let lower = piece.to_lowercase();
    WORDS.into_iter().find(|word| lower.ends_with(word))
}

/// Words, and the text between them.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let of_word = is_word_char(first);
        let end = rest.find(|c| is_word_char(c) != of_word);
        let (piece, later) = rest.split_at(end.unwrap_or(rest.len()));
        rest = later;
        Some(piece)
    })
}

/// Characters of base64 in both alphabets, and the separator of JWT parts.
fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '/' | '~' | '.')
}

fn is_word(piece: &str) -> bool {
    piece.starts_with(is_word_char)
}

/// Three parts, the first of which is a base64url object: `{"` is `eyJ` (RFC 7519, section 3).
fn is_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.split('.').filter(|part| !part.is_empty()).count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_passwords_and_private_keys_go() {
        let text = "user=alice password=hunter2 rest\n\
                    Authorization: Bearer abc123def\n\
                    got eyJhbGciOiJFUzI1NiJ9.eyJ4IjoxfQ.sig for it\n\
                    -----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n\
                    {\"token\":\"s3cr3t\",\"machine\":\"m1\"}\n";
        let (redacted, count) = redact(text);
        for secret in ["hunter2", "abc123def", "eyJ", "MIIE", "s3cr3t"] {
            assert!(!redacted.contains(secret), "{secret}: {redacted}");
        }
        for kept in ["alice", "rest", "for it", "m1"] {
            assert!(redacted.contains(kept), "{kept}: {redacted}");
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn text_without_secrets_stays_as_it_is() {
        let text = "secret \"kbs-tls\" not found\n{\"level\":\"INFO\",\"machine\":\"7c9e6679\",\"message\":\"key bound\"}\n";
        assert_eq!(redact(text), (text.to_owned(), 0));
    }
}
