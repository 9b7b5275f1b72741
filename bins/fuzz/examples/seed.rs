//! Writes the seeds of all targets into `corpus/`, and the list of the hostile ones:
//! `cargo run -p tec-fuzz --example seed`.
//!
//! Seeds are a function of the code, so that running it again changes nothing; obsolete seeds are
//! removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in tec_fuzz::TARGETS {
        let dir = corpus.join(target.name);
        fs::create_dir_all(&dir)?;
        let mut names = BTreeSet::new();
        for seed in (target.seeds)() {
            fs::write(dir.join(&seed.name), &seed.content)?;
            names.insert(seed.name);
        }
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if !names.contains(entry.file_name().to_string_lossy().as_ref()) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    fs::write(corpus.join("README.md"), tec_fuzz::manifest::manifest())
}
