//! The configuration of a Trustee.

use tec_core::port::{PortError, PortErrorKind};
use tec_core::trustee::{Patched, TrusteeConfigurator, TrusteeIntent};

/// The text of the configuration that a Trustee starts with.
pub fn trustee_config(
    configurator: &dyn TrusteeConfigurator,
    intent: &TrusteeIntent,
) -> Result<String, PortError> {
    match configurator.patch("", intent) {
        Ok(Patched::Changed(text)) => Ok(text),
        Ok(Patched::Unchanged) => Ok(String::new()),
        Err(error) => {
            let kind = PortErrorKind::Invalid;
            Err(PortError::new(kind, "write the Trustee's configuration").because(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tec_core::trustee::{MockTrusteeConfigurator, PatchError};

    use super::*;

    fn config_by(configurator: &MockTrusteeConfigurator) -> Result<String, PortError> {
        let files = || ("key.pem".to_owned(), "chain.pem".to_owned());
        let intent = TrusteeIntent::new("0.0.0.0:8080", files(), Vec::new(), "/opt/trustee");
        trustee_config(configurator, &intent)
    }

    #[test]
    fn what_another_configurator_writes_is_what_the_trustee_gets() {
        let mut configurator = MockTrusteeConfigurator::new();
        let written = |_: &str, intent: &TrusteeIntent| Patched::Changed(intent.socket.clone());
        configurator.expect_patch().returning(move |old, intent| Ok(written(old, intent)));
        assert_eq!(config_by(&configurator).unwrap(), "0.0.0.0:8080");
    }

    #[test]
    fn a_configurator_that_fails_starts_no_trustee() {
        let mut configurator = MockTrusteeConfigurator::new();
        let why = || PatchError::Parse(Box::new(io::Error::other("of another age")));
        configurator.expect_patch().returning(move |_, _| Err(why()));
        assert_eq!(config_by(&configurator).unwrap_err().kind(), PortErrorKind::Invalid);
    }
}
