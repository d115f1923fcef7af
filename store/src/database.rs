//! RocksDB: column families by kind of object, typed reads, and batches. Nothing else names RocksDB.

use crate::error::{Result, StoreError};
use crate::folder::Folder;
use deltaic_format::FormatError;
use rocksdb::{
    BlockBasedOptions, BoundColumnFamily, Cache, ColumnFamilyDescriptor, DBCompressionType,
    DBPinnableSlice, DBRecoveryMode, Direction, IteratorMode, LogLevel, Options, ReadOptions,
    WriteBatch, WriteOptions,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Rocks = rocksdb::DBWithThreadMode<rocksdb::MultiThreaded>;

/// Key and value of a row.
type Row = (Box<[u8]>, Box<[u8]>);

/// A column family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// repository, 0, branch → signed ref.
    Refs,
    /// repository, 0, tag → tag record.
    Tags,
    /// repository, 0, branch → newest commit of a deleted branch, so that no number is used twice.
    Retired,
    /// commit id → commit.
    Commits,
    /// commit id → bytes that the store grew by when it was made.
    Growth,
    /// tree id → tree.
    Trees,
    /// schema id → schema.
    Schemas,
    /// file id → small file.
    Files,
    /// content → content record.
    Contents,
    /// from content, to → edge record.
    Edges,
    /// to content, from → nothing: the edges that lead to a content.
    EdgesBack,
    /// number, big-endian → patch set.
    PatchSets,
    /// hash of a pack file whose bases are all named → nothing.
    Packs,
}

impl Table {
    const ALL: [Self; 13] = [
        Self::Refs,
        Self::Tags,
        Self::Retired,
        Self::Commits,
        Self::Growth,
        Self::Trees,
        Self::Schemas,
        Self::Files,
        Self::Contents,
        Self::Edges,
        Self::EdgesBack,
        Self::PatchSets,
        Self::Packs,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Refs => "refs",
            Self::Tags => "tags",
            Self::Retired => "retired",
            Self::Commits => "commits",
            Self::Growth => "growth",
            Self::Trees => "trees",
            Self::Schemas => "schemas",
            Self::Files => "files",
            Self::Contents => "contents",
            Self::Edges => "edges",
            Self::EdgesBack => "edges-back",
            Self::PatchSets => "patch-sets",
            Self::Packs => "packs",
        }
    }

    fn options(self, cache: &Cache) -> Options {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(cache);
        table.set_cache_index_and_filter_blocks(true);
        table.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.set_block_based_table_factory(&table);
        options.set_write_buffer_size(16 << 20);
        match self {
            // Entropy coded already; as blobs they are written once instead of at every compaction.
            Self::PatchSets => {
                options.set_compression_type(DBCompressionType::None);
                options.set_enable_blob_files(true);
                options.set_min_blob_size(4096);
                options.set_enable_blob_gc(true);
            }
            // Hashes do not compress.
            Self::Edges | Self::EdgesBack | Self::Contents | Self::Trees => {
                options.set_compression_type(DBCompressionType::Lz4);
            }
            _ => options.set_compression_type(DBCompressionType::Zstd),
        }
        options
    }
}

/// The open database.
pub(crate) struct Database {
    rocks: Rocks,
    /// For errors.
    root: PathBuf,
    /// Bytes of keys and values written since it was opened.
    written: AtomicU64,
}

/// Rows to be written, in order, together or not at all.
#[derive(Default)]
pub(crate) struct Batch {
    /// Rows without a value are deleted.
    rows: Vec<(Table, Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    pub(crate) fn put(&mut self, table: Table, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.rows.push((table, key.into(), Some(value.into())));
    }

    /// Bytes of its keys and values.
    pub(crate) fn len(&self) -> u64 {
        let len = |(_, key, value): &(Table, Vec<u8>, Option<Vec<u8>>)| {
            value.as_ref().map_or(0, |value| key.len() + value.len()) as u64
        };
        self.rows.iter().map(len).sum()
    }

    pub(crate) fn delete(&mut self, table: Table, key: impl Into<Vec<u8>>) {
        self.rows.push((table, key.into(), None));
    }
}

impl Database {
    /// Open the database of a store, which is made only by `init`: one that has lost its files must not look like an
    /// empty one.
    pub(crate) fn open(folder: &Folder, create: bool) -> Result<Self> {
        let root = folder.root().to_owned();
        if !create && !folder.database().join("CURRENT").exists() {
            let what = "its database (db/CURRENT) is missing; restore the folder from a copy";
            return Err(StoreError::corrupt(
                format!("the store {}", root.display()),
                what,
            ));
        }
        let cache = Cache::new_lru_cache(128 << 20);
        let mut options = Options::default();
        options.create_if_missing(create);
        options.create_missing_column_families(create);
        options.set_db_write_buffer_size(128 << 20);
        options.set_max_total_wal_size(128 << 20);
        options.set_max_background_jobs(2);
        options.set_bytes_per_sync(1 << 20);
        // Only a record that a crash cut short at the end of the log may be missing; damage before it is told, since it
        // would take back versions that were acknowledged.
        options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
        options.set_keep_log_file_num(2);
        options.set_log_level(LogLevel::Warn);
        let families = Table::ALL.map(|t| ColumnFamilyDescriptor::new(t.name(), t.options(&cache)));
        match Rocks::open_cf_descriptors(&options, folder.database(), families) {
            Ok(rocks) => Ok(Self {
                rocks,
                root,
                written: AtomicU64::new(0),
            }),
            Err(e) => Err(explain(e, root)),
        }
    }

