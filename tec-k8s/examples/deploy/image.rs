//! The Containerfile: one target per image, built from precompiled programs.

use tec_k8s::render::{OPERATOR_IMAGE, RelatedImage};

use crate::Files;

/// User and group of most programs.
const NOBODY: &str = "65532:65532";
/// Program, its image, and its user.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("operator", OPERATOR_IMAGE, NOBODY),
    ("register-server", RelatedImage::RegistrationServer.image_name(), NOBODY),
    ("attestation-key-register", RelatedImage::AttestationKeyRegister.image_name(), NOBODY),
    ("compute-pcrs", RelatedImage::ComputePcrs.image_name(), NOBODY),
    ("kbs-guard", RelatedImage::KbsGuard.image_name(), NOBODY),
    ("key-broker", RelatedImage::KeyBroker.image_name(), NOBODY),
    // Also the source of a release's `kubectl-tec`.
    ("tec", "tec", NOBODY),
    // The files of a control plane and the TPM device belong to root.
    ("join-service", "tec-join-service", "0:0"),
];
/// Programs of the image `tec-services`; each container names the one that it runs.
const SERVICES: [&str; 3] = ["services-bootstrap", "services-init", "services-broker"];

pub(crate) fn files() -> Files {
    Files::from([("Containerfile".to_owned(), containerfile())])
}

fn containerfile() -> String {
    let mut text = HEAD.to_owned();
    for (program, image, user) in PROGRAMS {
        text.push_str(
            &TARGET.replace("@PROGRAM@", program).replace("@IMAGE@", image).replace("@USER@", user),
        );
    }
    let programs = SERVICES.map(|program| format!("${{TARGETARCH}}/{program}")).join(" ");
    text.push_str(&SERVICES_TARGET.replace("@PROGRAMS@", &programs).replace("@USER@", NOBODY));
    text
}

const HEAD: &str = "# Written by `cargo xtask codegen` from tec-k8s. `cargo xtask images` compiles and builds.
#
# The context has the static programs of each architecture in a folder named after it, and
# ca-certificates.crt. Nothing is fetched and nothing runs, so one machine builds for all architectures.
#
# The vault of tec-services is another project's program. Only that target, the last one, has a base
# image; name it by digest for a release.
ARG VAULT_IMAGE=docker.io/openbao/openbao:2.7.2
";

const TARGET: &str = r#"
FROM scratch AS @IMAGE@
ARG TARGETARCH
COPY ca-certificates.crt /etc/ssl/certs/
COPY ${TARGETARCH}/@PROGRAM@ /usr/bin/
USER @USER@
ENTRYPOINT ["/usr/bin/@PROGRAM@"]
"#;

const SERVICES_TARGET: &str = r"
FROM ${VAULT_IMAGE} AS vault

FROM scratch AS tec-services
ARG TARGETARCH
COPY ca-certificates.crt /etc/ssl/certs/
COPY @PROGRAMS@ /usr/bin/
COPY --from=vault /bin/bao /usr/bin/
USER @USER@
";
