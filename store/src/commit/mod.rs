//! Committing: read a checkpoint, store what changed, prove it, then move the ref.
//!
//! The order makes a crash at any point harmless. Bases go to packs and edges to the database in bounded batches,
//! each complete in itself and unseen until a commit names it. Then one small durable batch holds commit, tree, schema
//! and ref. Before that batch, everything stored was read back and compared with what was read.

mod base;
mod files;
mod item;
mod large;
mod revert;
mod tensor;

use crate::checkpoint::Checkpoint;
use crate::database::{Batch, Table};
use crate::error::{Result, StoreError};
use crate::packs::PackWriter;
use crate::records::{ContentKey, ContentRecord, Origin};
use crate::refs::put_ref;
use crate::store::Store;
use deltaic_format::answers::{CommitOutcome, CommitRequest, Expect, check_expected};
use deltaic_format::ids::{CommitId, TensorId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{
    CanonicalObject, Commit, RefRecord, Schema, Snapshot, Tree, check_agreement,
};
use deltaic_format::progress::Progress;
use deltaic_format::{Moments, Version};
use item::{Item, plan_items};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tensor::StoredTensor;

/// Threads of a commit: each may hold a few hundred megabytes where everything has changed.
const MAX_THREADS: usize = 8;

/// A commit whose ref has moved.
pub(crate) struct Published {
    pub(crate) id: CommitId,
    pub(crate) version: Version,
    pub(crate) new_bytes: u64,
}

/// A checkpoint whose contents are stored and proven, not yet visible.
pub(crate) struct Written {
    pub(crate) tree: Tree,
    /// What each tensor took, in the tree's order.
    pub(crate) tensors: Vec<StoredTensor>,
    /// Bytes of all files.
    pub(crate) full_bytes: u64,
    /// Bytes that the store has grown by.
    pub(crate) grown: u64,
    /// What else is published with the tree: its schema.
    pub(crate) batch: Batch,
}

/// What a running commit shares between its threads.
pub(crate) struct Writing<'a> {
    pub(crate) store: &'a Store,
    pub(crate) checkpoint: &'a dyn Checkpoint,
    pub(crate) progress: &'a dyn Progress,
    /// Contents whose base is being written by some thread, so that equal ones are stored once.
    pub(crate) claimed: Mutex<HashSet<ContentKey>>,
    /// Edges that some thread stores, likewise.
    pub(crate) claimed_edges: Mutex<HashSet<(ContentKey, TensorId)>>,
}

/// A content whose base is in a pack, waiting for the pack to be durable.
pub(crate) struct PendingBase {
    pub(crate) elements: u64,
    pub(crate) moments: Moments,
}

/// What one thread has made.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) tensors: Vec<StoredTensor>,
    pub(crate) bases: HashMap<ContentKey, PendingBase>,
}

impl Writing<'_> {
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        if self.progress.cancelled() {
            return Err(StoreError::Interrupted);
        }
        Ok(())
    }

    /// Whether `key` is in the store and reads back to its id. A damaged content is as good as none: the commit at
    /// hand holds it, and stores it anew.
    pub(crate) fn is_sound(&self, key: ContentKey) -> Result<bool> {
        let contents = self.store.contents();
        let read = contents.find(key).and_then(|found| match found {
            None => Ok(false),
            Some(_) => {
                contents.open(key)?.prove(|_| self.check_cancelled())?;
                Ok(true)
            }
        });
        match read {
            Err(StoreError::Corrupt { .. }) => Ok(false),
            other => other,
        }
    }

    /// Whether `key` has a row but cannot be read.
    pub(crate) fn is_damaged(&self, key: ContentKey) -> Result<bool> {
        let known = self
            .store
            .database()
            .contains(Table::Contents, &key.to_bytes())?;
        Ok(known && !self.is_sound(key)?)
    }

    /// Whether the caller is the one to write the base of `key`: no other thread does.
    pub(crate) fn claim(&self, key: ContentKey) -> bool {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.insert(key)
    }

    /// The same for the edge between two contents.
    pub(crate) fn claim_edge(&self, from: ContentKey, to: TensorId) -> bool {
        let mut claimed = self
            .claimed_edges
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        claimed.insert((from, to))
    }

    /// Write `batch`, and of `contents` those that are not known yet: a row that names a base is never replaced by one
    /// that does not.
    pub(crate) fn write_with_contents(
        &self,
        mut batch: Batch,
        contents: impl IntoIterator<Item = (ContentKey, ContentRecord)>,
    ) -> Result<()> {
        let _rows = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, record) in contents {
            let known = self
                .store
                .database()
                .contains(Table::Contents, &key.to_bytes())?;
            if !known {
                batch.put(Table::Contents, key.to_bytes(), record.to_bytes());
            }
        }
        self.store.database().write(batch)
    }
}

