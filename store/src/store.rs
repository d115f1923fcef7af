//! The store: opening it, and reading what it holds.

use crate::contents::Contents;
use crate::database::{Batch, Database, Table};
use crate::error::{Result, StoreError};
use crate::folder::Folder;
use crate::packs::PackReader;
use crate::reach::Reached;
use crate::records::ContentKey;
use crate::upload::OpenUploads;
use deltaic_format::ElementClass;
use deltaic_format::ids::{CommitId, FileId, TensorId};
use deltaic_format::name::RepoName;
use deltaic_format::object::{CanonicalObject, Commit, Schema, Snapshot, Tree};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files up to this length are kept in the database, longer ones in packs.
pub(crate) const SMALL_FILE: u64 = 1 << 20;

/// Parts in which large files are handed on.
const FILE_PART: usize = 4 << 20;

/// A versioned weight store in a folder of this machine, open in this process alone.
#[derive(Debug)]
pub struct Store {
    contents: Contents,
    /// Number of the next patch set.
    next_set: AtomicU64,
    /// Held by whoever writes a commit, from its first byte to its last.
    writer: Mutex<()>,
    /// Held by whoever changes refs, for as long as looking at them and changing them takes; after `writer`.
    refs: Mutex<()>,
    reached: Reached,
    uploads: OpenUploads,
    /// Last, so that the lock is given up after the database is closed.
    folder: Folder,
}

/// The right to change refs: nobody else does meanwhile.
pub(crate) struct ChangingRefs<'a> {
    store: &'a Store,
    _alone: MutexGuard<'a, ()>,
}

impl ChangingRefs<'_> {
    /// Write the change, durably.
    pub(crate) fn publish(self, batch: Batch) -> Result<()> {
        self.store.database().publish(batch)?;
        self.store.reached.refs_changed();
        Ok(())
    }
}

/// Remove packs that no row names: an interrupted commit left them, and nothing will ever read them.
fn sweep_packs(folder: &Folder, database: &Database) -> Result<()> {
    let packs = folder.packs();
    let io = |e| StoreError::io(&packs, e);
    if database.last_key(Table::Packs)?.is_none() && database.last_key(Table::Contents)?.is_some() {
        return Err(StoreError::corrupt(
            "the database",
            "it has lost the list of its packs",
        ));
    }
    for entry in std::fs::read_dir(&packs).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        let Ok(name) = stem.parse::<FileId>() else {
            continue;
        };
        if !database.contains(Table::Packs, name.as_bytes())? {
            std::fs::remove_file(&path).map_err(|e| StoreError::io(&path, e))?;
        }
    }
    Ok(())
}

impl Store {
    /// Make a store in `root`, or open the one that is there; says whether it was made.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the folder holds something else; and as [`open`](Self::open).
    pub fn init(root: &Path) -> Result<(Self, bool)> {
        let mut empty = true;
        let (folder, created) = Folder::init(root, |folder| {
            let packs = folder.packs();
            let lost = !folder.database().join("CURRENT").exists()
                && std::fs::read_dir(&packs).is_ok_and(|mut entries| entries.next().is_some());
            if lost {
                let what = "it has packs but no database; restore the folder from a copy";
                return Err(StoreError::corrupt(
                    format!("the store {}", root.display()),
                    what,
                ));
            }
            let database = Database::open(folder, true)?;
            // A store that has only lost its format file is still that store.
            empty = database.last_key(Table::Commits)?.is_none();
            Ok(())
        })?;
        Ok((Self::with_folder(folder)?, created && empty))
    }

    /// Open the store in `root`.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is none, [`StoreError::Locked`] if another process has it open,
    /// [`StoreError::StoreFormat`] if this build does not read its format.
    pub fn open(root: &Path) -> Result<Self> {
        Self::with_folder(Folder::open(root)?)
    }

    fn with_folder(folder: Folder) -> Result<Self> {
        let database = Arc::new(Database::open(&folder, false)?);
        let next_set = match database.last_key(Table::PatchSets)? {
            None => 0,
            Some(key) => (key[..].try_into().ok())
                .and_then(|key| u64::from_be_bytes(key).checked_add(1))
                .ok_or_else(|| StoreError::corrupt("a patch set", "its key is none"))?,
        };
        sweep_packs(&folder, &database)?;
        let packs = PackReader::new(&folder);
        let store = Self {
            contents: Contents::new(database, packs),
            next_set: AtomicU64::new(next_set),
            writer: Mutex::new(()),
            refs: Mutex::new(()),
            reached: Reached::default(),
            uploads: OpenUploads::default(),
            folder,
        };
        store.sweep_uploads()?;
        Ok(store)
    }

