//! Where store and client meet in one process: each seen through the other's interface, errors kept as they are.

use crate::report::Failure;
use deltaic_client::{Checkpoint, ClientError, Source};
use deltaic_format::fetch::{Delivery, FetchPlan, TensorWish};
use deltaic_format::ids::FileId;
use deltaic_format::object::{Schema, Snapshot};
use deltaic_store::{PlainFile, Store, StoreError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A store as a source of versions.
#[derive(Debug, Clone, Copy)]
pub struct StoreSource<'a>(pub &'a Store);

/// An error of either side on its way through the store.
struct Passing(ClientError);

impl From<StoreError> for Passing {
    fn from(error: StoreError) -> Self {
        Self(match error {
            StoreError::Interrupted => ClientError::Interrupted,
            error => ClientError::Source(Box::new(error)),
        })
    }
}

fn pass(result: Result<(), Passing>) -> deltaic_client::Result<()> {
    result.map_err(|Passing(error)| error)
}

impl Source for StoreSource<'_> {
    fn plan(&self, want: &Snapshot, wishes: &[TensorWish]) -> deltaic_client::Result<FetchPlan> {
        let plan = self.0.plan(want, wishes);
        let mut plan = plan.map_err(|error| Passing::from(error).0)?;
        // Long paths add up to more than is ever sent.
        plan.bytes = plan.bytes.min(want.full_bytes());
        Ok(plan)
    }

    fn fetch(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        receive: &mut dyn FnMut(Delivery<'_>) -> deltaic_client::Result<()>,
    ) -> deltaic_client::Result<()> {
        pass(self.0.fetch(want, wishes, &mut |delivery| {
            receive(delivery).map_err(Passing)
        }))
    }

    fn file(
        &self,
        id: FileId,
        _size: u64,
        receive: &mut dyn FnMut(&[u8]) -> deltaic_client::Result<()>,
    ) -> deltaic_client::Result<()> {
        pass(self.0.file(id, &mut |part| receive(part).map_err(Passing)))
    }
}

/// A checkpoint on disk as what the store commits. The store passes words on; what failed is kept here as it was.
#[derive(Debug)]
pub struct Committed<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<PlainFile>,
    failure: Mutex<Option<Failure>>,
}

impl<'a> Committed<'a> {
    /// See `checkpoint` as the store does.
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        let files = checkpoint.files().iter().map(|file| PlainFile {
            path: file.path.clone(),
            mode: file.mode,
            size: file.size,
        });
        Self {
            checkpoint,
            files: files.collect(),
            failure: Mutex::default(),
        }
    }

    /// Why a commit of this checkpoint failed with `error`.
    pub fn failure(&self, error: StoreError) -> Failure {
        match error {
            StoreError::Checkpoint { .. } => self.noted().take().unwrap_or_else(|| error.into()),
            error => error.into(),
        }
    }

    fn in_words(&self, result: deltaic_client::Result<()>) -> Result<(), String> {
        result.map_err(|error| {
            // The first failure ends the commit; other threads may meet more.
            self.noted().get_or_insert_with(|| Failure::from(&error));
            error.to_string()
        })
    }

    fn noted(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl deltaic_store::Checkpoint for Committed<'_> {
    fn schema(&self) -> &Schema {
        self.checkpoint.schema()
    }

    fn header(&self, file: usize) -> &[u8] {
        self.checkpoint.header(file)
    }

    fn read_data(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        self.in_words(self.checkpoint.read_data(file, offset, out))
    }

    fn files(&self) -> &[PlainFile] {
        &self.files
    }

    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        self.in_words(self.checkpoint.read_file(file, offset, out))
    }

    fn check_unchanged(&self) -> Result<(), String> {
        self.in_words(self.checkpoint.check_unchanged())
    }
}
