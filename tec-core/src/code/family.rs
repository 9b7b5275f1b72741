//! Families of codes: what codes with the same first letter have in common.

use super::Code;

/// A family of codes.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Family {
    /// The letter after `TEC-`.
    pub letter: char,
    /// What its codes are about.
    pub title: &'static str,
    /// How to look further.
    pub look: &'static str,
}

impl Family {
    /// All families.
    pub const ALL: &'static [Self] = &FAMILIES;
}

impl Code {
    /// Its family.
    pub fn family(self) -> &'static Family {
        let letter = self.as_str().chars().nth(4);
        FAMILIES.iter().find(|family| Some(family.letter) == letter).unwrap_or(&OTHER)
    }

    /// The command that prints its page, without a network.
    pub fn command(self) -> String {
        format!("tec explain {self}")
    }
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
    fn every_code_has_a_family() {
        for code in Code::ALL {
            assert_ne!(code.family(), &OTHER, "{code}");
        }
    }
}
