//! Room for uploads. The disk is there for what is committed: uploads leave some of it free, and what nobody goes on with makes
//! way for those that come, the oldest first.

use super::{OpenUploads, spool};
use crate::error::{Result, StoreError};
use deltaic_format::upload::UploadId;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What came of an upload that nobody goes on with is kept so long.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Bytes of the disk that uploads leave free, or a twentieth of a smaller one.
const LEFT_BYTES: u64 = 1 << 30;
const LEFT_SHARE: u64 = 20;

/// Bytes of one upload between two looks at the disk.
const BETWEEN_LOOKS: u64 = 1 << 20;

/// Uploads of which something is held at a time.
const MAX_SPOOLS: usize = 4096;

/// The folder of all spools, as one upload sees it.
#[derive(Debug)]
pub(super) struct Room {
    uploads: PathBuf,
    open: OpenUploads,
    /// Bytes until the next look at the disk.
    unlooked: u64,
}

/// A spool that lies there.
struct Lying {
    id: UploadId,
    path: PathBuf,
    touched: SystemTime,
}

impl Room {
    pub(super) fn new(uploads: PathBuf, open: OpenUploads) -> Self {
        Self {
            uploads,
            open,
            unlooked: 0,
        }
    }

    /// Have room for one more upload.
    pub(super) fn admit(&self) -> Result<()> {
        while self.lying()?.len() >= MAX_SPOOLS && self.remove_oldest()? {}
        Ok(())
    }

    /// Have room for so many more bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoSpace`] if there is none even without all that nobody goes on with.
    pub(super) fn take(&mut self, bytes: u64) -> Result<()> {
        if bytes < self.unlooked {
            self.unlooked -= bytes;
            return Ok(());
        }
        self.unlooked = 0;
        self.make(bytes, &spare)?;
        self.unlooked = BETWEEN_LOOKS;
        Ok(())
    }

    fn make(&self, bytes: u64, spare: &dyn Fn(&Path) -> Option<u64>) -> Result<()> {
        // Where it cannot be told, writing tells.
        while spare(&self.uploads).is_some_and(|spare| spare < bytes) {
            if !self.remove_oldest()? {
                let path = self.uploads.clone();
                return Err(StoreError::NoSpace { path });
            }
        }
        Ok(())
    }

    /// Remove the oldest spool that nobody has open, if there is one.
    fn remove_oldest(&self) -> Result<bool> {
        let mut lying = self.lying()?;
        lying.sort_by_key(|spool| spool.touched);
        Ok(lying.iter().any(|spool| self.remove(spool)))
    }

    /// Remove a spool if nobody has it open.
    fn remove(&self, spool: &Lying) -> bool {
        // Nobody opens it meanwhile.
        let Some(claim) = self.open.claim(spool.id) else {
            return false;
        };
        let removed = std::fs::remove_file(&spool.path).is_ok();
        if removed {
            claim.forget();
        }
        removed
    }

    /// Remove what was held of uploads that nobody has gone on with for a week.
    pub(super) fn sweep(&self) -> Result<()> {
        for spool in self.lying()? {
            // A time in the future is no age.
            if spool.touched.elapsed().is_ok_and(|age| age > KEPT) {
                self.remove(&spool);
            }
        }
        Ok(())
    }

    fn lying(&self) -> Result<Vec<Lying>> {
        let io = |e| StoreError::io(&self.uploads, e);
        let entries = match std::fs::read_dir(&self.uploads) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io(e)),
        };
        let mut lying = Vec::new();
        for entry in entries {
            let path = entry.map_err(io)?.path();
            let Some(id) = spool::id_of(&path) else {
                continue;
            };
            // It may have been removed meanwhile.
            if let Ok(touched) = path.metadata().and_then(|m| m.modified()) {
                lying.push(Lying { id, path, touched });
            }
        }
        Ok(lying)
    }
}

/// Bytes of the disk that uploads may take.
fn spare(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let (free, all) = (bytes(disk.f_bavail), bytes(disk.f_blocks));
    Some(free.saturating_sub(LEFT_BYTES.min(all / LEFT_SHARE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Spools of so many seconds' age.
    fn spools(uploads: &Path, ages: &[u64]) -> Vec<PathBuf> {
        let make = |(number, age): (usize, &u64)| {
            let name = blake3::Hash::from_bytes([number as u8; 32]).to_hex();
            let path = uploads.join(format!("{name}.spool"));
            let file = File::create(&path).unwrap();
            let touched = SystemTime::now() - Duration::from_secs(*age);
            file.set_modified(touched).unwrap();
            path
        };
        ages.iter().enumerate().map(make).collect()
    }

    #[test]
    fn the_oldest_that_nobody_has_open_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let paths = spools(folder.path(), &[10, 40, 30, 20]);
        let open = OpenUploads::default();
        let held = open.claim(UploadId([1; 32])).unwrap();
        let room = Room::new(folder.path().to_owned(), open);
        // There are 100 bytes, and each spool takes 10.
        let spare = |uploads: &Path| {
            let lying = std::fs::read_dir(uploads).unwrap().count() as u64;
            Some(100 - 10 * lying)
        };
        let there = || paths.iter().map(|p| p.exists()).collect::<Vec<_>>();
        room.make(60, &spare).unwrap();
        assert_eq!(there(), [true; 4]);
        room.make(70, &spare).unwrap();
        assert_eq!(there(), [true, true, false, true]);
        room.make(90, &spare).unwrap();
        assert_eq!(there(), [false, true, false, false]);
        let full = room.make(100, &spare);
        assert!(matches!(full, Err(StoreError::NoSpace { .. })), "{full:?}");
        drop(held);
        room.make(100, &spare).unwrap();
        assert_eq!(there(), [false; 4]);
    }

    #[test]
    fn a_sweep_takes_the_old_that_nobody_has_open() {
        let folder = tempfile::tempdir().unwrap();
        let week = KEPT.as_secs();
        let paths = spools(folder.path(), &[week + 9, week + 9, week - 9]);
        let open = OpenUploads::default();
        let _held = open.claim(UploadId([1; 32])).unwrap();
        Room::new(folder.path().to_owned(), open).sweep().unwrap();
        let there: Vec<_> = paths.iter().map(|path| path.exists()).collect();
        assert_eq!(there, [false, true, true]);
    }
}
