//! How far the bootstrap got, as recorded in the Secret of the wrapping key.

use std::str::FromStr;

/// How far it got. Value of an annotation.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum Progress {
    /// The wrapping key exists.
    #[display("created")]
    Created,
    /// The vault may be initialized. It is empty, and its key may not be stored.
    #[display("init-intent")]
    InitIntent,
    /// The vault's key is stored and can be read back.
    #[display("key-stored")]
    KeyStored,
    /// Roles and policies of this digest were written, and no root token is left.
    #[display("configured:{_0}")]
    Configured(String),
}

/// The value is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a bootstrap progress record")]
pub struct ProgressError(String);

impl FromStr for Progress {
    type Err = ProgressError;

    fn from_str(text: &str) -> Result<Self, ProgressError> {
        match text {
            "created" => Ok(Self::Created),
            "init-intent" => Ok(Self::InitIntent),
            "key-stored" => Ok(Self::KeyStored),
            _ => match text.strip_prefix("configured:") {
                Some(digest) => Ok(Self::Configured(digest.to_owned())),
                None => Err(ProgressError(text.to_owned())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_survives_its_text() {
        let configured = Progress::Configured("abc".to_owned());
        for progress in [Progress::Created, Progress::InitIntent, Progress::KeyStored, configured] {
            assert_eq!(progress.to_string().parse(), Ok(progress));
        }
        assert!("done".parse::<Progress>().is_err());
    }
}
