//! What the table of codes expands to.

macro_rules! codes {
    ($($name:ident = $text:literal, $status:literal, $title:literal, $cause:literal, $fix:literal;)*) => {
        /// An error code. Families: R register, A attest, K key, P policy, T TLS, I image,
        /// S store, C cluster, N node, B bootstrap of nodes, M migration of trust, V vault.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = concat!("`", $text, "`: ", $title, ".")] #[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// All codes, in table order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code as printed.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// HTTP status sent with it.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $status),* }
            }

            /// One public sentence, without details that would help an attacker.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// The usual cause.
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$name => $cause),* }
            }

            /// What to do.
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$name => $fix),* }
            }
        }
    };
}

pub(super) use codes;
