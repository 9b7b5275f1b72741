//! Texts with placeholders: matched, and filled.

use std::collections::BTreeMap;

/// The values of the placeholders, as far as they are known.
pub(crate) type Values = BTreeMap<String, String>;

/// A piece of a template: text, or the name of a placeholder.
enum Piece<'a> {
    Text(&'a str),
    Name(&'a str),
}

fn pieces(template: &str) -> Vec<Piece<'_>> {
    let mut rest = template;
    let mut pieces = Vec::new();
    while let Some((text, tail)) = rest.split_once("{{") {
        let (name, tail) = tail.split_once("}}").expect("a placeholder ends");
        pieces.extend([Piece::Text(text), Piece::Name(name)]);
        // `}}}` ends a placeholder before a brace of the text.
        rest = tail;
    }
    pieces.push(Piece::Text(rest));
    pieces
}

/// Matches a whole text; a placeholder stands for a text without quotes, the same everywhere.
pub(crate) fn matches(template: &str, text: &str, values: &mut Values) -> Result<(), String> {
    let differs = |rest: &str| Err(format!("{template}\n  is not at {rest:?} in\n  {text}"));
    let pieces = pieces(template);
    let mut rest = text;
    for (number, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(expected) => match rest.strip_prefix(expected) {
                Some(tail) => rest = tail,
                None => return differs(rest),
            },
            Piece::Name(name) => {
                let end = match pieces.get(number + 1) {
                    Some(Piece::Text(next)) if !next.is_empty() => rest.find(next),
                    _ => Some(rest.len()),
                };
                let Some((value, tail)) = end.map(|end| rest.split_at(end)) else {
                    return differs(rest);
                };
                let known = values.entry((*name).to_owned());
                if known.or_insert_with(|| value.to_owned()) != value || value.contains('"') {
                    return Err(format!("{name} is another one in {text}: {values:?}"));
                }
                rest = tail;
            }
        }
    }
    if rest.is_empty() { Ok(()) } else { differs(rest) }
}

/// The text, with a value for each placeholder.
pub(crate) fn filled(template: &str, values: &Values) -> String {
    let piece = |piece: &Piece<'_>| match piece {
        Piece::Text(text) => (*text).to_owned(),
        Piece::Name(name) => {
            values.get(*name).unwrap_or_else(|| panic!("nothing is known of {name}")).clone()
        }
    };
    pieces(template).iter().map(piece).collect()
}

#[test]
fn placeholders_keep_their_first_value() {
    let mut values = Values::new();
    assert!(matches(r#"{"a":"{{a}}"}"#, r#"{"a":"1"}"#, &mut values).is_ok());
    assert!(matches("{{a}};", "1;", &mut values).is_ok());
    assert!(matches("{{a}};", "2;", &mut values).is_err());
    assert!(matches(r#""{{b}}""#, r#""1","2""#, &mut values).is_err());
    assert_eq!(filled("x{{a}}y", &values), "x1y");
}
