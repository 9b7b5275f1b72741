//! Types of attestation documents, and the identifiers of their extensions.
//!
//! Contains only types whose name promises no more than what is verified: a quote of a vTPM does not prove
//! SEV-ES, SEV-SNP or TDX.

use x509_cert::der::oid::ObjectIdentifier;

macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $oid:literal;)*) => {
        /// A type of attestation document.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
        #[display("{}", self.as_str())]
        #[non_exhaustive]
        pub enum Variant {
            $($(#[$doc])* $name,)*
        }

        impl Variant {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name in configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// Identifier of the certificate's extension, in dotted form.
            pub const fn oid(self) -> &'static str {
                match self { $(Self::$name => $oid),* }
            }

            pub(super) const fn object_identifier(self) -> ObjectIdentifier {
                match self { $(Self::$name => const { ObjectIdentifier::new_unwrap($oid) }),* }
            }
        }
    };
}

variants! {
    /// No evidence at all; for tests.
    Dummy = "dummy", "1.3.9900.1.1";
    /// NitroTPM of AWS.
    AwsNitroTpm = "aws-nitro-tpm", "1.3.9900.2.1";
    /// A vTPM that an Azure SEV-SNP report vouches for.
    AzureSevSnp = "azure-sev-snp", "1.3.9900.4.1";
    /// Trusted launch on Azure.
    AzureTrustedLaunch = "azure-trustedlaunch", "1.3.9900.4.2";
    /// Any TPM 2.0: QEMU with swtpm, or hardware.
    QemuVtpm = "qemu-vtpm", "1.3.9900.5.1";
}

impl Variant {
    /// The variant with this name. `qemu-vtpm` stands for every TPM that has no name of its own.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.as_str() == name)
    }

    /// The identifier in dotted form, if the bytes are one; it need not be known.
    pub(super) fn dotted(identifier: &[u8]) -> Option<String> {
        let parsed = ObjectIdentifier::from_bytes(identifier).ok()?;
        Some(parsed.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_promises_a_technology_whose_report_nothing_verifies() {
        let promising = Variant::ALL.iter().map(|one| one.as_str()).filter(|name| {
            ["sev", "snp", "tdx", "sgx"].iter().any(|technology| name.contains(technology))
        });
        assert_eq!(promising.collect::<Vec<_>>(), [Variant::AzureSevSnp.as_str()]);
        for name in ["aws-sev-snp", "gcp-sev-es", "gcp-sev-snp", "azure-tdx", "qemu-tdx"] {
            assert_eq!(Variant::of_name(name), None, "{name}");
        }
    }
}
