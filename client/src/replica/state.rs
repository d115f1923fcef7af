//! What a replica knows of itself: the version that its files hold, and how each file looked when it was last
//! written.

use super::folder::Folder;
use super::journal::Target;
use super::stamp::FileStat;
use crate::error::{ClientError, Result};
use deltaic_format::Version;
use deltaic_format::ids::CommitId;
use deltaic_format::name::TreePath;
use deltaic_format::object::{CanonicalObject, Commit, Schema, Snapshot, Tree};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

const FORMAT: u32 = 1;
pub(super) const STATE: &str = "state.json";
const COMMIT: &str = "commit";
const TREE: &str = "tree";
const SCHEMA: &str = "schema";

/// Where a version came from, as the user named it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Labels {
    /// The repository.
    pub repo: String,
    /// The revision.
    pub revision: String,
    /// The file or folder of the tree that is held; everything if `None`.
    pub path: Option<TreePath>,
}

/// The version that the files hold.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub snapshot: Snapshot,
    pub labels: Labels,
    /// Every file that is held, with how it looked after it was last written and proven; `None` if it may hold
    /// anything, so that it is read in full before it is relied upon.
    pub files: BTreeMap<TreePath, Option<FileStat>>,
}

/// `state.json`.
#[derive(Serialize, Deserialize)]
struct StateFile {
    format: u32,
    repo: String,
    revision: String,
    path: Option<String>,
    commit: String,
    version: u64,
    files: Vec<FileLine>,
}

#[derive(Serialize, Deserialize)]
struct FileLine {
    path: String,
    stat: Option<FileStat>,
}

impl Held {
    /// Write what is to become the state of `folder` beside the present one, with `files`, so that
    /// [`save`](Self::save) needs no space any more, whatever their stats will be.
    pub(super) fn reserve(
        folder: &Folder,
        target: &Target,
        files: impl IntoIterator<Item = TreePath>,
    ) -> Result<()> {
        let stat = Some(FileStat::longest());
        let held = Self {
            snapshot: target.snapshot.clone(),
            labels: target.labels.clone(),
            files: files.into_iter().map(|path| (path, stat)).collect(),
        };
        for (name, content) in held.objects() {
            folder.reserve(name, &content)?;
        }
        folder.reserve(STATE, &held.state(folder)?)
    }

    /// Delete what [`reserve`](Self::reserve) wrote.
    pub(super) fn unreserve(folder: &Folder) -> Result<()> {
        [COMMIT, TREE, SCHEMA, STATE]
            .iter()
            .try_for_each(|name| folder.unreserve(name))
    }

    /// Make this the state of `folder`, by way of what was reserved. A crash between the objects and the state does no
    /// harm: the journal is still there, and its replay comes here again.
    pub(super) fn save(&self, folder: &Folder) -> Result<()> {
        for (name, content) in self.objects() {
            folder.replace_reserved(name, &content)?;
        }
        folder.replace_reserved(STATE, &self.state(folder)?)?;
        folder.sync()
    }

    /// Save what the objects do not say: labels and stats.
    pub(super) fn save_state(&self, folder: &Folder) -> Result<()> {
        folder.replace(STATE, &self.state(folder)?)?;
        folder.sync()
    }

