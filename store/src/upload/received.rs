//! All that came of an upload: the version's objects put together, and where the rest lies in the spool.

use super::deliveries::Deliveries;
use super::files::SentFiles;
use super::record::Head;
use super::refused;
use super::spool::Spool;
use crate::error::{Result, StoreError};
use deltaic_format::Version;
use deltaic_format::fetch::AnswerKind;
use deltaic_format::object::{CanonicalObject, Commit, Schema, Snapshot, Tree};
use deltaic_format::progress::Progress;
use deltaic_format::upload::ObjectKind;
use std::sync::Arc;

/// What came, in order and complete as far as it can be told without the parent.
pub(super) struct Received {
    /// The version as its maker describes it.
    pub(super) version: Snapshot,
    pub(super) deliveries: Deliveries,
    pub(super) files: SentFiles,
}

/// Canonical bytes of the objects.
#[derive(Default)]
struct Objects {
    schema: Vec<u8>,
    tree: Vec<u8>,
    commit: Vec<u8>,
}

impl Received {
    pub(super) fn read(spool: &Spool, progress: &dyn Progress) -> Result<Self> {
        let mut objects = Objects::default();
        let mut deliveries = Deliveries::default();
        let mut files = SentFiles::default();
        spool.each(|place, head, body| {
            if progress.cancelled() {
                return Err(StoreError::Interrupted);
            }
            match head {
                // The spool holds their lengths to a cap.
                Head::Object(ObjectKind::Schema) => objects.schema.extend_from_slice(body.bytes),
                Head::Object(ObjectKind::Tree) => objects.tree.extend_from_slice(body.bytes),
                Head::Object(ObjectKind::Commit) => objects.commit.extend_from_slice(body.bytes),
                Head::File { file, offset } => files.add(place, file, offset, body.len)?,
                Head::Patches(spans) => deliveries.add(place, AnswerKind::Patches, &spans)?,
                Head::Content(span) => deliveries.add(place, AnswerKind::Content, &[span])?,
            }
            Ok(())
        })?;
        let version = objects.version()?;
        deliveries.arrange(&version.schema)?;
        Ok(Self {
            version,
            deliveries,
            files,
        })
    }

    /// Whether the version is the one after `parent`.
    pub(super) fn check_place(&self, parent: Option<&Snapshot>) -> Result<()> {
        let commit = &self.version.commit;
        if !commit.parents.iter().eq(parent.map(|parent| &parent.id)) {
            let from = parent.map_or("nothing".to_owned(), |parent| parent.id.short());
            return Err(refused(format!(
                "the commit does not follow {from}, from which everything that was sent starts"
            )));
        }
        let number = parent.map_or(Version(0), |parent| parent.commit.version.next());
        if commit.version != number {
            return Err(refused(format!(
                "the commit has number {}, where {number} comes next",
                commit.version
            )));
        }
        Ok(())
    }
}

impl Objects {
    /// Commit, tree and schema, if they belong together.
    fn version(self) -> Result<Snapshot> {
        for (what, bytes) in [
            ("schema", &self.schema),
            ("tree", &self.tree),
            ("commit", &self.commit),
        ] {
            if bytes.is_empty() {
                return Err(refused(format!("nothing of the {what} came")));
            }
        }
        let commit = Commit::from_bytes(&self.commit).map_err(refused)?;
        if Tree::id_of(&self.tree) != commit.tree {
            return Err(refused("the tree is not the one that the commit names"));
        }
        let tree = Tree::from_bytes(&self.tree).map_err(refused)?;
        if Schema::id_of(&self.schema) != tree.schema {
            return Err(refused("the schema is not the one that the tree names"));
        }
        let schema = Schema::from_bytes(&self.schema).map_err(refused)?;
        let mut sizes = (tree.files.iter().map(|file| file.size))
            .chain(tree.weight_files.iter().map(|file| file.data_offset()))
            .chain(schema.files.iter().map(|file| file.data_len()));
        // So that sums of sizes can be taken from here on.
        let sum = sizes.try_fold(0u64, u64::checked_add);
        if sum.is_none() {
            return Err(refused("the files are longer than any disk"));
        }
        let id = Commit::id_of(&self.commit);
        let version = Snapshot::new(id, commit, tree, Arc::new(schema)).map_err(refused)?;
        // What is published is encoded anew.
        if version.commit.id() != id {
            return Err(refused("the commit is not in canonical form"));
        }
        Ok(version)
    }
}
