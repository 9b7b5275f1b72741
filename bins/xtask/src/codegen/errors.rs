//! One page per error code, and an index, from the table in tec-core.

use std::collections::BTreeMap;

use tec_core::code::{Code, Family};

pub(super) fn pages() -> BTreeMap<String, String> {
    let mut pages: BTreeMap<String, String> =
        Code::ALL.iter().map(|code| (format!("{code}.md"), page(*code))).collect();
    pages.insert("README.md".to_owned(), index());
    pages
}

const GENERATED: &str = "<!-- Written by `cargo xtask codegen` from tec-core/src/code.rs. -->";

fn page(code: Code) -> String {
    let Family { title, look, .. } = code.family();
    format!(
        "{GENERATED}\n# {code}: {sentence}\n\nFamily: {title}. HTTP status: {status}.\n\n\
         ## Cause\n\n{cause}\n\n## What to do\n\n{fix}\n\n## How to look further\n\n{look}\n\n\
         [All codes](README.md)\n",
        sentence = code.title(),
        status = code.http_status(),
        cause = code.cause(),
        fix = code.fix(),
    )
}

fn index() -> String {
    let mut page = format!(
        "{GENERATED}\n# Error codes\n\nA refused caller receives only the code and its title. \
         The details are in the server's log and in `tec explain`.\n"
    );
    for family in Family::ALL {
        page.extend(["\n## ", family.title, "\n\n| code | HTTP | meaning |\n|---|---|---|\n"]);
        let codes = Code::ALL.iter().filter(|code| code.family() == family);
        page.extend(codes.map(|code| {
            let (status, title) = (code.http_status(), code.title());
            format!("| [{code}]({code}.md) | {status} | {title} |\n")
        }));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page() {
        let pages = pages();
        for code in Code::ALL {
            let page = pages.get(&format!("{code}.md")).unwrap();
            for part in [code.title(), code.cause(), code.fix(), code.family().look] {
                assert!(page.contains(part), "{code}");
            }
        }
        assert_eq!(pages.len(), Code::ALL.len() + 1);
    }

    #[test]
    fn the_index_links_every_code() {
        let index = index();
        for code in Code::ALL {
            assert!(index.contains(&format!("[{code}]({code}.md)")), "{code}");
        }
    }
}
