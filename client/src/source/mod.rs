//! Where a replica gets versions from: any [`Repository`](crate::Repository), seen by code that blocks.

mod edges;
mod repository;
mod split;

pub(crate) use edges::EdgesSource;
pub use repository::RepositorySource;
pub use split::Split;

use crate::error::Result;
use deltaic_format::fetch::{Delivery, FetchPlan, TensorWish};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::object::Snapshot;

/// What a replica asks its source for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The version that is wanted.
    pub want: &'a Snapshot,
    /// The version that the asker holds, if any: most wishes can then be named by it. What is held of each tensor,
    /// the wishes say.
    pub held: Option<&'a Snapshot>,
    /// The wanted tensors, ascending, none of them twice.
    pub wishes: &'a [TensorWish],
}

/// A place that holds versions and answers "give me N, I hold M".
pub trait Source {
    /// What a fetch would take.
    ///
    /// # Errors
    ///
    /// If the source cannot read what it needs.
    fn plan(&self, ask: &Ask<'_>) -> Result<FetchPlan>;

    /// Send what turns the contents that the wishes say are held into the wanted ones, in bounded parts: the tensors in any
    /// order, each one's elements as [`deltaic_format::fetch`] fixes.
    ///
    /// # Errors
    ///
    /// If the source cannot read what it needs, or `receive` fails, whose error is then returned.
    fn fetch(&self, ask: &Ask<'_>, receive: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()>;

    /// Send the bytes of a file of a version (a safetensors header, or one that is no weight file) of `size` bytes in
    /// bounded parts.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    fn file(
        &self,
        version: CommitId,
        id: FileId,
        size: u64,
        receive: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()>;

    /// A version by the id of its commit.
    ///
    /// # Errors
    ///
    /// If the source does not have it or cannot read it.
    fn snapshot(&self, id: CommitId) -> Result<Snapshot>;
}