    /// Where the store lies.
    pub fn root(&self) -> &Path {
        self.folder.root()
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn database(&self) -> &Database {
        &self.contents.database
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(crate) fn allocate_set(&self) -> u64 {
        self.next_set.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn uploads(&self) -> &OpenUploads {
        &self.uploads
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change_refs(&self) -> ChangingRefs<'_> {
        ChangingRefs {
            store: self,
            _alone: self.refs.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub(crate) fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Read an object and check that it hashes to its id.
    pub(crate) fn read_object<T: CanonicalObject>(&self, table: Table, id: &[u8; 32]) -> Result<T>
    where
        T::Id: AsRef<[u8; 32]>,
    {
        let object = || format!("{} {}", T::WHAT, blake3::Hash::from_bytes(*id).to_hex());
        let Some(bytes) = self.database().get(table, id)? else {
            return Err(StoreError::corrupt(object(), "it is missing"));
        };
        if T::id_of(&bytes).as_ref() != id {
            return Err(StoreError::corrupt(object(), "it does not hash to its id"));
        }
        T::from_bytes(&bytes).map_err(|e| StoreError::corrupt(object(), e))
    }

    /// A commit.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if it is not in the store.
    pub fn read_commit(&self, id: CommitId) -> Result<Commit> {
        if !self.database().contains(Table::Commits, id.as_bytes())? {
            return Err(StoreError::not_found("commit", id));
        }
        self.read_object(Table::Commits, id.as_bytes())
    }

    /// A commit with its tree and schema, for someone who may see what a repository has.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if the repository does not have it.
    pub fn snapshot_of(&self, repo: &RepoName, id: CommitId) -> Result<Snapshot> {
        self.must_reach(repo, id)?;
        self.snapshot(id)
    }

    /// A commit with its tree and schema, whichever repository has it.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if it is not in the store.
    pub fn snapshot(&self, id: CommitId) -> Result<Snapshot> {
        let commit = self.read_commit(id)?;
        let tree: Tree = self.read_object(Table::Trees, commit.tree.as_bytes())?;
        let schema: Schema = self.read_object(Table::Schemas, tree.schema.as_bytes())?;
        Snapshot::new(id, commit, tree, Arc::new(schema))
            .map_err(|e| StoreError::corrupt(format!("commit {id}"), e))
    }

    /// Send the bytes of a file, whole or in parts, after they were checked as far as each part allows: they hash to
    /// `id` exactly if this returns `Ok`.
    ///
    /// # Errors
    ///
    /// If the file is damaged or not there, or whatever `receive` fails with.
    pub fn file<E: From<StoreError>>(
        &self,
        id: FileId,
        receive: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(bytes) = self.small_file(id)? {
            return receive(&bytes);
        }
        let reader = self.contents.open(ContentKey::file(id))?;
        let mut hasher = blake3::Hasher::new();
        for piece in 0..reader.pieces() {
            let content = reader.piece(piece)?;
            hasher.update(&content);
            for part in content.chunks(FILE_PART) {
                receive(part)?;
            }
        }
        Ok(reader.check_hash(&hasher)?)
    }

    pub(crate) fn small_file(&self, id: FileId) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.database().get(Table::Files, id.as_bytes())? else {
            return Ok(None);
        };
        if FileId::of(&bytes) != id {
            return Err(StoreError::corrupt(
                format!("file {id}"),
                "it does not hash to its id",
            ));
        }
        Ok(Some(bytes.to_vec()))
    }

    /// Give the bytes of a tensor to `receive`, piece by piece; they hash to `id` exactly if this returns `Ok`.
    ///
    /// # Errors
    ///
    /// If the content is damaged or not there, or whatever `receive` fails with.
    pub fn read_tensor(
        &self,
        class: ElementClass,
        id: TensorId,
        receive: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.contents
            .open(ContentKey::new(class, id))?
            .read(receive)
    }
}
