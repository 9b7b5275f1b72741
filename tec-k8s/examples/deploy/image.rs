//! The file that images are built from: one stage that compiles, one target for each program.

use tec_k8s::render::RelatedImage;

use crate::Files;

/// As whom most programs run.
const NOBODY: &str = "65532:65532";
/// What the programs are built from.
const PACKAGES: [&str; 7] = [
    "operator",
    "registration",
    "compute-pcrs",
    "kbs-guard",
    "tec",
    "bootstrapper",
    "tec-services",
];
/// Program, its image, and as whom it runs.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("operator", "trusted-cluster-operator", NOBODY),
    ("register-server", RelatedImage::RegistrationServer.image_name(), NOBODY),
    ("attestation-key-register", RelatedImage::AttestationKeyRegister.image_name(), NOBODY),
    ("compute-pcrs", RelatedImage::ComputePcrs.image_name(), NOBODY),
    ("kbs-guard", RelatedImage::KbsGuard.image_name(), NOBODY),
    ("key-broker", RelatedImage::KeyBroker.image_name(), NOBODY),
    // Also what `kubectl-tec` of a release is taken from.
    ("tec", "tec", NOBODY),
    // The files of a control plane and the TPM's device are root's.
    ("join-service", "join-service", "0:0"),
];
/// Programs of the image `tec-services`, whose containers name the one that they run.
const SERVICES: [&str; 3] = ["services-bootstrap", "services-init", "services-broker"];

pub(crate) fn files() -> Files {
    Files::from([
        ("Containerfile".to_owned(), containerfile()),
        ("Containerfile.dockerignore".to_owned(), IGNORED.to_owned()),
    ])
}

fn containerfile() -> String {
    let mut text = HEAD.to_owned();
    let packages = PACKAGES.map(|package| format!("--package {package}"));
    text.push_str(&BUILD.replace("@PACKAGES@", &packages.join(" ")));
    for (program, image, user) in PROGRAMS {
        text.push_str(
            &TARGET.replace("@PROGRAM@", program).replace("@IMAGE@", image).replace("@USER@", user),
        );
    }
    let paths = SERVICES.map(|program| format!("/src/target/release/{program}"));
    text.push_str(
        &SERVICES_TARGET.replace("@PROGRAMS@", &paths.join(" ")).replace("@USER@", NOBODY),
    );
    text
}

const HEAD: &str = "# Written by `cargo xtask codegen` from tec-k8s.
#
#   podman build --file bins/operator/deploy/image/Containerfile \\
#     --platform linux/amd64,linux/arm64 --target <image> --manifest <name> \\
#     --source-date-epoch \"$(git log -1 --format=%ct)\" --rewrite-timestamp .
#
# Each platform compiles for itself, so that the C of SQLite and ring meets the right headers. The
# toolchain of rust-toolchain.toml, the lock file, and paths that do not depend on the machine give
# the same bytes each time. Name the images below by digest for a release.
ARG RUST_IMAGE=docker.io/library/rust:1.95.0-alpine
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:nonroot
# For the vault's container of tec-services.
ARG VAULT_IMAGE=docker.io/openbao/openbao:2.7.2
";

/// Neither what was built here nor the history goes into the build.
const IGNORED: &str = "# Written by `cargo xtask codegen` from tec-k8s.\n.git\ntarget\n";

const BUILD: &str = r#"
FROM ${RUST_IMAGE} AS build
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
# On Alpine the host's own target is musl, and static.
ENV CARGO_INCREMENTAL=0 RUSTUP_TOOLCHAIN=1.95.0 \
    RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=/src=/tec --remap-path-prefix=/usr/local/cargo=/cargo"
ARG TEC_REVISION
RUN cargo build --locked --release @PACKAGES@
"#;

const TARGET: &str = r#"
FROM ${BASE_IMAGE} AS @IMAGE@
COPY --from=build /src/target/release/@PROGRAM@ /usr/bin/@PROGRAM@
USER @USER@
ENTRYPOINT ["/usr/bin/@PROGRAM@"]
"#;

const SERVICES_TARGET: &str = r"
FROM ${VAULT_IMAGE} AS vault

FROM ${BASE_IMAGE} AS tec-services
COPY --from=build @PROGRAMS@ /usr/bin/
COPY --from=vault /bin/bao /usr/bin/bao
USER @USER@
";
