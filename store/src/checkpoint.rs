//! What a commit reads: a checkpoint, wherever its bytes are.

use deltaic_format::name::TreePath;
use deltaic_format::object::{FileMode, Schema};

/// A file of a checkpoint that is no weight file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainFile {
    /// Where it lies in the checkpoint.
    pub path: TreePath,
    /// Whether it may be executed.
    pub mode: FileMode,
    /// Its length in bytes.
    pub size: u64,
}

/// The files of a checkpoint, read in bounded parts from several threads.
///
/// Reads fail with a message that names the file, for example when it shrank or changed meanwhile.
pub trait Checkpoint: Sync {
    /// Names, dtypes, shapes and file layout of the tensors.
    fn schema(&self) -> &Schema;

    /// The verbatim safetensors header of weight file `file` (its place in the schema).
    fn header(&self, file: usize) -> &[u8];

    /// Fill `out` from the data of weight file `file`; `offset` counts from the first tensor's first byte.
    ///
    /// # Errors
    ///
    /// A message for the user that names the file.
    fn read_data(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String>;

    /// Whether tensor number `tensor`, of all in the schema's order, is known to be what the parent has in its place, so
    /// that it need not be read.
    fn unchanged(&self, _tensor: usize) -> bool {
        false
    }

    /// All other files, ascending by path.
    fn files(&self) -> &[PlainFile];

    /// Fill `out` from file `file` (its place in [`files`](Self::files)).
    ///
    /// # Errors
    ///
    /// A message for the user that names the file.
    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String>;

    /// Called once everything was read, before the version is published: fails if a file has changed since the
    /// checkpoint was opened.
    ///
    /// # Errors
    ///
    /// A message for the user that names the file.
    fn check_unchanged(&self) -> Result<(), String>;
}
