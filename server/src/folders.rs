//! Folders that commands write to: what lies there, and how much room there is.

use crate::report::{Failure, Kind, Result};
use std::fs;
use std::io;
use std::path::Path;

/// Where a replica keeps what it knows of itself.
pub const REPLICA_RECORDS: &str = ".deltaic";

/// Fail, with this hint, if a folder is there and holds something.
///
/// # Errors
///
/// If so, or if it cannot be read.
pub fn must_be_empty(dir: &Path, hint: &str) -> Result<()> {
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => {
                let message = format!("{} is not empty", dir.display());
                Err(Failure::new(Kind::Conflict, message).hint(hint))
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::file(dir, &error)),
    }
}

/// Bytes that may still be written to the disk of `dir`.
///
/// # Errors
///
/// If the system does not tell.
pub fn free_space(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_or_missing_folder_is_written_to() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        assert!(must_be_empty(dir.path(), "x").is_ok());
        assert!(must_be_empty(&dir.path().join("new"), "x").is_ok());
        fs::write(dir.path().join("x"), b"")?;
        let failure = must_be_empty(dir.path(), "name another").expect_err("there is a file");
        assert_eq!(failure.kind, Kind::Conflict);
        assert_eq!(failure.hint, "name another");
        Ok(())
    }

    #[test]
    fn there_is_room_where_tests_run() {
        assert!(free_space(Path::new("/")).is_ok_and(|free| free > 0));
    }
}
