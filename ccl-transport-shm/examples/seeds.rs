//! Writes good inputs for the fuzzers of fuzz/ to start from: `seeds FOLDER`, a folder for each target in it.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("say where to")?;
    let all = ccl_core::fuzzing::TARGETS.iter().chain(&ccl_transport_shm::fuzzing::TARGETS);
    for (target, _, seeds) in all {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds() {
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
