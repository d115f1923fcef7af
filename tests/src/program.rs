//! The `deltaic` program, as users run it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Path of the program, which cargo builds into the folder above that of the test binaries.
///
/// # Errors
///
/// Says how to build it if it is not there.
pub fn path() -> Result<PathBuf, String> {
    let executable = std::env::current_exe().map_err(|e| e.to_string())?;
    // Tests run from target/debug/deps, benchmarks from target/debug.
    let found = (executable.ancestors().skip(1).take(2))
        .map(|folder| folder.join("deltaic"))
        .find(|program| program.is_file());
    found.ok_or_else(|| {
        let folder = executable.parent().unwrap_or(Path::new("."));
        format!(
            "there is no program `deltaic` in {} or above it: run `cargo build --workspace` first",
            folder.display()
        )
    })
}

/// A command that runs the program without the settings of whoever runs the tests.
///
/// # Panics
///
/// If the program was not built; the message says how.
pub fn command() -> Command {
    let mut command = Command::new(path().unwrap_or_else(|why| panic!("{why}")));
    for variable in ["DELTAIC_STORE", "DELTAIC_ENDPOINT", "DELTAIC_TOKEN"] {
        command.env_remove(variable);
    }
    command
}
