//! Sizes: of a version against its parent, and of the store.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::records::{ContentKey, ContentRecord};
use crate::store::Store;
use deltaic_format::answers::{StoreStats, TensorStats, VersionStats};
use deltaic_format::bytes::ByteReader;
use deltaic_format::name::RepoName;
use deltaic_format::object::Snapshot;
use deltaic_format::progress::Progress;
use rayon::prelude::*;
use std::collections::HashSet;

impl Store {
    /// What `version` took against its first parent.
    ///
    /// # Errors
    ///
    /// If stored data is damaged.
    pub fn version_stats(&self, version: &Snapshot) -> Result<VersionStats> {
        let parent = match version.commit.parents.first() {
            Some(&parent) => Some(self.snapshot(parent)?),
            None => None,
        };
        let wishes = deltaic_format::fetch::wishes_between(parent.as_ref(), version);
        let views = version.tensors();
        let tensors = wishes
            .par_iter()
            .map(|wish| {
                let view = views[wish.tensor];
                let key = ContentKey::new(view.spec.class, view.entry.id);
                let Some(have) = wish.have else {
                    return Ok(TensorStats {
                        changed: view.spec.elements(),
                        patch_bytes: self.contents().record(key)?.whole_bytes,
                    });
                };
                if have == view.entry.id {
                    return Ok(TensorStats::default());
                }
                if view.entry.patch.is_none() {
                    // What it changed from could not be read; it was stored whole.
                    return Ok(TensorStats {
                        changed: view.spec.elements(),
                        patch_bytes: self.contents().record(key)?.whole_bytes,
                    });
                }
                let from = ContentKey::new(key.class, have);
                if let Some(edge) = self.contents().sound_edge(from, key.id)? {
                    return Ok(TensorStats {
                        changed: edge.changed,
                        patch_bytes: edge.bytes,
                    });
                }
                let between = self.contents().compare(have, key, view.spec.elements())?;
                Ok(TensorStats {
                    changed: between.changed,
                    patch_bytes: between.bytes,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(VersionStats {
            elements: version.elements(),
            changed: tensors.iter().map(|t| t.changed).sum(),
            full_bytes: version.full_bytes(),
            patch_bytes: tensors.iter().map(|t| t.patch_bytes).sum(),
            new_bytes: self.growth(version)?,
            tensors,
        })
    }

    fn growth(&self, version: &Snapshot) -> Result<Option<u64>> {
        let object = || format!("growth of commit {}", version.id);
        self.database()
            .read(Table::Growth, version.id.as_bytes(), object, |bytes| {
                let mut reader = ByteReader::new("growth", bytes);
                let grown = reader.u64()?;
                reader.finish()?;
                Ok(grown)
            })
    }

    /// What the store holds, or of one repository what it holds; `store_bytes` is always the whole store's.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such repository, [`StoreError::Interrupted`] if the caller stops.
    pub fn stats(&self, repo: Option<&RepoName>, progress: &dyn Progress) -> Result<StoreStats> {
        let go_on = || match progress.cancelled() {
            true => Err(StoreError::Interrupted),
            false => Ok(()),
        };
        progress.phase("counting", None);
        let repos = match repo {
            Some(repo) => vec![repo.clone()],
            None => self.repos()?,
        };
        let mut stats = StoreStats {
            repos: repos.len() as u64,
            store_bytes: self.folder().disk_usage()?,
            ..StoreStats::default()
        };
        let mut commits = HashSet::new();
        let mut contents = HashSet::new();
        for repo in &repos {
            commits.extend(self.commits_of(repo)?);
            for branch in self.branches(repo)? {
                go_on()?;
                stats.branches += 1;
                let head = self.snapshot(branch.commit)?;
                for view in head.tensors() {
                    let key = ContentKey::new(view.spec.class, view.entry.id);
                    let route = self
                        .contents()
                        .route_from_base(key, self.contents().record(key)?)?;
                    stats.longest_chain = stats.longest_chain.max(route.steps.len() as u64);
                }
            }
        }
        stats.commits = commits.len() as u64;
        for commit in commits {
            go_on()?;
            let version = self.snapshot(commit)?;
            stats.full_bytes += version.full_bytes();
            contents.extend(self.contents_of(&version));
        }
        for &key in &contents {
            go_on()?;
            let Some(ContentRecord { origin, .. }) = self.contents().find(key)? else {
                continue;
            };
            stats.contents += 1;
            stats.base_bytes += origin.base().map_or(0, |base| base.len);
            for row in self.database().scan(Table::Edges, &key.to_bytes()) {
                let (edge_row, value) = row?;
                let (_, to) = crate::records::edge_ends(&edge_row)?;
                if contents.contains(&ContentKey::new(key.class, to)) {
                    stats.edge_bytes += crate::records::EdgeRecord::from_bytes(&value)?.bytes;
                }
            }
        }
        Ok(stats)
    }

    /// Keys of a version's tensors, and of its files, of which only large ones are contents.
    pub(crate) fn contents_of(&self, version: &Snapshot) -> Vec<ContentKey> {
        let tensors = version
            .tensors()
            .into_iter()
            .map(|t| ContentKey::new(t.spec.class, t.entry.id));
        let headers = version
            .tree
            .weight_files
            .iter()
            .map(|f| ContentKey::file(f.header));
        let files = version.files().iter().map(|f| ContentKey::file(f.id));
        tensors.chain(headers).chain(files).collect()
    }
}
