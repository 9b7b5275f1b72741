//! JSON that can be read in one way only.
//!
//! Of a member that an object has twice, some readers take the first, some the last, and some
//! refuse. What one program checks and another one uses must not have any.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::DeserializeOwned;
use serde::de::Error;
use serde::de::MapAccess;
use serde::de::SeqAccess;
use serde::de::Visitor;

/// Reads JSON in which every object, however deep, has each of its members once.
pub(crate) fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let Once = serde_json::from_slice(text)?;
    serde_json::from_slice(text)
}

/// Any JSON without repeated members; keeps nothing of it.
struct Once;

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated members")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name) {
                return Err(A::Error::custom("an object has a member twice"));
            }
            map.next_value::<Self>()?;
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_repeated_member_is_refused_at_any_depth_and_in_any_spelling() {
        for good in [
            r#"{"a":1,"b":[{"a":null},{"a":-1.5}],"c":{"a":"a"}}"#,
            "[]",
            "true",
        ] {
            assert!(from_slice::<Value>(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            r#"{"a":1,"a":1}"#,
            r#"[{"b":{"a":1,"b":2,"a":3}}]"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":1"#,
        ] {
            assert!(from_slice::<Value>(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(from_slice::<Value>(deep.as_bytes()).is_err());
    }
}