    fn objects(&self) -> [(&'static str, Vec<u8>); 3] {
        let snapshot = &self.snapshot;
        [
            (COMMIT, snapshot.commit.to_bytes()),
            (TREE, snapshot.tree.to_bytes()),
            (SCHEMA, snapshot.schema.to_bytes()),
        ]
    }

    /// The bytes of `state.json`.
    fn state(&self, folder: &Folder) -> Result<Vec<u8>> {
        let state = StateFile {
            format: FORMAT,
            repo: self.labels.repo.clone(),
            revision: self.labels.revision.clone(),
            path: self.labels.path.as_ref().map(TreePath::to_string),
            commit: self.snapshot.id.to_string(),
            version: self.snapshot.commit.version.0,
            files: (self.files.iter())
                .map(|(path, stat)| FileLine {
                    path: path.to_string(),
                    stat: *stat,
                })
                .collect(),
        };
        serde_json::to_vec_pretty(&state).map_err(|error| damaged(folder, STATE, error))
    }

    /// Read the state of `folder`; `None` if it has none yet.
    pub(super) fn load(folder: &Folder) -> Result<Option<Self>> {
        let Some(state) = load_file(folder)? else {
            return Ok(None);
        };
        let fail = |error| damaged(folder, STATE, error);
        let path = state.path.map(TreePath::new).transpose().map_err(fail)?;
        let mut files = BTreeMap::new();
        for line in state.files {
            files.insert(TreePath::new(line.path).map_err(fail)?, line.stat);
        }
        let snapshot = load_snapshot(folder, state.commit.parse().map_err(fail)?)?;
        if snapshot.commit.version != Version(state.version) {
            return Err(damaged(folder, STATE, "its version is not the commit's"));
        }
        Ok(Some(Self {
            snapshot,
            labels: Labels {
                repo: state.repo,
                revision: state.revision,
                path,
            },
            files,
        }))
    }

    /// The stats of `folder`'s files, whatever version they hold: what a replay knows of files that it does not touch.
    pub(super) fn load_stats(folder: &Folder) -> Result<BTreeMap<TreePath, FileStat>> {
        let lines = load_file(folder)?.map_or_else(Vec::new, |state| state.files);
        let mut stats = BTreeMap::new();
        for FileLine { path, stat } in lines {
            let path = TreePath::new(path).map_err(|error| damaged(folder, STATE, error))?;
            stats.extend(stat.map(|stat| (path, stat)));
        }
        Ok(stats)
    }
}

fn load_file(folder: &Folder) -> Result<Option<StateFile>> {
    let Some(json) = folder.read(STATE)? else {
        return Ok(None);
    };
    let state: StateFile =
        serde_json::from_slice(&json).map_err(|error| damaged(folder, STATE, error))?;
    if state.format != FORMAT {
        let what = format!(
            "it has format {}, this build reads format {FORMAT}",
            state.format
        );
        return Err(damaged(folder, STATE, what));
    }
    Ok(Some(state))
}

fn load_snapshot(folder: &Folder, id: CommitId) -> Result<Snapshot> {
    let read = |name| {
        folder
            .read(name)?
            .ok_or_else(|| damaged(folder, name, "it is missing"))
    };
    let (commit, tree, schema) = (read(COMMIT)?, read(TREE)?, read(SCHEMA)?);
    snapshot_from(id, &commit, &tree, &schema).map_err(|(name, what)| damaged(folder, name, what))
}

/// The snapshot that the canonical bytes of its objects make up; on error which one is wrong, and how.
pub(super) fn snapshot_from(
    id: CommitId,
    commit: &[u8],
    tree: &[u8],
    schema: &[u8],
) -> Result<Snapshot, (&'static str, String)> {
    let other = |name| (name, "it is not the object that its id names".to_owned());
    if Commit::id_of(commit) != id {
        return Err(other(COMMIT));
    }
    let commit = Commit::from_bytes(commit).map_err(|e| (COMMIT, e.to_string()))?;
    if Tree::id_of(tree) != commit.tree {
        return Err(other(TREE));
    }
    let tree = Tree::from_bytes(tree).map_err(|e| (TREE, e.to_string()))?;
    if Schema::id_of(schema) != tree.schema {
        return Err(other(SCHEMA));
    }
    let schema = Schema::from_bytes(schema).map_err(|e| (SCHEMA, e.to_string()))?;
    Snapshot::new(id, commit, tree, Arc::new(schema)).map_err(|e| (TREE, e.to_string()))
}

fn damaged(folder: &Folder, name: &str, what: impl std::fmt::Display) -> ClientError {
    ClientError::corrupt(folder.internal(name).display(), what)
}
