//! How each flag of `tec serve` is handled if the anchor is a namespace. No flag is ignored silently.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;
use tec_k8s::render::{OPERATOR_IMAGE, RelatedImage};

use self::Form::{Carried, Field, Refused};
use crate::settings::Settings;

/// The flags given on the command line or in the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    ids: Vec<String>,
    settings: Settings,
}

impl Given {
    pub(super) fn has(&self, id: &str) -> bool {
        self.ids.iter().any(|given| given == id)
    }

    /// The flags of `tec serve`.
    pub(super) fn into_settings(self) -> Settings {
        self.settings
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&str| {
            let source = matches.value_source(id);
            source.is_some_and(|source| source != ValueSource::DefaultValue)
        };
        let ids = FLAGS.iter().map(|(id, _)| *id).filter(|id| matches.try_contains_id(id).is_ok());
        let ids = ids.filter(is_given).map(str::to_owned).collect();
        Ok(Self { ids, settings: Settings::given(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// How a flag is handled.
enum Form {
    /// It becomes a field of the cluster object.
    Field(&'static str),
    /// It is used elsewhere: in Secrets, certificates, or the operator's flags.
    Carried,
    /// It has no equivalent; the string says what to do instead.
    Refused(&'static str),
}

/// All flags, by ID.
const FLAGS: [(&str, Form); 33] = [
    ("register_addr", Field("/registerServerPort")),
    ("ak_addr", Field("/attestationKeyRegisterPort")),
    ("kbs_addr", Field("/trusteeKbsPort")),
    ("public_host", Field("/publicTrusteeAddr")),
    ("also_kbs", Field("/additionalTrustees")),
    ("root_device", Refused("nodes of a namespace have their root at /dev/disk/by-partlabel/root")),
    ("tls_cert", Carried),
    ("tls_key", Carried),
    ("tls_ca", Carried),
    ("dangerous_plain_http", Field("/dangerousPlainHttp")),
    ("ak_approval", Field("/approval/policy")),
    ("allow_ek", Field("/approval/allowedEndorsementKeys")),
    ("ek_roots", Field("/approval/endorsementRootsConfigMap")),
    ("registration_token_file", Field("/registration/tokenSecret")),
    (
        "register_rate",
        Refused("remove it: each registration server takes 1000 requests per second"),
    ),
    ("kbs_rate", Refused("remove it: the guard has limits of its own, see kbs-guard --help")),
    ("max_unclaimed", Field("/registration/maxUnclaimed")),
    ("max_claimed", Field("/approval/maxClaimed")),
    ("max_claimed_per_source", Field("/approval/maxClaimedPerSource")),
    ("reserve_mib", Refused("remove it: there is no store, etcd has a quota of its own")),
    ("unclaimed_seconds", Field("/registration/unclaimedTtlSeconds")),
    ("pcrs", Carried),
    ("disk_keys", Carried),
    ("evidence", Refused(EVIDENCE)),
    ("snp_id_keys", Refused(EVIDENCE)),
    ("snp_measurements", Refused(EVIDENCE)),
    ("snp_minimum_tcb", Refused(EVIDENCE)),
    ("ui_addr", Refused("remove it: kubectl tec status --html FILE writes the page of a cluster")),
    ("registry", Carried),
    ("operator_image", Carried),
    ("pull_secret", Carried),
    ("assigned_pod_user", Carried),
    ("user_roles", Carried),
];

const EVIDENCE: &str = "remove it, then set spec.evidence of the cluster object (kubectl edit \
                        trustedexecutioncluster cluster)";

/// A flag that cannot be honored.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlagError {
    /// A namespace has no equivalent of the flag.
    #[error("{flag} is not supported with --namespace: {instead}")]
    NoPlace { flag: String, instead: &'static str },
    /// The flag is missing: nodes would get an address that they cannot use.
    #[error(
        "{flag} is required with --namespace: nodes keep it for good (tec bootstrap init --namespace \
         NAMESPACE {flag} NAME)"
    )]
    Missing { flag: String },
    /// The existing object differs, and is not changed.
    #[error(
        "{flag} differs from spec{} of TrustedExecutionCluster {name}, which is {there} and stays \
         (kubectl edit trustedexecutioncluster {name})",
        field.replace('/', ".")
    )]
    Differs { flag: String, field: &'static str, there: Value, name: String },
    /// The operator is to be installed, and nothing says where its images are.
    #[error(
        "--registry is required to install the operator: the registry that you pushed the images of \
         this release to (tec bootstrap init --namespace NAMESPACE --registry registry.example/tec)"
    )]
    NoRegistry,
    /// The flag has no effect without another flag.
    #[error("{flag} has no effect without {needs}: add it")]
    NoEffect { flag: String, needs: &'static str },
    /// The existing operator runs with other flags, and is not changed.
    #[error(
        "{flag} differs from what the operator there runs with: add {wanted} to its arguments (kubectl \
         edit deployment trusted-cluster-operator)"
    )]
    OtherOperator { flag: String, wanted: String },
}

/// Parses `NAME=IMAGE`.
pub(super) fn component_image(text: &str) -> Result<(String, String), String> {
    let (name, image) = text.split_once('=').ok_or("it has the form NAME=IMAGE")?;
    let known = RelatedImage::ALL.map(RelatedImage::image_name);
    if name != OPERATOR_IMAGE && !known.contains(&name) {
        return Err(format!("NAME is one of {OPERATOR_IMAGE}, {}", known.join(", ")));
    }
    Ok((name.to_owned(), image.to_owned()))
}

/// The flag as typed.
pub(super) fn typed(id: &str) -> String {
    match id {
        "snp_id_keys" => "--snp-id-key".to_owned(),
        "snp_measurements" => "--snp-measurement".to_owned(),
        id => format!("--{}", id.replace('_', "-")),
    }
}

/// Checks that every given flag has an equivalent in a namespace.
pub(super) fn check(given: &Given) -> Result<(), FlagError> {
    for (id, form) in &FLAGS {
        if let (Refused(instead), true) = (form, given.has(id)) {
            return Err(FlagError::NoPlace { flag: typed(id), instead });
        }
    }
    if !given.has("public_host") {
        return Err(FlagError::Missing { flag: typed("public_host") });
    }
    Ok(())
}

/// Checks that the existing specification matches the given flags.
pub(super) fn compare(
    given: &Given,
    name: &str,
    wanted: &Value,
    there: &Value,
) -> Result<(), FlagError> {
    for (id, form) in &FLAGS {
        let (Field(field), true) = (form, given.has(id)) else {
            continue;
        };
        let (wanted, there) = (wanted.pointer(field), there.pointer(field));
        if wanted.unwrap_or(&Value::Null) != there.unwrap_or(&Value::Null) {
            let (flag, there) = (typed(id), there.cloned().unwrap_or_default());
            return Err(FlagError::Differs { flag, field, there, name: name.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::command::bootstrap::{BootstrapCommand, InstallArgs};
    use crate::serve::args::ServeArgs;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: BootstrapCommand,
    }

    fn given(words: &[&str]) -> Given {
        let words = ["tec", "init"].iter().chain(words);
        match Cli::parse_from(words).command {
            BootstrapCommand::Init { given, .. } => given,
            other @ BootstrapCommand::Check(_) => panic!("{other:?}"),
        }
    }

    /// Fails for a new flag until it is added to the table with its meaning in a namespace.
    #[test]
    fn every_flag_of_the_server_is_carried_over_or_refused() {
        let command = InstallArgs::augment_args(ServeArgs::augment_args(Command::new("init")));
        let takes: BTreeSet<_> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        let listed: BTreeSet<_> = FLAGS.iter().map(|(id, _)| *id).collect();
        assert_eq!(listed, takes, "put each flag into FLAGS");
        for argument in command.get_arguments() {
            let long = argument.get_long().unwrap();
            assert_eq!(typed(argument.get_id().as_str()), format!("--{long}"));
        }
        let names = given(&["--public-host", "h", "--pull-secret", "p"]).ids;
        assert_eq!(names, ["public_host", "pull_secret"], "nothing that was not given");
    }

    #[test]
    fn what_has_no_place_in_a_namespace_is_refused_by_its_name() {
        let digest = "ab".repeat(48);
        for (flag, value) in [
            ("--root-device", "/dev/vda4"),
            ("--register-rate", "7"),
            ("--kbs-rate", "7"),
            ("--reserve-mib", "7"),
            ("--evidence", "az-snp-vtpm"),
            ("--snp-id-key", &digest),
            ("--snp-measurement", &digest),
            ("--snp-minimum-tcb", "1,2,3,4"),
            ("--ui-addr", "127.0.0.1:8090"),
        ] {
            let refused = check(&given(&["--public-host", "h", flag, value])).unwrap_err();
            assert!(matches!(&refused, FlagError::NoPlace { flag: named, .. } if named == flag));
        }
        let count = FLAGS.iter().filter(|(_, form)| matches!(form, Refused(_))).count();
        assert_eq!(count, 9, "each is tried above");
    }

    #[test]
    fn no_node_is_told_of_localhost() {
        let missing = FlagError::Missing { flag: "--public-host".to_owned() };
        assert_eq!(check(&given(&[])), Err(missing));
        assert_eq!(check(&given(&["--public-host", "localhost"])), Ok(()));
    }

    #[test]
    fn what_is_there_and_says_something_else_is_an_error_only_for_flags_that_were_given() {
        let wanted = json!({"approval": {"policy": "EndorsementKey", "maxClaimed": 10}});
        let there = json!({"approval": {"policy": "FirstUse", "maxClaimed": 20}});
        assert_eq!(compare(&given(&[]), "c", &wanted, &there), Ok(()));
        let differs = compare(&given(&["--ak-approval", "ek"]), "c", &wanted, &there).unwrap_err();
        assert!(matches!(differs, FlagError::Differs { field: "/approval/policy", .. }));
    }
}
