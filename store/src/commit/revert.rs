//! Reverting: an earlier version's content as the next version.

use super::{CommitOutcome, CommitRequest, invalid};
use crate::database::Batch;
use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::Store;
use deltaic_format::fetch::TensorWish;
use deltaic_format::ids::CommitId;
use deltaic_format::object::{Commit, Snapshot};
use deltaic_format::progress::Progress;
use std::sync::Arc;

impl Store {
    /// Commit the tree of `target` as the next version of a branch: holders go back by patch, numbers go on.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit); [`StoreError::NotFound`] if the branch or the target is not there.
    pub fn revert(
        &self,
        request: &CommitRequest,
        target: CommitId,
        progress: &dyn Progress,
    ) -> Result<CommitOutcome> {
        let _writing = self.writer();
        Commit::check_texts(&request.message, &request.meta).map_err(invalid)?;
        let parent = self.parent_of(&request.repo, &request.branch, request.expect)?;
        let parent = parent.ok_or_else(|| {
            StoreError::not_found("branch", format!("{} of {}", request.branch, request.repo))
        })?;
        let mut wanted = self.snapshot_of(&request.repo, target)?;
        let wishes = deltaic_format::fetch::wishes_between(Some(&parent), &wanted);
        progress.phase("comparing", Some(wanted.full_bytes()));
        let (changed, patch_bytes) = self.list_patches(&mut wanted, &wishes, progress)?;
        let batch = Batch::default();
        let published = self.publish_tree(
            request,
            &wanted.tree,
            Some(&parent),
            Arc::clone(&wanted.schema),
            0,
            batch,
        )?;
        Ok(CommitOutcome {
            id: published.id,
            version: published.version,
            elements: wanted.elements(),
            changed,
            full_bytes: wanted.full_bytes(),
            patch_bytes,
            new_bytes: published.new_bytes,
        })
    }

    /// List in `wanted`'s tree the patches that lead to it from what `wishes` hold. Returns changed elements and bytes.
    fn list_patches(
        &self,
        wanted: &mut Snapshot,
        wishes: &[TensorWish],
        progress: &dyn Progress,
    ) -> Result<(u64, u64)> {
        let (mut changed, mut bytes) = (0, 0);
        let schema = Arc::clone(&wanted.schema);
        for (wish, spec) in wishes.iter().zip(schema.tensors()) {
            if progress.cancelled() {
                return Err(StoreError::Interrupted);
            }
            progress.advance(spec.byte_len());
            let entry = &mut wanted.tree.tensors[wish.tensor];
            let key = ContentKey::new(spec.class, entry.id);
            entry.patch = None;
            match wish.have {
                Some(have) if have == entry.id => {}
                Some(have) => {
                    // What is acknowledged can be had: it is read, not only looked up.
                    self.contents().open(key)?.read(|_| Ok(()))?;
                    let between = self.contents().compare(have, key, spec.elements())?;
                    entry.patch = Some(between.patch);
                    changed += between.changed;
                    bytes += between.bytes;
                }
                None => {
                    self.contents().open(key)?.read(|_| Ok(()))?;
                    changed += spec.elements();
                    bytes += self.contents().record(key)?.whole_bytes;
                }
            }
        }
        Ok((changed, bytes))
    }
}
