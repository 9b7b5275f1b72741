//! temporary
use std::time::Duration;
use async_trait::async_trait;
use tec_core::ignition::HeaderConfig;
use tec_core::port::Entropy;
use tec_core::secret::SecretBytes;
use tec_tpm::tss::TpmAttester;
use tec_core::code::Code;
use crate::failure::Failure;
use crate::fetch::FetchError;
use crate::fetch::Verdict;
use crate::fetch::KeyRound;
/// x
#[derive(Debug)]
pub struct KbsRound(TpmAttester);
impl KbsRound {
    /// x
    pub fn new(_h: &HeaderConfig, a: TpmAttester, _t: Duration, _e: &dyn Entropy) -> Result<Self, Failure> { Ok(Self(a)) }
}
#[async_trait]
impl KeyRound for KbsRound {
    async fn ask(&self) -> Result<SecretBytes, FetchError> {
        Err(FetchError::new(Code::ServerUnreachable, Verdict::Unanswered, "x", format!("{:?}", self.0)))
    }
}
