//! The keys in the wrapped file: the one that opens the vault and, while it is being replaced, the next one.
//!
//! The vault takes the next key in use only after the file with both is durable everywhere, so a file always has
//! a key that opens the vault. Which of the two it is only the vault knows.

use super::{AesSecret, Binding, Platform, Rotation, WrapError, WrappedKey};
use sha2::{Digest as _, Sha256};
use tec_core::secret::{SecretArray, SecretBytes};

/// Begins the line with the number of a file. A file that was never replaced has none, as in earlier releases.
const SERIAL: &str = "serial ";

/// One or two keys of the vault.
#[derive(Debug)]
pub(super) struct Keyring {
    /// Increases with each change of the keys, so that pods adopt a file only from one that knows more.
    pub(super) serial: u64,
    /// The key in use, unless the next one is already.
    pub(super) first: SecretBytes,
    /// The key that replaces it.
    pub(super) next: Option<SecretBytes>,
}

/// The state of a wrapped-key file.
#[derive(Debug)]
pub(super) enum Opened {
    /// It opens with the wrapping key.
    Current(Keyring),
    /// It opens with the previous wrapping key.
    Before(Keyring),
    /// It is for another wrapping key.
    Foreign,
    /// It is damaged, or belongs to something else.
    Broken,
}

/// Nonces of one process, each different from those of every other process.
#[derive(Debug)]
pub(super) struct Nonces {
    seed: SecretArray<32>,
    drawn: u32,
}

impl Keyring {
    /// The only key of a new vault.
    pub(super) fn new(first: SecretBytes) -> Self {
        Self { serial: 0, first, next: None }
    }

    /// What comes after this: these keys.
    pub(super) fn then(&self, first: &SecretBytes, next: Option<SecretBytes>) -> Self {
        let first = first.duplicate("the next file has it, too");
        Self { serial: self.serial.saturating_add(1), first, next }
    }

    /// A key to try: after an odd number of refusals the next one, if there is one.
    pub(super) fn candidate(&self, refusals: u32) -> &SecretBytes {
        match &self.next {
            Some(next) if refusals % 2 == 1 => next,
            _ => &self.first,
        }
    }

    /// Reads the unwrapped file.
    pub(super) fn parse(plain: &SecretBytes) -> Option<Self> {
        let text = std::str::from_utf8(plain.expose("to read the keys")).ok()?;
        let is_serial = |line: &&str| line.starts_with(SERIAL);
        let serial = match text.lines().find(is_serial) {
            Some(line) => line.strip_prefix(SERIAL)?.parse().ok()?,
            None => 0,
        };
        let keys = text.lines().filter(|line| !is_serial(line));
        let mut keys = keys.map(|key| SecretBytes::new(key.as_bytes().to_vec()));
        let (first, next) = (keys.next()?, keys.next());
        keys.next().is_none().then_some(Self { serial, first, next })
    }

    fn to_plain(&self) -> SecretBytes {
        let mut plain = self.first.expose("to wrap it").to_vec();
        if let Some(next) = &self.next {
            plain.push(b'\n');
            plain.extend_from_slice(next.expose("to wrap it"));
        }
        if self.serial > 0 {
            plain.extend_from_slice(format!("\n{SERIAL}{}", self.serial).as_bytes());
        }
        SecretBytes::new(plain)
    }

    /// The file, for the current wrapping key.
    pub(super) fn wrap(
        &self,
        platform: &Platform,
        secret: &AesSecret,
        nonces: &mut Nonces,
    ) -> Result<Vec<u8>, WrapError> {
        let binding = binding(platform, &secret.key_id);
        let wrapped = WrappedKey::seal(&self.to_plain(), &secret.key, nonces.draw(), &binding)?;
        Ok(wrapped.to_bytes())
    }
}

impl Opened {
    /// Opens a file.
    pub(super) fn of(bytes: &[u8], platform: &Platform, secret: Option<&AesSecret>) -> Self {
        let (Some(secret), Ok(wrapped)) = (secret, WrappedKey::parse(bytes)) else {
            return Self::Broken;
        };
        let open = |key, key_id: &str| wrapped.open(key, &binding(platform, key_id));
        let read = |plain: &SecretBytes, of: fn(Keyring) -> Self| {
            Keyring::parse(plain).map_or(Self::Broken, of)
        };
        match (open(&secret.key, &secret.key_id), &secret.rotation) {
            (Ok(plain), _) => read(&plain, Self::Current),
            (Err(WrapError::KeyId(_)), Rotation::Under { key, key_id }) => {
                open(key, key_id).map_or(Self::Foreign, |plain| read(&plain, Self::Before))
            }
            (Err(WrapError::KeyId(_)), _) => Self::Foreign,
            (Err(_), _) => Self::Broken,
        }
    }

    /// The keys, whichever wrapping key it is for.
    pub(super) fn keyring(self) -> Option<Keyring> {
        match self {
            Self::Current(keyring) | Self::Before(keyring) => Some(keyring),
            Self::Foreign | Self::Broken => None,
        }
    }
}

impl Nonces {
    /// Uses the randomness of this process.
    pub(super) fn new(seed: SecretArray<32>) -> Self {
        Self { seed, drawn: 0 }
    }

    fn draw(&mut self) -> [u8; 12] {
        self.drawn += 1;
        let mut digest = Sha256::new_with_prefix(b"tec vault nonce v1\0");
        digest.update(self.seed.expose("to draw a nonce"));
        digest.update(self.drawn.to_be_bytes());
        let mut nonce = [0; 12];
        nonce.iter_mut().zip(digest.finalize()).for_each(|(to, from)| *to = from);
        nonce
    }
}

fn binding<'a>(platform: &'a Platform, key_id: &'a str) -> Binding<'a> {
    Binding { namespace: &platform.namespace, stateful_set: &platform.stateful_set, key_id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> SecretBytes {
        SecretBytes::new(text.as_bytes().to_vec())
    }

    fn text(keyring: &Keyring) -> String {
        String::from_utf8(keyring.to_plain().expose("test").to_vec()).unwrap()
    }

    #[test]
    fn a_file_of_an_earlier_release_is_one_key_and_stays_so_until_it_is_replaced() {
        let old = Keyring::parse(&secret("a2V5")).unwrap();
        assert_eq!((old.serial, text(&old).as_str()), (0, "a2V5"));
        let both = old.then(&old.first, Some(secret("bmV4dA==")));
        assert_eq!(text(&both), "a2V5\nbmV4dA==\nserial 1");
        let read = Keyring::parse(&both.to_plain()).unwrap();
        assert!(read.serial == 1 && read.next.as_ref().unwrap().ct_eq(&secret("bmV4dA==")));
        let tried = [0, 1, 2].map(|refusals| read.candidate(refusals));
        assert!(
            tried[0].ct_eq(&old.first) && !tried[1].ct_eq(tried[0]) && tried[2].ct_eq(tried[0])
        );
        let new = both.then(tried[1], None);
        assert_eq!(text(&new), "bmV4dA==\nserial 2");
        assert!(new.candidate(1).ct_eq(&new.first));
    }

    #[test]
    fn what_is_no_keyring_is_refused() {
        for plain in ["", "serial 1", "a\nb\nc", "a\nserial x"] {
            assert!(Keyring::parse(&secret(plain)).is_none(), "{plain:?}");
        }
    }
}
