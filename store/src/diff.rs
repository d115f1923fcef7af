//! What changed between two versions, tensor by tensor.

use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::Store;
use deltaic_format::answers::{TensorChange, TensorDiff};
use deltaic_format::object::{Counterparts, Snapshot, TensorSpec, TensorView};
use deltaic_format::progress::Progress;
use rayon::prelude::*;

impl Store {
    /// The tensors that differ between two versions, in the second one's order, removed ones last.
    ///
    /// # Errors
    ///
    /// If stored data is damaged, or the caller stops.
    pub fn diff(
        &self,
        from: &Snapshot,
        to: &Snapshot,
        progress: &dyn Progress,
    ) -> Result<Vec<TensorDiff>> {
        let old = Counterparts::new(from, &to.schema);
        progress.phase(
            "comparing",
            Some(to.schema.tensors().map(TensorSpec::byte_len).sum()),
        );
        let diffs = to
            .tensors()
            .into_par_iter()
            .map(|view| {
                if progress.cancelled() {
                    return Err(StoreError::Interrupted);
                }
                let old = old.of(view.path, view.spec);
                let diff = self.diff_tensor(old.as_ref(), &view)?;
                progress.advance(view.spec.byte_len());
                Ok(diff)
            })
            .collect::<Result<Vec<_>>>()?;
        let mut diffs: Vec<TensorDiff> = diffs.into_iter().flatten().collect();
        let new = Counterparts::new(to, &from.schema);
        for view in from.tensors() {
            if new.of(view.path, view.spec).is_none() {
                diffs.push(unlike(&view, TensorChange::Removed, 0));
            }
        }
        Ok(diffs)
    }

    fn diff_tensor(
        &self,
        old: Option<&TensorView<'_>>,
        new: &TensorView<'_>,
    ) -> Result<Option<TensorDiff>> {
        let key = ContentKey::new(new.spec.class, new.entry.id);
        let Some(old) = old else {
            let bytes = self.contents().record(key)?.whole_bytes;
            return Ok(Some(unlike(new, TensorChange::Added, bytes)));
        };
        if (old.spec.class, old.spec.elements()) != (new.spec.class, new.spec.elements()) {
            let bytes = self.contents().record(key)?.whole_bytes;
            return Ok(Some(unlike(new, TensorChange::Retyped, bytes)));
        }
        if old.entry.id == new.entry.id {
            return Ok(None);
        }
        let between = self
            .contents()
            .compare(old.entry.id, key, new.spec.elements())?;
        Ok(Some(TensorDiff {
            path: new.path.clone(),
            spec: new.spec.clone(),
            change: TensorChange::Changed,
            changed: between.changed,
            plus_one: between.plus_one,
            minus_one: between.minus_one,
            patch_bytes: between.bytes,
        }))
    }
}

fn unlike(view: &TensorView<'_>, change: TensorChange, patch_bytes: u64) -> TensorDiff {
    TensorDiff {
        path: view.path.clone(),
        spec: view.spec.clone(),
        change,
        changed: view.spec.elements(),
        plus_one: 0,
        minus_one: 0,
        patch_bytes,
    }
}
