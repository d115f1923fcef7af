//! The shadow: a replica folder of what was last committed, which the next commit is diffed against.

use super::difference::{Difference, Held, Scope};
use super::files::CheckpointFiles;
use crate::asynchronous::{blocking, pull};
use crate::checkpoint::Checkpoint;
use crate::error::{ClientError, Result};
use crate::replica::{PullOptions, ReplicaFolder};
use crate::repository::{Repository, Watcher};
use crate::source::{Ask, Source};
use deltaic_format::fetch::{Delivery, FetchPlan};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::RepoName;
use deltaic_format::object::Snapshot;
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

/// A shadow, locked against other processes as long as this lives.
pub(super) struct Shadow {
    folder: ReplicaFolder,
}

impl Shadow {
    /// Open the shadow at `place`, or make it.
    pub(super) async fn open(place: PathBuf, progress: Watcher) -> Result<Self> {
        let folder = blocking(move || {
            if let Some(parent) = place.parent() {
                std::fs::create_dir_all(parent).map_err(|error| ClientError::io(parent, error))?;
            }
            ReplicaFolder::open_or_create(&place, &*progress)
        });
        Ok(Self {
            folder: folder.await?,
        })
    }

    /// Bring it to `version`; what of that is in `checkpoint` is not fetched where nothing is held. With `repair`, all of
    /// it is read, and what is not right is fetched anew.
    pub(super) async fn bring_to(
        self,
        (repository, repo): (Arc<dyn Repository>, RepoName),
        version: Snapshot,
        checkpoint: &Checkpoint,
        repair: bool,
        progress: Watcher,
    ) -> Result<Self> {
        let seeds = match self.folder.held() {
            Some(_) => Vec::new(),
            None => vec![checkpoint.path().to_owned()],
        };
        let options = PullOptions {
            repair,
            seeds,
            ..options(&repo, &version)
        };
        let pulled = pull(self.folder, repository, repo, version, options, progress);
        let (folder, _) = pulled.await?;
        Ok(Self { folder })
    }

    /// The version and its files.
    pub(super) fn held(&self) -> Result<Option<Held>> {
        let Some(snapshot) = self.folder.held() else {
            return Ok(None);
        };
        let files = Checkpoint::open(self.folder.path())?;
        if *files.schema() != *snapshot.schema {
            return Err(ClientError::Modified {
                path: self.folder.path().to_owned(),
                what: vec!["its tensors".to_owned()],
            });
        }
        Ok(Some(Held {
            snapshot: snapshot.clone(),
            files,
        }))
    }

    /// Bring it to the version that was made of a checkpoint, by what is on this machine alone.
    pub(super) async fn advance(
        self,
        repo: RepoName,
        version: Snapshot,
        local: LocalSource,
        progress: Watcher,
    ) -> Result<()> {
        let Self { mut folder } = self;
        blocking(move || {
            let seeds = match folder.held() {
                Some(_) => Vec::new(),
                None => vec![local.difference.checkpoint().path().to_owned()],
            };
            let options = PullOptions {
                seeds,
                ..options(&repo, &version)
            };
            folder.pull(&local, &version, &options, &*progress)?;
            Ok(())
        })
        .await
    }
}

fn options(repo: &RepoName, version: &Snapshot) -> PullOptions {
    PullOptions {
        repo: repo.to_string(),
        revision: version.id.to_string(),
        ..PullOptions::default()
    }
}

/// The checkpoint that was committed, as where the shadow gets the new version from.
pub(super) struct LocalSource {
    pub(super) difference: Arc<Difference>,
    pub(super) files: Arc<CheckpointFiles>,
    pub(super) progress: Watcher,
}

impl Source for LocalSource {
    fn plan(&self, _ask: &Ask<'_>) -> Result<FetchPlan> {
        Ok(FetchPlan {
            bytes: self.difference.checkpoint().total_bytes(),
            ..FetchPlan::default()
        })
    }

    fn fetch(&self, ask: &Ask<'_>, receive: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        let wished: HashSet<usize> = ask.wishes.iter().map(|wish| wish.tensor).collect();
        let quiet = Quiet(&*self.progress);
        self.difference
            .send(Scope::Tensors(&wished), &quiet, &mut |chunk| {
                receive(chunk.delivery)
            })
    }

    fn file(
        &self,
        _version: CommitId,
        id: FileId,
        _size: u64,
        receive: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.files
            .read(self.difference.checkpoint(), id, 0, &mut |_, part| {
                receive(part)
            })
    }

    fn snapshot(&self, id: CommitId) -> Result<Snapshot> {
        Err(Refusal::NotFound {
            kind: "commit".to_owned(),
            name: id.to_string(),
        }
        .into())
    }
}

/// Passes on nothing but the wish to stop: what comes is counted where it is received.
struct Quiet<'a>(&'a dyn Progress);

impl Progress for Quiet<'_> {
    fn phase(&self, _name: &'static str, _total: Option<u64>) {}

    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}