    fn family(&self, table: Table) -> Arc<BoundColumnFamily<'_>> {
        self.rocks
            .cf_handle(table.name())
            .expect("every table is opened with the database")
    }

    fn fail(&self, error: rocksdb::Error) -> StoreError {
        explain(error, self.root.clone())
    }

    /// The value of `key`, without a copy.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>> {
        self.rocks
            .get_pinned_cf(&self.family(table), key)
            .map_err(|e| self.fail(e))
    }

    pub(crate) fn contains(&self, table: Table, key: &[u8]) -> Result<bool> {
        Ok(self.get(table, key)?.is_some())
    }

    /// The value of `key`, read by `parse`; damage names the object.
    pub(crate) fn read<T>(
        &self,
        table: Table,
        key: &[u8],
        object: impl Fn() -> String,
        parse: impl FnOnce(&[u8]) -> Result<T, FormatError>,
    ) -> Result<Option<T>> {
        match self.get(table, key)? {
            None => Ok(None),
            Some(value) => parse(&value)
                .map(Some)
                .map_err(|e| StoreError::corrupt(object(), e)),
        }
    }

    /// All rows whose key begins with `prefix`, ascending.
    pub(crate) fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = Result<Row>> + 'a {
        let mut options = ReadOptions::default();
        options.set_iterate_range(rocksdb::PrefixRange(prefix));
        let mode = if prefix.is_empty() {
            IteratorMode::Start
        } else {
            IteratorMode::From(prefix, Direction::Forward)
        };
        self.rocks
            .iterator_cf_opt(&self.family(table), options, mode)
            .map(|row| row.map_err(|e| self.fail(e)))
    }

    /// The greatest key of a table.
    pub(crate) fn last_key(&self, table: Table) -> Result<Option<Box<[u8]>>> {
        let mut rows = self
            .rocks
            .iterator_cf(&self.family(table), IteratorMode::End);
        match rows.next() {
            None => Ok(None),
            Some(row) => row.map(|(key, _)| Some(key)).map_err(|e| self.fail(e)),
        }
    }

    /// Write `batch`; it survives the process, and the machine once a later [`publish`](Self::publish) returns.
    pub(crate) fn write(&self, batch: Batch) -> Result<()> {
        self.write_with(batch, false)
    }

    /// Write `batch` and make it, and all that was written before, durable.
    pub(crate) fn publish(&self, batch: Batch) -> Result<()> {
        self.write_with(batch, true)
    }

    fn write_with(&self, batch: Batch, sync: bool) -> Result<()> {
        let bytes = batch.len();
        let mut writes = WriteBatch::default();
        for (table, key, value) in &batch.rows {
            match value {
                Some(value) => writes.put_cf(&self.family(*table), key, value),
                None => writes.delete_cf(&self.family(*table), key),
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.rocks
            .write_opt(writes, &options)
            .map_err(|e| self.fail(e))?;
        self.written.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Remove rows of `bytes` together that were written since the database was opened and that nothing names.
    pub(crate) fn take_back(&self, batch: Batch, bytes: u64) -> Result<()> {
        self.write_with(batch, false)?;
        self.written.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of keys and values written since the database was opened, less those taken back.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

fn explain(error: rocksdb::Error, root: PathBuf) -> StoreError {
    let text = error.to_string();
    if text.contains("No space left") || text.contains("Disk quota exceeded") {
        return StoreError::NoSpace { path: root };
    }
    if text.contains("lock hold by current process") || text.contains("While lock file") {
        return StoreError::Locked {
            path: root,
            holder: "another process".to_owned(),
        };
    }
    match error.kind() {
        rocksdb::ErrorKind::Corruption => StoreError::corrupt("the database", text),
        rocksdb::ErrorKind::Busy => StoreError::Locked {
            path: root,
            holder: "another process".to_owned(),
        },
        _ => StoreError::Database(error),
    }
}
