//! Checking the store: structure and every cheap id; on request, that every content hashes to its id.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::records::{ContentKey, EdgeRecord, edge_ends, edge_key};
use crate::store::Store;
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::object::Snapshot;
use deltaic_format::patch::PIECE_ELEMENTS;
use deltaic_format::progress::Progress;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashSet};

/// What to check beyond structure.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyOptions {
    /// Share of the contents that are read and hashed, in percent; the choice depends on their ids alone.
    pub read_data_percent: Option<f64>,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `"missing"`, `"damaged"` or `"disconnected"`.
    pub kind: &'static str,
    /// Which object.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

/// What was checked and found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Commits checked.
    pub commits: u64,
    /// Contents checked.
    pub contents: u64,
    /// Edges checked.
    pub edges: u64,
    /// Contents read and hashed.
    pub contents_read: u64,
    /// Bytes of those.
    pub bytes_read: u64,
    /// What is wrong; empty if all is well.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.problems.is_empty()
    }

    /// Note damage and go on; other errors end the check.
    fn note(&mut self, kind: &'static str, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => Ok(()),
            Err(StoreError::Corrupt { object, what }) => {
                self.problems.push(Problem { kind, object, what });
                Ok(())
            }
            Err(StoreError::NotFound { kind: what, name }) => {
                self.problems.push(Problem {
                    kind: "missing",
                    object: format!("{what} {name}"),
                    what: "it is not in the store".to_owned(),
                });
                Ok(())
            }
            Err(other) => Err(other),
        }
    }
}

