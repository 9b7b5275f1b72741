//! Which kind of disk keys to generate.

use std::sync::Arc;

use clap::ValueEnum;
use tec_core::luks::{CompatLuksKey, LuksKeyGenerator, RandomLuksKey};

/// Form of the disk keys of new machines. Existing keys do not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum DiskKeys {
    /// 192 random bits, readable by every Clevis pin `trustee`
    #[default]
    Compatible,
    /// 256 random bits, readable only by nodes with `node-agent`
    Random256,
}

impl DiskKeys {
    /// The generator of such keys.
    pub fn generator(self) -> Arc<dyn LuksKeyGenerator> {
        match self {
            Self::Compatible => Arc::new(CompatLuksKey),
            Self::Random256 => Arc::new(RandomLuksKey),
        }
    }
}
