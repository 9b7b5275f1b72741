//! Measurements of images by Jobs alone.

use async_trait::async_trait;
use tec_core::image::ExpectedPcrs;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;
use tec_k8s::controller::LabelReader;

/// Reads no registry: a Job computes what every image measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobsOnly;

#[async_trait]
impl LabelReader for JobsOnly {
    async fn label(
        &self,
        _: &str,
        _: Option<SecretBytes>,
    ) -> Result<Option<ExpectedPcrs>, PortError> {
        Ok(None)
    }
}
