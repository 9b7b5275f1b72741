//! One page per error code, and an index, from the table in tec-core.

use std::collections::BTreeMap;

use tec_core::code::Code;

pub(super) fn pages() -> BTreeMap<String, String> {
    let mut pages: BTreeMap<String, String> =
        Code::ALL.iter().map(|code| (format!("{code}.md"), page(*code))).collect();
    pages.insert("README.md".to_owned(), index());
    pages
}

const GENERATED: &str = "<!-- Written by `cargo xtask codegen` from tec-core/src/code.rs. -->";

fn page(code: Code) -> String {
    let Family { title, look, .. } = family(code);
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
    for family in FAMILIES {
        page.extend(["\n## ", family.title, "\n\n| code | HTTP | meaning |\n|---|---|---|\n"]);
        let codes = Code::ALL.iter().filter(|c| letter(**c) == family.letter);
        page.extend(codes.map(|code| {
            let (status, title) = (code.http_status(), code.title());
            format!("| [{code}]({code}.md) | {status} | {title} |\n")
        }));
    }
    page
}

struct Family {
    letter: char,
    title: &'static str,
    look: &'static str,
}

/// The letter after `TEC-`.
fn letter(code: Code) -> char {
    code.as_str().chars().nth(4).unwrap_or('?')
}

fn family(code: Code) -> &'static Family {
    FAMILIES.iter().find(|family| family.letter == letter(code)).unwrap_or(&OTHER)
}

const OTHER: Family = Family {
    letter: '?',
    title: "Other",
    look: "Read the log of the program that printed the code.",
};

const FAMILIES: [Family; 12] = [
    Family {
        letter: 'R',
        title: "Registration of machines and attestation keys",
        look: "On the server, read the log at the time of the request; `tec machine list` and `tec ak list` \
               show what is registered, and `tec audit` shows who changed it and when.",
    },
    Family {
        letter: 'A',
        title: "Attestation checks",
        look: "On the server, `tec explain <machine>` lists the checks of the machine's last \
               attempt and names the first that failed; with `--output json` it contains every \
               event and digest. On the node, the journal of the boot has the ID of the attempt, \
               which `tec explain` also accepts.",
    },
    Family {
        letter: 'K',
        title: "Stored keys",
        look: "On the server, the log at the time of the request names the record; `tec status` \
               shows whether the seal key file matches the store.",
    },
    Family {
        letter: 'P',
        title: "Policies",
        look: "The answer and the log name the line and column. docs/reference documents the \
               input and data of policies.",
    },
    Family {
        letter: 'T',
        title: "TLS",
        look: "The log names the file. A running server keeps the last good certificate until it \
               can use the new one.",
    },
    Family {
        letter: 'B',
        title: "Bootstrap of nodes: init, join, recovery",
        look: "`tec node init` shows the node's own log to anyone who has its secret; otherwise, \
               read the journal of `bootstrapper` on the node and the log of `join-service`.",
    },
    Family {
        letter: 'I',
        title: "Approved images",
        look: "`tec image list` shows what is approved, since when, and until when. The error \
               names the file and, within it, the offset.",
    },
    Family {
        letter: 'S',
        title: "The embedded store",
        look: "The log at the time of the request, or at startup, has the cause that the database \
               or the operating system gave. `tec status` runs the same checks as startup.",
    },
    Family {
        letter: 'C',
        title: "Kubernetes",
        look: "`kubectl tec check` shows what is missing in a cluster, and `kubectl tec status` \
               what needs an admin; the log of the operator has the rest.",
    },
    Family {
        letter: 'N',
        title: "The node",
        look: "On the node, the journal of the boot has the whole chain of causes; it never \
               contains key material.",
    },
    Family {
        letter: 'M',
        title: "Migration of trust",
        look: "`tec migrate status` shows who has the authority, and `tec audit list` at either \
               anchor shows when it moved; `tec migrate plan` names what prevents the move.",
    },
    Family {
        letter: 'V',
        title: "The vault and the services around it",
        look: "Read the log of services-bootstrap in the vault's pod, or of services-init in the \
               waiting pod. An exit code of the container from 10 to 17 is the last two digits of \
               the code.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_family_and_a_page() {
        let pages = pages();
        for code in Code::ALL {
            assert_ne!(family(*code).letter, OTHER.letter, "{code}");
            let page = pages.get(&format!("{code}.md")).unwrap();
            for part in [code.title(), code.cause(), code.fix()] {
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
