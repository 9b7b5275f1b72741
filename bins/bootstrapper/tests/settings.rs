//! The reference page lists every setting exactly once, and no removed one.

use std::collections::BTreeSet;

use bootstrapper::admission::settings::Settings as JoinService;
use bootstrapper::instance::settings::{Disk, Kubernetes, Settings, TpmSettings};
use bootstrapper::instance::trust::Trust;
use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

const PAGE: &str = include_str!("../../../docs/reference/bootstrapper.md");

/// Records which members a struct reads, and supplies none.
struct Members<'m>(&'m mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Members<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields.to_vec();
        Err(Error::custom("that was all"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn members<T: for<'de> Deserialize<'de>>() -> Vec<&'static str> {
    let mut found = Vec::new();
    assert!(T::deserialize(Members(&mut found)).is_err());
    assert!(!found.is_empty());
    found
}

/// First cells of the rows below a heading, up to the next heading.
fn rows(heading: &str) -> Vec<&'static str> {
    let mut lines = PAGE.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "there is no {heading}");
    let section = lines.take_while(|line| !line.starts_with('#'));
    section
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|row| row.0)
        .collect()
}

fn assert_documented<T: for<'de> Deserialize<'de>>(heading: &str, tables: &[&str]) {
    let rows = rows(heading);
    let documented: BTreeSet<_> = rows.iter().copied().collect();
    assert_eq!(documented.len(), rows.len(), "{heading}: a setting is there twice");
    let members: BTreeSet<_> = members::<T>().into_iter().collect();
    let expected: BTreeSet<_> =
        members.iter().copied().filter(|one| !tables.contains(one)).collect();
    let documented: BTreeSet<_> =
        documented.into_iter().filter(|one| !one.starts_with('[')).collect();
    assert_eq!(documented, expected, "{heading}");
    for table in tables {
        assert!(members.contains(table), "{heading}: {table} is gone");
    }
}

#[test]
fn every_setting_is_documented_once() {
    let tables = ["metadata", "tpm", "disk", "join_services", "kubernetes", "programs"];
    assert_documented::<Settings>("## bootstrapper", &tables);
    assert_documented::<TpmSettings>("### `[tpm]`", &[]);
    assert_documented::<Disk>("### `[disk]`", &[]);
    assert_documented::<Trust>("### What the peer must prove", &[]);
    assert_documented::<Kubernetes>("### `[kubernetes]`", &[]);
    assert_documented::<JoinService>("## join-service", &["tpm", "nodes"]);
    assert_eq!(rows("### `[metadata]`"), ["kind", "path", "url"]);
}
