//! Checking the store: structure and every cheap id; on request, that every content hashes to its id.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::packs::{hash_pack, pack_file_name};
use crate::records::{ContentKey, EdgeRecord, edge_ends, edge_key};
use crate::refs::{ref_in_row, tag_in_row};
use crate::store::Store;
use deltaic_format::answers::{Problem, VerifyOptions, VerifyReport};
use deltaic_format::ids::{CommitId, FileId, TensorId};
use deltaic_format::object::{Snapshot, TensorView};
use deltaic_format::patch::PIECE_ELEMENTS;
use deltaic_format::progress::Progress;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashSet};

/// Note damage and go on; other errors end the check.
fn note(report: &mut VerifyReport, kind: &'static str, result: Result<()>) -> Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(StoreError::Corrupt { object, what }) => {
            report.problems.push(Problem {
                kind: kind.into(),
                object,
                what,
            });
            Ok(())
        }
        Err(StoreError::NotFound { kind: what, name }) => {
            report.problems.push(Problem {
                kind: "missing".into(),
                object: format!("{what} {name}"),
                what: "it is not in the store".to_owned(),
            });
            Ok(())
        }
        Err(other) => Err(other),
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
            match self.check_commit(commit, &mut report) {
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
                Err(error) => note(&mut report, "damaged", Err(error))?,
            }
        }
        for &file in &files {
            let stored = self.database().get(Table::Files, file.as_bytes());
            let checked = stored.and_then(|stored| match stored {
                Some(bytes) if FileId::of(&bytes) == file => Ok(()),
                Some(_) => {
                    let object = format!("file {file}");
                    Err(StoreError::corrupt(object, "it does not hash to its id"))
                }
                None => {
                    contents.insert(ContentKey::file(file));
                    Ok(())
                }
            });
            note(&mut report, "damaged", checked)?;
        }
        self.check_connected(&contents, &mut report, progress)?;
        self.check_edges(&contents, &mut report, progress)?;
        if let Some(percent) = options.read_data_percent {
            self.read_contents(&contents, percent, &mut report, progress)?;
            if percent >= 100.0 {
                self.check_packs(&mut report, progress)?;
            }
        }
        Ok(report)
    }

    /// Every commit that any ref reaches; refs and commits that cannot be read are noted.
    fn reachable_commits(&self, report: &mut VerifyReport) -> Result<Vec<CommitId>> {
        let mut queue = Vec::new();
        for row in self.database().scan(Table::Refs, b"") {
            let head = row.and_then(|(key, value)| ref_in_row(&key, &value));
            let noted = head.map(|record| queue.push(record.commit));
            note(report, "damaged", noted)?;
        }
        for row in self.database().scan(Table::Tags, b"") {
            let tag = row.and_then(|(key, value)| tag_in_row(&key, &value));
            let noted = tag.map(|tag| queue.push(tag.commit));
            note(report, "damaged", noted)?;
        }
        let mut seen = HashSet::new();
        let mut order = Vec::new();
        while let Some(id) = queue.pop() {
            if !seen.insert(id) {
                continue;
            }
            let commit = self.read_commit(id);
            let noted = commit.map(|commit| {
                queue.extend(commit.parents);
                order.push(id);
            });
            note(report, "damaged", noted)?;
        }
        Ok(order)
    }

    /// Read a version's objects; compare what its tree says with what is known of the contents and edges.
    fn check_commit(&self, id: CommitId, report: &mut VerifyReport) -> Result<Snapshot> {
        let version = self.snapshot(id)?;
        let parent = match version.commit.parents.first() {
            Some(&parent) => Some(self.snapshot(parent)?),
            None => None,
        };
        let expected = parent
            .as_ref()
            .map_or(Some(0), |p| p.commit.version.0.checked_add(1));
        if Some(version.commit.version.0) != expected {
            let what = format!(
                "it is numbered {}, which does not follow",
                version.commit.version
            );
            let wrong = StoreError::corrupt(format!("commit {id}"), what);
            note(report, "damaged", Err(wrong))?;
        }
        let wishes = deltaic_format::fetch::wishes_between(parent.as_ref(), &version);
        for (view, wish) in version.tensors().into_iter().zip(wishes) {
            let checked = self.check_tensor(&version, view, wish.have);
            note(report, "damaged", checked)?;
        }
        Ok(version)
    }

    fn check_tensor(
        &self,
        version: &Snapshot,
        view: TensorView<'_>,
        before: Option<TensorId>,
    ) -> Result<()> {
        let damaged = |what: &str| {
            let object = format!("tensor {:?} of commit {}", view.spec.name, version.id);
            Err(StoreError::corrupt(object, what))
        };
        let key = ContentKey::new(view.spec.class, view.entry.id);
        let record = self.contents().record(key)?;
        if (record.elements, record.moments) != (view.spec.elements(), view.entry.moments) {
            return damaged("its tree does not say what the store holds");
        }
        let changed = before.filter(|&before| before != key.id);
        if changed.is_none() && view.entry.patch.is_some() {
            return damaged("its tree lists a patch, but nothing changed");
        }
        let edge = match changed {
            Some(before) => self
                .contents()
                .edge(ContentKey::new(key.class, before), key.id)?,
            None => None,
        };
        if edge.is_some_and(|edge| view.entry.patch.is_some_and(|listed| listed != edge.patch)) {
            return damaged("its tree lists another patch than is stored");
        }
        Ok(())
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
            note(report, "disconnected", result)?;
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
                report.edges += 1;
                let (key, value) = match row {
                    Ok(row) => row,
                    Err(error) => {
                        note(report, "damaged", Err(error))?;
                        break;
                    }
                };
                let checked = edge_ends(&key)
                    .and_then(|(_, to)| {
                        Ok((
                            ContentKey::new(from.class, to),
                            EdgeRecord::from_bytes(&value)?,
                        ))
                    })
                    .map_err(|e| StoreError::corrupt(format!("an edge of {from}"), e))
                    .and_then(|(to, edge)| self.check_edge(from, to, &edge));
                note(report, "damaged", checked)?;
            }
        }
        Ok(())
    }

    fn check_edge(&self, from: ContentKey, to: ContentKey, edge: &EdgeRecord) -> Result<()> {
        let damaged =
            |what: &str| StoreError::corrupt(format!("edge from {from} to {}", to.id), what);
        let (before, after) = (self.contents().record(from)?, self.contents().record(to)?);
        let mut sum = 0u64;
        let mut changed = 0;
        for location in &edge.pieces {
            let changes = self.contents().changes_at(*location)?;
            changed += changes.len();
            sum =
                sum.wrapping_add(changes.first_moment(location.piece.wrapping_mul(PIECE_ELEMENTS)));
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
            Some(_) => Ok(()),
            None => Err(damaged("it cannot be found from its end")),
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
            // What cannot be read is noted when its turn comes.
            let record = self.contents().find(key).ok().flatten();
            total += record.map_or(0, |r| r.elements * key.class.width() as u64);
        }
        progress.phase("reading", Some(total));
        let results: Vec<Result<u64>> = chosen
            .par_iter()
            .map(|&key| {
                let mut bytes = 0;
                self.contents().open(key)?.prove(|piece| {
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
            note(report, "damaged", result)?;
        }
        Ok(())
    }

    /// Every pack is there, and where some content is damaged, which packs do not have the hash that is their name. A
    /// pack all of whose contents are sound may still hold a damaged base that was stored anew elsewhere.
    fn check_packs(&self, report: &mut VerifyReport, progress: &dyn Progress) -> Result<()> {
        progress.phase("hashing packs", None);
        let damaged_contents = !report.ok();
        for row in self.database().scan(Table::Packs, b"") {
            stop_if_cancelled(progress)?;
            let checked = row.and_then(|(key, _)| self.check_pack(&key, damaged_contents));
            note(report, "damaged", checked)?;
        }
        Ok(())
    }

    fn check_pack(&self, key: &[u8], hash: bool) -> Result<()> {
        let name = <[u8; 32]>::try_from(key)
            .map_err(|_| StoreError::corrupt("a pack's row", "its name is no hash"))?;
        let path = self.folder().packs().join(pack_file_name(name));
        let damaged = |what: &str| StoreError::corrupt(format!("pack {}", path.display()), what);
        if !path.exists() {
            return Err(damaged("it is missing"));
        }
        if hash && hash_pack(&path)? != name {
            return Err(damaged("it does not hash to its name"));
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