impl Store {
    /// Commit a checkpoint as the next version of a branch.
    ///
    /// On error nothing is visible of it, and what was written is found again when the commit is tried anew.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the branch is not where the request expects it; [`StoreError::Checkpoint`] if the
    /// checkpoint cannot be read or changes meanwhile; [`StoreError::NoSpace`] if the disk is full.
    pub fn commit(
        &self,
        request: &CommitRequest,
        checkpoint: &dyn Checkpoint,
        progress: &dyn Progress,
    ) -> Result<CommitOutcome> {
        let _writing = self.writer();
        Commit::check_texts(&request.message, &request.meta).map_err(invalid)?;
        let parent = self.parent_of(&request.repo, &request.branch, request.expect)?;
        let written = self.write_checkpoint(checkpoint, parent.as_ref(), progress)?;
        let published = self.publish_tree(
            request,
            &written.tree,
            parent.as_ref(),
            Arc::new(checkpoint.schema().clone()),
            written.grown,
            written.batch,
        )?;
        Ok(CommitOutcome {
            id: published.id,
            version: published.version,
            elements: checkpoint.schema().tensors().map(|t| t.elements()).sum(),
            changed: written.tensors.iter().map(|t| t.changed).sum(),
            full_bytes: written.full_bytes,
            patch_bytes: written.tensors.iter().map(|t| t.patch_bytes).sum(),
            new_bytes: published.new_bytes,
        })
    }

    /// Store everything that `checkpoint` holds, as what follows `parent`; the caller has the [`writer`](Self::writer).
    pub(crate) fn write_checkpoint(
        &self,
        checkpoint: &dyn Checkpoint,
        parent: Option<&Snapshot>,
        progress: &dyn Progress,
    ) -> Result<Written> {
        let written_before = self.database().written();
        let writing = Writing {
            store: self,
            checkpoint,
            progress,
            claimed: Mutex::default(),
            claimed_edges: Mutex::default(),
        };
        let items = plan_items(checkpoint.schema(), parent);
        let total = checkpoint
            .schema()
            .tensors()
            .map(|t| t.byte_len())
            .sum::<u64>()
            + checkpoint.files().iter().map(|f| f.size).sum::<u64>();
        progress.phase("committing", Some(total));
        let (mut tensors, pack_bytes) = writing.store_tensors(&items)?;
        for tensor in &mut tensors {
            if let Some((from, to)) = tensor.same_edge {
                // Another tensor of this commit made the same change, and stored it.
                let edge = self.contents().edge(from, to)?;
                tensor.patch_bytes = edge.map_or(0, |edge| edge.bytes);
            }
        }
        let (weight_files, files, file_bytes) = writing.store_files()?;
        checkpoint
            .check_unchanged()
            .map_err(|what| StoreError::Checkpoint { what })?;
        tensors.sort_by_key(|tensor| tensor.index);
        let schema = checkpoint.schema();
        let mut batch = Batch::default();
        batch.put(Table::Schemas, schema.id().0, schema.to_bytes());
        let headers = weight_files.iter().map(|f| f.data_offset()).sum::<u64>();
        Ok(Written {
            tree: Tree {
                schema: schema.id(),
                weight_files,
                tensors: tensors.iter().map(|tensor| tensor.entry).collect(),
                files,
            },
            tensors,
            full_bytes: headers + total,
            grown: self.database().written() - written_before + pack_bytes + file_bytes,
            batch,
        })
    }

    /// The version that a commit follows, checked against where the branch is expected to stand.
    pub(crate) fn parent_of(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        expect: Option<Expect>,
    ) -> Result<Option<Snapshot>> {
        let stands = self.check_parent(repo, branch, expect)?;
        stands.map(|id| self.snapshot(id)).transpose()
    }

    fn check_parent(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        expect: Option<Expect>,
    ) -> Result<Option<CommitId>> {
        let head = self.find_branch(repo, branch)?;
        if head.is_none() && self.exists(repo)? {
            return Err(StoreError::not_found(
                "branch",
                format!("{branch} of {repo}"),
            ));
        }
        let stands = head.as_ref().map(|record| record.commit);
        if let Some(expect) = expect {
            check_expected((repo, branch), stands, expect).map_err(|refusal| {
                StoreError::Conflict {
                    what: refusal.to_string(),
                }
            })?;
        }
        match stands {
            None if self.retired(repo, branch)?.is_some() => Err(StoreError::Conflict {
                what: format!(
                    "branch {branch} of {repo} was deleted, and its version numbers are never used again"
                ),
            }),
            stands => Ok(stands),
        }
    }