impl Store {
    /// Check all that branches and tags reach.
    ///
    /// # Errors
    ///
    /// If the check could not be finished; damage is no error but a problem in the report.
    pub fn verify(&self, options: &VerifyOptions, progress: &dyn Progress) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        progress.phase("checking objects", None);
        let mut contents: BTreeSet<ContentKey> = BTreeSet::new();
        let mut files: BTreeSet<FileId> = BTreeSet::new();
        for commit in self.reachable_commits(&mut report)? {
            stop_if_cancelled(progress)?;
            report.commits += 1;
            match self.check_commit(commit) {
                Ok(version) => {
                    contents.extend(
                        version
                            .tensors()
                            .iter()
                            .map(|t| ContentKey::new(t.spec.class, t.entry.id)),
                    );
                    files.extend(version.tree.weight_files.iter().map(|f| f.header));
                    files.extend(version.files().iter().map(|f| f.id));
                }
                Err(error) => report.note("damaged", Err(error))?,
            }
        }
        for &file in &files {
            let result = match self.database().get(Table::Files, file.as_bytes())? {
                Some(bytes) if FileId::of(&bytes) == file => Ok(()),
                Some(_) => Err(StoreError::corrupt(
                    format!("file {file}"),
                    "it does not hash to its id",
                )),
                None => {
                    contents.insert(ContentKey::file(file));
                    Ok(())
                }
            };
            report.note("damaged", result)?;
        }
        self.check_connected(&contents, &mut report, progress)?;
        self.check_edges(&contents, &mut report, progress)?;
        if let Some(percent) = options.read_data_percent {
            self.read_contents(&contents, percent, &mut report, progress)?;
        }
        Ok(report)
    }

    /// Every commit that any ref reaches; refs and commits that cannot be read are noted.
    fn reachable_commits(&self, report: &mut VerifyReport) -> Result<Vec<CommitId>> {
        let mut queue = Vec::new();
        for repo in self.repos()? {
            queue.extend(self.branches(&repo)?.iter().map(|b| b.commit));
            queue.extend(self.tags(&repo)?.iter().map(|t| t.commit));
        }
        let mut seen = HashSet::new();
        let mut order = Vec::new();
        while let Some(id) = queue.pop() {
            if !seen.insert(id) {
                continue;
            }
            match self.read_commit(id) {
                Ok(commit) => {
                    queue.extend(commit.parents);
                    order.push(id);
                }
                Err(error) => report.note("damaged", Err(error))?,
            }
        }
        Ok(order)
    }

    /// Read a version's objects; compare what its tree says with what is known of the contents and edges.
    fn check_commit(&self, id: CommitId) -> Result<Snapshot> {
        let version = self.snapshot(id)?;
        let parent = match version.commit.parents.first() {
            Some(&parent) => Some(self.snapshot(parent)?),
            None => None,
        };
        let expected = parent.as_ref().map_or(0, |p| p.commit.version.0 + 1);
        let damaged = |what: String| StoreError::corrupt(format!("commit {id}"), what);
        if version.commit.version.0 != expected {
            return Err(damaged(format!(
                "it is numbered {}, not v{expected}",
                version.commit.version
            )));
        }
        let wishes = deltaic_format::fetch::wishes_between(parent.as_ref(), &version);
        for (view, wish) in version.tensors().into_iter().zip(wishes) {
            let key = ContentKey::new(view.spec.class, view.entry.id);
            let record = self.contents().record(key)?;
            if (record.elements, record.moments) != (view.spec.elements(), view.entry.moments) {
                return Err(damaged(format!(
                    "tensor {:?} is not what the store holds",
                    view.spec.name
                )));
            }
            let changed = wish.have.filter(|&have| have != key.id);
            if changed.is_some() != view.entry.patch.is_some() {
                return Err(damaged(format!(
                    "tensor {:?} should list a patch, or not",
                    view.spec.name
                )));
            }
            let edge = match changed {
                Some(have) => self
                    .contents()
                    .edge(ContentKey::new(key.class, have), key.id)?,
                None => None,
            };
            if edge.is_some_and(|edge| Some(edge.patch) != view.entry.patch) {
                return Err(damaged(format!(
                    "tensor {:?} lists another patch than is stored",
                    view.spec.name
                )));
            }
        }
        Ok(version)
    }

    /// Every content reaches a base whose pack holds it.
    fn check_connected(
        &self,
        contents: &BTreeSet<ContentKey>,
        report: &mut VerifyReport,
        progress: &dyn Progress,
    ) -> Result<()> {
        progress.phase("checking contents", None);
        let results: Vec<Result<()>> = contents
            .par_iter()
            .map(|&key| {
                stop_if_cancelled(progress)?;
                self.contents().open(key).map(drop)
            })
            .collect();
        for result in results {
            report.contents += 1;
            report.note("disconnected", result)?;
        }
        Ok(())
    }

    /// Every edge of these contents decodes, has its id, fits the moments, and can be found from both ends.
    fn check_edges(
        &self,
        contents: &BTreeSet<ContentKey>,
        report: &mut VerifyReport,
        progress: &dyn Progress,
    ) -> Result<()> {
        progress.phase("checking edges", None);
        for &from in contents {
            stop_if_cancelled(progress)?;
            for row in self.database().scan(Table::Edges, &from.to_bytes()) {
                let (key, value) = row?;
                report.edges += 1;
                let checked = edge_ends(&key)
                    .and_then(|(_, to)| {
                        Ok((
                            ContentKey::new(from.class, to),
                            EdgeRecord::from_bytes(&value)?,
                        ))
                    })
                    .map_err(|e| StoreError::corrupt(format!("an edge of {from}"), e))
                    .and_then(|(to, edge)| self.check_edge(from, to, &edge, &value));
                report.note("damaged", checked)?;
            }
        }
        Ok(())
    }

    fn check_edge(
        &self,
        from: ContentKey,
        to: ContentKey,
        edge: &EdgeRecord,
        row: &[u8],
    ) -> Result<()> {
        let damaged =
            |what: &str| StoreError::corrupt(format!("edge from {from} to {}", to.id), what);
        let (before, after) = (self.contents().record(from)?, self.contents().record(to)?);
        let mut sum = 0u64;
        let mut changed = 0;
        for location in &edge.pieces {
            let changes = self.contents().changes_at(*location)?;
            changed += changes.len();
            sum = sum.wrapping_add(changes.first_moment(location.piece * PIECE_ELEMENTS));
        }
        self.contents().check_edge_id(from, to.id, edge)?;
        if changed != edge.changed {
            return Err(damaged(
                "it has another number of changes than its record says",
            ));
        }
        if sum != (after.moments - before.moments).l {
            return Err(damaged("it does not fit the moments of its ends"));
        }
        match self
            .database()
            .get(Table::EdgesBack, &edge_key(to, from.id))?
        {
            Some(back) if *back == *row => Ok(()),
            _ => Err(damaged("it cannot be found from its end")),
        }
    }

    /// Read and hash a share of the contents.
    fn read_contents(
        &self,
        contents: &BTreeSet<ContentKey>,
        percent: f64,
        report: &mut VerifyReport,
        progress: &dyn Progress,
    ) -> Result<()> {
        let limit = (percent.clamp(0.0, 100.0) / 100.0 * u32::MAX as f64) as u32;
        // Ids are hashes, so that their first bytes choose evenly.
        let place = |key: &ContentKey| {
            let [a, b, c, d, ..] = *key.id.as_bytes();
            u32::from_be_bytes([a, b, c, d])
        };
        let mut chosen: Vec<ContentKey> = contents
            .iter()
            .copied()
            .filter(|key| place(key) <= limit)
            .collect();
        // A small share of a small store is still a look at something.
        if chosen.is_empty() {
            chosen.extend(contents.iter().min_by_key(|key| place(key)));
        }
        let mut total = 0;
        for &key in &chosen {
            total += self
                .contents()
                .find(key)?
                .map_or(0, |r| r.elements * key.class.width() as u64);
        }
        progress.phase("reading", Some(total));
        let results: Vec<Result<u64>> = chosen
            .par_iter()
            .map(|&key| {
                let mut bytes = 0;
                self.contents().open(key)?.read(|piece| {
                    bytes += piece.len() as u64;
                    progress.advance(piece.len() as u64);
                    stop_if_cancelled(progress)
                })?;
                Ok(bytes)
            })
            .collect();
        for result in results {
            report.contents_read += 1;
            let result = result.map(|bytes| report.bytes_read += bytes);
            report.note("damaged", result)?;
        }
        Ok(())
    }
}

fn stop_if_cancelled(progress: &dyn Progress) -> Result<()> {
    if progress.cancelled() {
        return Err(StoreError::Interrupted);
    }
    Ok(())
}
