//! Locations of the programs and files that the scenes use.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Parser;

/// Plays the main use case end to end and writes a report.
#[derive(Clone, Debug, Parser)]
#[command(version)]
#[non_exhaustive]
pub struct Settings {
    /// Cache of tools and boot files, as set up by `cargo xtask tools`
    #[arg(long, env = "TEC_CACHE")]
    pub cache: PathBuf,
    /// Directory with the programs `tec` and `node-agent`
    #[arg(long, env = "TEC_BIN_DIR")]
    pub bin_dir: PathBuf,
    /// Output file for the HTML report
    #[arg(long, default_value = "report.html")]
    pub report: PathBuf,
    /// Keep the working directory, and print its path
    #[arg(long)]
    pub keep: bool,
}

impl Settings {
    /// Settings for a test: everything from the environment that `cargo xtask` sets, or from the directory
    /// where cargo puts the programs.
    pub fn for_tests(report: &Path) -> anyhow::Result<Self> {
        let cache = cache()?;
        let settings = Self { cache, bin_dir: bin_dir()?, report: report.to_owned(), keep: false };
        settings.check()?;
        Ok(settings)
    }

    /// Settings for a benchmark: programs in this directory, boot files from the cache.
    pub fn for_benches(bin_dir: PathBuf) -> anyhow::Result<Self> {
        Ok(Self { cache: cache()?, bin_dir, report: PathBuf::new(), keep: false })
    }

    /// Checks that everything is there.
    ///
    /// # Errors
    /// Something is missing; the error names it, and the command that sets it up.
    pub fn check(&self) -> anyhow::Result<()> {
        for program in [self.tec(), self.node_agent()] {
            ensure!(
                program.is_file(),
                "{} is missing; run `cargo build -p tec -p node-agent`",
                program.display()
            );
        }
        for path in [self.ignition_validate(), self.image("current"), self.image("update")] {
            ensure!(path.exists(), "{} is missing; run `cargo xtask tools`", path.display());
        }
        Ok(())
    }

    /// The program `tec`.
    pub fn tec(&self) -> PathBuf {
        self.bin_dir.join("tec")
    }

    /// The program `node-agent`.
    pub fn node_agent(&self) -> PathBuf {
        self.bin_dir.join("node-agent")
    }

    /// The validator of Ignition configs.
    pub fn ignition_validate(&self) -> PathBuf {
        self.cache.join("bin/ignition-validate")
    }

    /// Root of an image's file tree.
    pub fn image(&self, name: &str) -> PathBuf {
        self.cache.join("images/debian").join(name)
    }
}

/// Directory of our own programs: `TEC_BIN_DIR`, or where cargo puts them.
fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("TEC_BIN_DIR") {
        return Ok(PathBuf::from(dir));
    }
    // A test is in target/<profile>/deps, the programs one level above.
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent);
    let profile = profile.context("this test lies outside a target directory")?;
    Ok(profile.to_owned())
}

/// Output path for the picture of a test: next to the programs, in `migrate`.
pub fn picture(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test.ancestors().nth(3);
    let target = target.context("this test lies outside a target directory")?;
    let directory = target.join("migrate");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory.join(format!("{name}.html")))
}

/// One of our own programs.
///
/// # Errors
/// The program is missing; the error names the command that builds it.
pub fn own_program(name: &str) -> anyhow::Result<PathBuf> {
    let path = bin_dir()?.join(name);
    ensure!(path.is_file(), "{} is missing; run `cargo build -p {name}`", path.display());
    Ok(path)
}

/// The tools cache, located as in `cargo xtask`.
pub fn cache() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".cache"));
    let base = || variable("XDG_CACHE_HOME").or_else(home);
    variable("TEC_CACHE")
        .or_else(|| base().map(|dir| dir.join("tec")))
        .context("TEC_CACHE is not set; run `cargo xtask tools`")
}
