//! Whether two folders hold the same files, by content.

use rayon::prelude::*;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What a replica keeps for itself.
const INTERNAL: &str = ".deltaic";

/// Compare every file of `replica` with that of `original`, byte by byte; what differs, if anything.
///
/// # Errors
///
/// If a file cannot be read.
pub fn difference(original: &Path, replica: &Path) -> io::Result<Option<String>> {
    let (wanted, found) = (files(original)?, files(replica)?);
    if let Some(name) = wanted.symmetric_difference(&found).next() {
        let side = if found.contains(name) {
            "too many"
        } else {
            "missing"
        };
        return Ok(Some(format!("{} is {side}", name.display())));
    }
    let differing = wanted.par_iter().map(|name| {
        let same = same_bytes(&original.join(name), &replica.join(name))?;
        Ok((!same).then(|| format!("{} differs", name.display())))
    });
    let differing: io::Result<Vec<Option<String>>> = differing.collect();
    Ok(differing?.into_iter().flatten().next())
}

/// Names of the files in a folder without folders, apart from a replica's own.
fn files(dir: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let names = fs::read_dir(dir)?.map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())));
    let names: io::Result<BTreeSet<PathBuf>> = names.collect();
    Ok(names?
        .into_iter()
        .filter(|name| name != Path::new(INTERNAL))
        .collect())
}

fn same_bytes(a: &Path, b: &Path) -> io::Result<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let mut left = a.metadata()?.len();
    if left != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut part_a, mut part_b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    while left > 0 {
        let len = left.min(part_a.len() as u64) as usize;
        a.read_exact(&mut part_a[..len])?;
        b.read_exact(&mut part_b[..len])?;
        if part_a[..len] != part_b[..len] {
            return Ok(false);
        }
        left -= len as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_found() -> io::Result<()> {
        let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let put = |dir: &Path, name: &str, bytes: &[u8]| fs::write(dir.join(name), bytes);
        put(a.path(), "w", b"weights")?;
        let found = || difference(a.path(), b.path());
        assert_eq!(found()?.as_deref(), Some("w is missing"));
        put(b.path(), "w", b"weighty")?;
        assert_eq!(found()?.as_deref(), Some("w differs"));
        put(b.path(), "w", b"weights!")?;
        assert_eq!(found()?.as_deref(), Some("w differs"));
        put(b.path(), "w", b"weights")?;
        fs::create_dir(b.path().join(INTERNAL))?;
        assert_eq!(found()?, None);
        put(b.path(), "x", b"")?;
        assert_eq!(found()?.as_deref(), Some("x is too many"));
        Ok(())
    }
}