    /// Write tree, commit and ref in one durable batch, `grown` bytes having been written for them before.
    fn publish_tree(
        &self,
        request: &CommitRequest,
        tree: &Tree,
        parent: Option<&Snapshot>,
        schema: Arc<Schema>,
        grown: u64,
        batch: Batch,
    ) -> Result<Published> {
        let tree_bytes = tree.to_bytes();
        check_readable(&tree_bytes, &schema)?;
        let commit = Commit {
            tree: Tree::id_of(&tree_bytes),
            parents: parent.iter().map(|p| p.id).collect(),
            version: parent.map_or(Version(0), |p| p.commit.version.next()),
            time_ms: request.time_ms,
            message: request.message.clone(),
            meta: request.meta.clone(),
        };
        self.publish_commit(
            &request.repo,
            &request.branch,
            &commit,
            tree_bytes,
            grown,
            batch,
        )
    }

    /// Write a tree, its commit and the ref that moves to it in one durable batch, `grown` bytes having been written for
    /// them before.
    pub(crate) fn publish_commit(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        commit: &Commit,
        tree: Vec<u8>,
        grown: u64,
        mut batch: Batch,
    ) -> Result<Published> {
        let changing = self.change_refs();
        // What was found at the beginning must still hold: branches and tags are made and deleted meanwhile.
        let parent = commit.parents.first();
        let expect = parent.map_or(Expect::Nothing, |&parent| Expect::Commit(parent));
        self.check_parent(repo, branch, Some(expect))?;
        let id = commit.id();
        batch.put(Table::Trees, commit.tree.0, tree);
        batch.put(Table::Commits, id.0, commit.to_bytes());
        let record = RefRecord {
            repo: repo.clone(),
            branch: branch.clone(),
            commit: id,
            version: commit.version,
            time_ms: commit.time_ms,
            expiry_ms: None,
        };
        put_ref(&mut batch, &record);
        let new_bytes = grown + batch.len();
        batch.put(Table::Growth, id.0, new_bytes.to_le_bytes());
        changing.publish(batch)?;
        Ok(Published {
            id,
            version: commit.version,
            new_bytes,
        })
    }
}

/// What is about to be published can be read by whoever gets it: encoders do not hold the caps that readers do.
fn check_readable(tree: &[u8], schema: &Arc<Schema>) -> Result<()> {
    let tree = Tree::from_bytes(tree).map_err(invalid)?;
    Schema::from_bytes(&schema.to_bytes()).map_err(invalid)?;
    check_agreement(&tree, schema).map_err(invalid)
}

fn invalid(error: deltaic_format::FormatError) -> StoreError {
    StoreError::Invalid {
        what: error.to_string(),
    }
}

impl Writing<'_> {
    /// Store all items with as many threads as there are cores. Returns the tensors and the bytes of new packs.
    fn store_tensors(&self, items: &[Item]) -> Result<(Vec<StoredTensor>, u64)> {
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS)
            .min(items.len().max(1));
        let results: Vec<Result<(Made, u64)>> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|number| {
                    let next = &next;
                    scope.spawn(move || self.store_share(items, next, number))
                })
                .collect();
            let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
                handle
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            handles.into_iter().map(join).collect()
        });
        let (mut tensors, mut bytes) = (Vec::new(), 0);
        for result in results {
            let (made, pack_bytes) = result?;
            tensors.extend(made.tensors);
            bytes += pack_bytes;
        }
        Ok((tensors, bytes))
    }

    /// One thread's work: items until none is left, its bases settled whenever a pack is full.
    fn store_share(
        &self,
        items: &[Item],
        next: &AtomicUsize,
        number: usize,
    ) -> Result<(Made, u64)> {
        let mut packs = PackWriter::new(self.store.folder(), number);
        let mut made = Made::default();
        let mut bytes = 0;
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let stored = self
                .store_item(item, &mut packs, &mut made)
                .and_then(|()| self.settle_bases(&mut packs, &mut made));
            match stored {
                Ok(settled) => bytes += settled,
                Err(error) => {
                    // The other threads need not go on.
                    next.store(items.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        packs.close()?;
        bytes += self.settle_bases(&mut packs, &mut made)?;
        Ok((made, bytes))
    }

    /// Read the bases of closed packs back against their ids, and only then let the database name them: a base that has
    /// a row is proven.
    pub(crate) fn settle_bases(&self, packs: &mut PackWriter<'_>, made: &mut Made) -> Result<u64> {
        let mut bytes = 0;
        let mut batch = Batch::default();
        for (key, location) in packs.take_closed() {
            self.check_cancelled()?;
            let Some(base) = made.bases.remove(&key) else {
                continue;
            };
            self.store.contents().packs.forget(location.pack);
            let record = ContentRecord {
                elements: base.elements,
                moments: base.moments,
                whole_bytes: location.len,
                origin: Origin::Base(location),
            };
            self.store.contents().prove_base(key, record)?;
            bytes += location.len;
            batch.put(Table::Contents, key.to_bytes(), record.to_bytes());
            batch.put(Table::Packs, location.pack, b"");
        }
        let _rows = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        self.store.database().write(batch)?;
        Ok(bytes)
    }
}
