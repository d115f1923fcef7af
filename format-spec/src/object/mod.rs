//! The objects that a version is made of, with the canonical bytes that their ids cover (SPEC.md §8).

mod commit;
mod counterparts;
mod ref_record;
mod schema;
mod snapshot;
mod tree;

pub use commit::Commit;
pub use counterparts::Counterparts;
pub use ref_record::{RefRecord, RefSignature, SignedRef};
pub use schema::{Schema, TensorSpec, WeightFileSpec};
pub use snapshot::{Snapshot, TensorView, check_agreement};
pub use tree::{FileEntry, FileMode, TensorEntry, Tree, WeightFileEntry};

use crate::bytes::ByteReader;
use crate::error::Result;

/// Version of every object.
const OBJECT_VERSION: u8 = 1;

const MAX_STRING: u64 = 4096;
const MAX_FILES: u64 = 1 << 20;
pub(crate) const MAX_TENSORS: u64 = 1 << 24;

/// An object with canonical bytes: what is hashed is exactly [`to_bytes`](Self::to_bytes).
pub trait CanonicalObject: Sized {
    /// Name of the kind, in errors.
    const WHAT: &'static str;
    /// BLAKE3 derive-key context of its id, so that no object can pose as one of another kind.
    const CONTEXT: &'static str;
    /// Its id type.
    type Id;

    /// Append everything that follows the object version.
    fn put(&self, out: &mut Vec<u8>);

    /// Read what [`put`](Self::put) wrote, checking every rule.
    ///
    /// # Errors
    ///
    /// If a rule of SPEC.md §8 does not hold.
    fn get(reader: &mut ByteReader<'_>) -> Result<Self>;

    /// Wrap a hash.
    fn id_from(hash: [u8; 32]) -> Self::Id;

    /// The canonical bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![OBJECT_VERSION];
        self.put(&mut out);
        out
    }

    /// Read canonical bytes.
    ///
    /// # Errors
    ///
    /// If they are no such object or not in canonical form.
    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(Self::WHAT, bytes);
        reader.version(OBJECT_VERSION)?;
        let object = Self::get(&mut reader)?;
        reader.finish()?;
        Ok(object)
    }

    /// The id of canonical bytes.
    fn id_of(bytes: &[u8]) -> Self::Id {
        Self::id_from(blake3::derive_key(Self::CONTEXT, bytes))
    }

    /// The object's id.
    fn id(&self) -> Self::Id {
        Self::id_of(&self.to_bytes())
    }
}
