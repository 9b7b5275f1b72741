//! JSON that can be read in only one way.
//!
//! If an object has the same member twice, some parsers take the first, some the last, and some refuse. JSON
//! that one program checks and another one uses must have no such members.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use super::intake::MAX_VALUES;

/// Reads JSON in which every object, at any depth, has each of its members once. It has at most
/// [`MAX_VALUES`] values, so that it takes little more memory than its text.
pub(crate) fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let left = Cell::new(MAX_VALUES);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    Once(&left).deserialize(&mut deserializer)?;
    deserializer.end()?;
    serde_json::from_slice(text)
}

/// Any JSON without repeated members; keeps only the number of values that may still come.
#[derive(Clone, Copy)]
struct Once<'a>(&'a Cell<usize>);

impl Once<'_> {
    fn count<E: Error>(self) -> Result<(), E> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| E::custom("the document has too many values"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Once<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Once<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated members")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name) {
                return Err(A::Error::custom("an object has a member twice"));
            }
            map.next_value_seed(self)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_repeated_member_is_refused_at_any_depth_and_in_any_spelling() {
        for good in [r#"{"a":1,"b":[{"a":null},{"a":-1.5}],"c":{"a":"a"}}"#, "[]", "true"] {
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

    #[test]
    fn a_document_has_so_many_values_and_no_more() {
        let list = |length: usize| format!("[{}0]", "0,".repeat(length - 1));
        assert!(from_slice::<Value>(list(MAX_VALUES - 1).as_bytes()).is_ok());
        assert!(from_slice::<Value>(list(MAX_VALUES).as_bytes()).is_err());
        assert!(from_slice::<Value>(b"1 2").is_err());
    }
}
