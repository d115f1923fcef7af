//! Where a replica gets versions from: an embedded store today, a server over the wire alike.

use crate::error::Result;
use deltaic_format::fetch::{Delivery, FetchPlan, TensorWish};
use deltaic_format::ids::FileId;
use deltaic_format::object::Snapshot;

/// A place that holds versions and answers "give me N, I hold M".
pub trait Source {
    /// What a fetch of `wishes` from version `want` would take.
    ///
    /// # Errors
    ///
    /// If the source cannot read what it needs.
    fn plan(&self, want: &Snapshot, wishes: &[TensorWish]) -> Result<FetchPlan>;

    /// Send what turns the contents that `wishes` says are held into those of `want`, in bounded parts.
    ///
    /// # Errors
    ///
    /// If the source cannot read what it needs, or `receive` fails, whose error is then returned.
    fn fetch(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        receive: &mut dyn FnMut(Delivery<'_>) -> Result<()>,
    ) -> Result<()>;

    /// Send the bytes of a file (a safetensors header, or one that is no weight file) of `size` bytes in
    /// bounded parts.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    fn file(
        &self,
        id: FileId,
        size: u64,
        receive: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()>;
}
