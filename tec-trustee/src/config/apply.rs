//! Writes settings into a text and touches nothing else.

use tec_core::trustee::PatchError;
use toml::{Table, Value};
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, TableLike};

use super::settings::{Path, Settings};

/// Changes `document`, whose parsed value is `before`, to what `settings` prescribes.
pub(super) fn apply(
    document: &mut DocumentMut,
    before: &Table,
    settings: Settings,
) -> Result<(), PatchError> {
    let root = document.as_table_mut();
    for (path, value) in &settings.set {
        if at(before, path) != Some(value) {
            set(root, path, value)?;
        }
    }
    for path in &settings.remove {
        if at(before, path).is_some() {
            remove(root, path);
        }
    }
    if before.get("admin") != Some(&Value::Table(settings.admin.clone())) {
        root.insert("admin", admin(settings.admin)?);
    }
    plugin(root, &settings.plugin)
}

fn at(table: &Table, path: Path) -> Option<&Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, key| value.get(*key))
}

fn shape(key: impl Into<String>) -> PatchError {
    PatchError::Shape(key.into())
}

/// Sets a key, creating tables on the way.
fn set(root: &mut dyn TableLike, path: Path, value: &Value) -> Result<(), PatchError> {
    let Some((key, parents)) = path.split_last() else {
        return Ok(());
    };
    let mut table = root;
    for (depth, name) in parents.iter().enumerate() {
        table = table
            .entry(name)
            .or_insert_with(new_table)
            .as_table_like_mut()
            .ok_or_else(|| shape(path.get(..=depth).unwrap_or_default().join(".")))?;
    }
    let mut value = inline(value)?;
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            // Comments at the end of the line stay.
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => {
            table.insert(key, Item::Value(value));
        }
    }
    Ok(())
}

/// A table that prints its header only if it has keys of its own.
fn new_table() -> Item {
    let mut table = toml_edit::Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

fn remove(root: &mut dyn TableLike, path: Path) {
    let Some((key, parents)) = path.split_last() else {
        return;
    };
    let mut table = root;
    for name in parents {
        let Some(next) = table.get_mut(name).and_then(Item::as_table_like_mut) else {
            return;
        };
        table = next;
    }
    table.remove(key);
}

fn inline(value: &Value) -> Result<toml_edit::Value, PatchError> {
    value
        .to_string()
        .parse()
        .map_err(|error: toml_edit::TomlError| PatchError::Parse(Box::new(error)))
}

/// The table as it would be written in a file of its own.
fn admin(admin: Table) -> Result<Item, PatchError> {
    let alone = Table::from_iter([("admin".to_owned(), Value::Table(admin))]);
    let mut document: DocumentMut = toml::to_string(&alone)
        .map_err(|error| PatchError::Parse(Box::new(error)))?
        .parse()
        .map_err(|error: toml_edit::TomlError| PatchError::Parse(Box::new(error)))?;
    let mut item = document.remove("admin").ok_or_else(|| shape("admin"))?;
    forget_place(&mut item);
    if let Item::Table(table) = &mut item {
        table.decor_mut().set_prefix("\n");
    }
    Ok(item)
}

/// Positions refer to the file that a table was parsed from; without one, a table is written where it was
/// inserted.
fn forget_place(item: &mut Item) {
    match item {
        Item::Table(table) => {
            table.set_position(None);
            for (_, inner) in table.iter_mut() {
                forget_place(inner);
            }
        }
        Item::ArrayOfTables(tables) => {
            for table in tables.iter_mut() {
                table.set_position(None);
            }
        }
        _ => {}
    }
}

/// Without the plugin `resource` no key can be fetched.
fn plugin(root: &mut dyn TableLike, keys: &[(&'static str, Value)]) -> Result<(), PatchError> {
    let plugins =
        root.entry("plugins").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    if !list(plugins)?.any(|plugin| is_resource(plugin)) {
        push_resource(plugins);
    }
    for plugin in list(plugins)?.filter(|plugin| is_resource(*plugin)) {
        for (key, value) in keys {
            if plugin.get(key).and_then(Item::as_str).is_none() {
                plugin.insert(key, Item::Value(inline(value)?));
            }
        }
    }
    Ok(())
}

fn is_resource(plugin: &dyn TableLike) -> bool {
    plugin.get("name").and_then(Item::as_str) == Some("resource")
}

/// The plugins, written as `[[plugins]]` or in one line.
fn list(
    plugins: &mut Item,
) -> Result<Box<dyn Iterator<Item = &mut dyn TableLike> + '_>, PatchError> {
    match plugins {
        Item::ArrayOfTables(tables) => {
            Ok(Box::new(tables.iter_mut().map(|table| table as &mut dyn TableLike)))
        }
        Item::Value(toml_edit::Value::Array(array)) => {
            if !array.iter().all(toml_edit::Value::is_inline_table) {
                return Err(shape("plugins"));
            }
            Ok(Box::new(array.iter_mut().filter_map(|value| {
                value.as_inline_table_mut().map(|table| table as &mut dyn TableLike)
            })))
        }
        _ => Err(shape("plugins")),
    }
}

fn push_resource(plugins: &mut Item) {
    match plugins {
        Item::ArrayOfTables(tables) => {
            let mut table = toml_edit::Table::new();
            table.insert("name", toml_edit::value("resource"));
            tables.push(table);
        }
        Item::Value(toml_edit::Value::Array(array)) => {
            let mut table = InlineTable::new();
            table.insert("name", "resource".into());
            array.push(table);
        }
        _ => {}
    }
}
