//! The store's folder: format file, lock, scratch space, and fsync of files and folders.
//!
//! ```text
//! FORMAT   "deltaic store format 1\n", written last by `init`
//! lock     held exclusively by the one process that has the store open
//! db/      RocksDB
//! packs/   bases, immutable, named by their hash
//! uploads/ what came of uploads that are not finished; made when it is first needed
//! tmp/     files being written; emptied when the store is opened
//! ```

use crate::error::{Result, StoreError};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const WRITE_BUFFER: usize = 256 << 10;

const FORMAT: u32 = 1;
const FORMAT_PREFIX: &str = "deltaic store format ";

/// An open, locked store folder.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Its lock is released when the file is closed.
    _lock: File,
}

impl Folder {
    /// Make a store in `root`, or open the one that is there. Says whether it was made; `prepare` is called
    /// once the folders exist and before the store counts as one.
    pub(crate) fn init(
        root: &Path,
        prepare: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<(Self, bool)> {
        if root.join("FORMAT").exists() {
            return Ok((Self::open(root)?, false));
        }
        fs::create_dir_all(root).map_err(|e| StoreError::io(root, e))?;
        let foreign = fs::read_dir(root)
            .map_err(|e| StoreError::io(root, e))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .find(|name| !["lock", "db", "packs", "tmp", "uploads"].contains(&name.as_str()));
        if let Some(name) = foreign {
            return Err(StoreError::Conflict {
                what: format!(
                    "{} is not empty (it holds {name}) and is no store",
                    root.display()
                ),
            });
        }
        let folder = Self::lock(root)?;
        for name in ["packs", "tmp"] {
            let path = root.join(name);
            fs::create_dir_all(&path).map_err(|e| StoreError::io(&path, e))?;
        }
        prepare(&folder)?;
        let mut format = folder.create_temporary("FORMAT")?;
        format.write_all(format!("{FORMAT_PREFIX}{FORMAT}\n").as_bytes())?;
        format.publish(&root.join("FORMAT"))?;
        if let Some(parent) = root
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            sync_folder(parent)?;
        }
        Ok((folder, true))
    }

    /// Open the store in `root` and take its lock.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let format = root.join("FORMAT");
        let mut text = String::new();
        match File::open(&format) {
            Ok(file) => file
                .take(256)
                .read_to_string(&mut text)
                .map_err(|e| StoreError::io(&format, e))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::not_found("store", root.display()));
            }
            Err(e) => return Err(StoreError::io(&format, e)),
        };
        let found = text.trim_end().strip_prefix(FORMAT_PREFIX);
        if found != Some(&FORMAT.to_string()) {
            return Err(StoreError::StoreFormat {
                path: root.to_owned(),
                found: found.unwrap_or(text.trim_end()).to_owned(),
                supported: FORMAT,
            });
        }
        let folder = Self::lock(root)?;
        folder.empty_scratch()?;
        Ok(folder)
    }

    fn lock(root: &Path) -> Result<Self> {
        let path = root.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| StoreError::io(&path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who holds it is told as a courtesy; the lock itself is what counts.
                let _ = (&mut lock).take(256).read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "another process",
                    pid => pid,
                };
                return Err(StoreError::Locked {
                    path: root.to_owned(),
                    holder: holder.to_owned(),
                });
            }
            Err(TryLockError::Error(e)) => return Err(StoreError::io(&path, e)),
        }
        lock.set_len(0)
            .and_then(|()| write!(lock, "process {}", std::process::id()))
            .map_err(|e| StoreError::io(&path, e))?;
        Ok(Self {
            root: root.to_owned(),
            _lock: lock,
        })
    }

    fn empty_scratch(&self) -> Result<()> {
        let scratch = self.root.join("tmp");
        fs::create_dir_all(&scratch).map_err(|e| StoreError::io(&scratch, e))?;
        for entry in fs::read_dir(&scratch).map_err(|e| StoreError::io(&scratch, e))? {
            let path = entry.map_err(|e| StoreError::io(&scratch, e))?.path();
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(|e| StoreError::io(&path, e))?;
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn packs(&self) -> PathBuf {
        self.root.join("packs")
    }

    pub(crate) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.root.join("db")
    }

    /// A file that becomes visible only when it is published.
    pub(crate) fn create_temporary(&self, name: &str) -> Result<TemporaryFile> {
        let path = self.root.join("tmp").join(name);
        let file = File::create(&path).map_err(|e| StoreError::io(&path, e))?;
        Ok(TemporaryFile {
            path,
            file: BufWriter::with_capacity(WRITE_BUFFER, file),
            published: false,
        })
    }

    /// Bytes that the store's files take on disk.
    pub(crate) fn disk_usage(&self) -> Result<u64> {
        fn usage(path: &Path) -> std::io::Result<u64> {
            use std::os::unix::fs::MetadataExt;
            let meta = fs::symlink_metadata(path)?;
            if !meta.is_dir() {
                // RocksDB reserves room for its log ahead of need; that is not yet used.
                return Ok(meta.len().min(meta.blocks() * 512));
            }
            let mut sum = 0;
            for entry in fs::read_dir(path)? {
                sum += match usage(&entry?.path()) {
                    // RocksDB removes files of its own in the background.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
                    other => other?,
                };
            }
            Ok(sum)
        }
        usage(&self.root).map_err(|e| StoreError::io(&self.root, e))
    }
}

/// A file in the scratch folder; removed when dropped unless it was published.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    path: PathBuf,
    file: BufWriter<File>,
    published: bool,
}

impl TemporaryFile {
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|e| StoreError::io(&self.path, e))
    }

    /// Cut the file to `len` bytes and go on there.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        use std::io::{Seek, SeekFrom};
        // Seeking writes out what is buffered first.
        self.file
            .seek(SeekFrom::Start(len))
            .and_then(|_| self.file.get_ref().set_len(len))
            .map_err(|e| StoreError::io(&self.path, e))
    }

    /// Make the file durable, give it its name, and make that durable.
    pub(crate) fn publish(mut self, target: &Path) -> Result<()> {
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .and_then(|()| fs::rename(&self.path, target))
            .map_err(|e| StoreError::io(&self.path, e))?;
        self.published = true;
        sync_folder(target.parent().unwrap_or(Path::new(".")))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed now is removed when the store is next opened.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| StoreError::io(path, e))
}
