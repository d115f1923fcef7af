//! A checkpoint as what an upload sends.

use super::difference::{Difference, Scope};
use super::files::CheckpointFiles;
use super::pending::PendingUpload;
use super::position::{Stage, parts_of};
use crate::asynchronous::{blocking, stoppable};
use crate::error::{ClientError, Result};
use crate::repository::{UploadSource, Watcher};
use bytes::Bytes;
use deltaic_format::Version;
use deltaic_format::answers::CommitRequest;
use deltaic_format::fetch::Position;
use deltaic_format::ids::CommitId;
use deltaic_format::object::{CanonicalObject, Commit, Snapshot, Tree};
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{ObjectKind, UploadItem, UploadPosition};
use futures::stream::{self, BoxStream, StreamExt};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Items that are made ahead of the network.
const AHEAD: usize = 2;

/// What is sent of a checkpoint, made as it is needed.
#[derive(Clone)]
pub(super) struct CheckpointSource {
    difference: Arc<Difference>,
    files: Arc<CheckpointFiles>,
    pending: PendingUpload,
    progress: Watcher,
    request: Arc<CommitRequest>,
    version: Arc<OnceLock<Snapshot>>,
}

impl fmt::Debug for CheckpointSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointSource")
            .field("path", &self.difference.checkpoint().path())
            .finish_non_exhaustive()
    }
}

/// Takes items on their way, from a thread that may block.
type Send<'a> = &'a mut dyn FnMut(Stage, UploadItem) -> Result<()>;

impl CheckpointSource {
    pub(super) fn new(
        difference: Arc<Difference>,
        files: Arc<CheckpointFiles>,
        request: CommitRequest,
        pending: PendingUpload,
        progress: Watcher,
    ) -> Self {
        Self {
            difference,
            files,
            pending,
            progress,
            request: Arc::new(request),
            version: Arc::default(),
        }
    }

    /// The version that was sent, once all of it was.
    pub(super) fn version(&self) -> Option<Snapshot> {
        self.version.get().cloned()
    }

    /// Send everything after `after`.
    fn send(&self, after: Stage, progress: &dyn Progress, send: Send<'_>) -> Result<()> {
        let checkpoint = self.difference.checkpoint();
        for (at, item) in parts_of(ObjectKind::Schema, checkpoint.schema().to_bytes(), after) {
            send(at, item)?;
        }
        self.send_files(after, send)?;
        let from = match after {
            Stage::Deliveries(position) => position,
            earlier if earlier < Stage::Deliveries(Position::default()) => Position::default(),
            // All was sent, and is read once more only if this process has not.
            _ => Position {
                wish: u64::MAX,
                ..Position::default()
            },
        };
        self.difference
            .send(Scope::After(from), progress, &mut |chunk| {
                send(
                    Stage::Deliveries(chunk.next),
                    UploadItem::Delivery(chunk.delivery),
                )
            })?;
        checkpoint.check_unchanged()?;
        let version = self.make_version()?;
        for (at, item) in parts_of(ObjectKind::Tree, version.tree.to_bytes(), after) {
            send(at, item)?;
        }
        self.pending.note(&version.commit)?;
        for (at, item) in parts_of(ObjectKind::Commit, version.commit.to_bytes(), after) {
            send(at, item)?;
        }
        Ok(())
    }

    fn send_files(&self, after: Stage, send: Send<'_>) -> Result<()> {
        let done = match after {
            Stage::Files { file, end } => (file, end),
            earlier if earlier < (Stage::Files { file: 0, end: 0 }) => (0, 0),
            _ => return Ok(()),
        };
        for (number, &file) in self
            .files
            .to_send()
            .iter()
            .enumerate()
            .skip(done.0 as usize)
        {
            let number = number as u64;
            let from = if number == done.0 { done.1 } else { 0 };
            self.files.read(
                self.difference.checkpoint(),
                file,
                from,
                &mut |offset, part| {
                    let end = offset + part.len() as u64;
                    let item = UploadItem::File {
                        file,
                        offset,
                        bytes: Bytes::copy_from_slice(part),
                    };
                    send(Stage::Files { file: number, end }, item)
                },
            )?;
        }
        Ok(())
    }

    /// The version, all of whose tensors are known by now; the same one every time.
    fn make_version(&self) -> Result<Snapshot> {
        if let Some(version) = self.version.get() {
            return Ok(version.clone());
        }
        let schema = self.difference.checkpoint().schema();
        let tensors = self.difference.entries().ok_or_else(|| Refusal::Failed {
            what: "not all tensors were read".to_owned(),
        })?;
        let tree = Tree {
            schema: schema.id(),
            weight_files: self.files.weight_files.clone(),
            tensors,
            files: self.files.files.clone(),
        };
        let parent = self.difference.held().map(|held| &held.snapshot);
        let request = &self.request;
        let commit = Commit {
            tree: tree.id(),
            parents: parent.iter().map(|parent| parent.id).collect(),
            version: parent.map_or(Version(0), |parent| parent.commit.version.next()),
            time_ms: request.time_ms,
            message: request.message.clone(),
            meta: request.meta.clone(),
        };
        let version = Snapshot::new(commit.id(), commit, tree, Arc::new(schema.clone()))
            .map_err(|error| ClientError::checkpoint(self.difference.checkpoint().path(), error))?;
        Ok(self.version.get_or_init(|| version).clone())
    }
}

impl UploadSource for CheckpointSource {
    fn commit(&self) -> Option<CommitId> {
        self.version.get().map(|version| version.id)
    }

    fn items(
        &self,
        after: Option<UploadPosition>,
    ) -> BoxStream<'static, Result<(UploadPosition, UploadItem)>> {
        let after = match after.as_deref().map(Stage::from_bytes).transpose() {
            Ok(after) => after.unwrap_or_default(),
            Err(error) => {
                let error = Refusal::Upload {
                    what: error.to_string(),
                };
                return stream::once(async { Err(error.into()) }).boxed();
            }
        };
        let source = self.clone();
        let (sender, items) = mpsc::channel(AHEAD);
        let (progress, stop) = stoppable(Arc::clone(&self.progress));
        let work = blocking(move || {
            let sent = source.send(after, &*progress, &mut |at, item| {
                let item = Ok((at.to_bytes(), item));
                // Whoever took the items has gone.
                sender
                    .blocking_send(item)
                    .map_err(|_| ClientError::Interrupted)
            });
            if let Err(error) = sent {
                let _ = sender.blocking_send(Err(error));
            }
            Ok(())
        });
        let work = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(work));
        let items = ReceiverStream::new(items);
        // The guard stops the thread once the stream is dropped.
        let held = (stop, Some(work));
        stream::unfold((items, held), |(mut items, (stop, mut work))| async {
            if let Some(item) = items.next().await {
                return Some((item, (items, (stop, work))));
            }
            // What ended without a word has not come to its end.
            let error = match work.take()?.await {
                Ok(Ok(())) => return None,
                Ok(Err(error)) => error,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => ClientError::Interrupted,
                },
            };
            Some((Err(error), (items, (stop, None))))
        })
        .boxed()
    }
}
