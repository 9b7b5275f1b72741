//! Sorts of attestation documents, and the identifiers of their extensions.

use std::fmt;

use x509_cert::der::oid::ObjectIdentifier;

macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $oid:literal;)*) => {
        /// A sort of attestation document.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// SEV-SNP at AWS.
    AwsSevSnp = "aws-sev-snp", "1.3.9900.2.2";
    /// SEV-ES at Google, with its vTPM.
    GcpSevEs = "gcp-sev-es", "1.3.9900.3.1";
    /// SEV-SNP at Google.
    GcpSevSnp = "gcp-sev-snp", "1.3.9900.3.2";
    /// A vTPM that an SEV-SNP report of Azure vouches for.
    AzureSevSnp = "azure-sev-snp", "1.3.9900.4.1";
    /// Trusted launch at Azure.
    AzureTrustedLaunch = "azure-trustedlaunch", "1.3.9900.4.2";
    /// TDX at Azure.
    AzureTdx = "azure-tdx", "1.3.9900.4.3";
    /// Any TPM 2.0: QEMU with swtpm, or hardware.
    QemuVtpm = "qemu-vtpm", "1.3.9900.5.1";
    /// TDX with QEMU.
    QemuTdx = "qemu-tdx", "1.3.9900.5.99";
}

impl Variant {
    /// The variant of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.as_str() == name)
    }

    /// The identifier in dotted form, where it is one; it need not be known.
    pub(super) fn dotted(identifier: &[u8]) -> Option<String> {
        let parsed = ObjectIdentifier::from_bytes(identifier).ok()?;
        Some(parsed.to_string())
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
