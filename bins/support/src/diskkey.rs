//! Which disk keys are made.

use std::sync::Arc;

use clap::ValueEnum;
use tec_core::luks::{CompatLuksKey, LuksKeyGenerator, RandomLuksKey};

/// Form of the disk keys of new machines. Keys that exist stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum DiskKeys {
    /// 192 random bits, as every Clevis pin `trustee` reads them
    #[default]
    Compatible,
    /// 256 random bits, which only nodes with `node-agent` read
    Random256,
}

impl DiskKeys {
    /// What makes them.
    pub fn generator(self) -> Arc<dyn LuksKeyGenerator> {
        match self {
            Self::Compatible => Arc::new(CompatLuksKey),
            Self::Random256 => Arc::new(RandomLuksKey),
        }
    }
}
