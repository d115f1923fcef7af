//! Which contents someone may say to hold: those of versions that are near, in the same repository. A patch from any other
//! would tell what that one holds to someone who only knows its hash.

use super::Wish;
use crate::database::Table;
use crate::error::Result;
use crate::records::ContentKey;
use crate::store::Store;
use deltaic_format::ids::SchemaId;
use deltaic_format::name::RepoName;
use deltaic_format::object::{Schema, Snapshot, Tree};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Versions whose contents are looked at beside those that a request names: ancestors of the wanted one,
const MAX_ANCESTORS: usize = 48;
/// and branch heads.
const MAX_HEADS: usize = 16;

/// Contents that were listed as held and not found yet, each with its elements.
struct Sought {
    keys: HashSet<(ContentKey, u64)>,
    schemas: HashMap<SchemaId, Arc<Schema>>,
}

impl Sought {
    /// Strike off what a version has.
    fn strike(&mut self, tree: &Tree, schema: &Schema) {
        for (spec, entry) in schema.tensors().zip(&tree.tensors) {
            (self.keys).remove(&(ContentKey::new(spec.class, entry.id), spec.elements()));
        }
    }
}

impl Store {
    /// Count as held only those of the `listed` wishes whose contents are in a version that the repository has near by.
    pub(super) fn believe(
        &self,
        repo: &RepoName,
        (want, held): (&Snapshot, Option<&Snapshot>),
        listed: Vec<&mut Wish>,
    ) -> Result<()> {
        let key_of = |wish: &Wish| {
            let key = |id| (ContentKey::new(wish.key.class, id), wish.elements);
            wish.have.map(key)
        };
        let mut sought = Sought {
            keys: listed.iter().filter_map(|wish| key_of(wish)).collect(),
            schemas: HashMap::new(),
        };
        for version in std::iter::once(want).chain(held) {
            let schema = Arc::clone(&version.schema);
            sought.strike(&version.tree, &schema);
            sought.schemas.insert(version.tree.schema, schema);
        }
        self.seek_near(repo, want, &mut sought)?;
        for wish in listed {
            if key_of(wish).is_some_and(|key| sought.keys.contains(&key)) {
                wish.have = None;
            }
        }
        Ok(())
    }

    fn seek_near(&self, repo: &RepoName, want: &Snapshot, sought: &mut Sought) -> Result<()> {
        if sought.keys.is_empty() {
            return Ok(());
        }
        let ancestors = self.history(want.id).skip(1).take(MAX_ANCESTORS);
        let branches = match self.branches(repo) {
            Ok(branches) => branches,
            // All were deleted.
            Err(crate::StoreError::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let heads = branches.into_iter().map(|branch| branch.commit);
        let heads = heads.filter(|head| *head != want.id).take(MAX_HEADS);
        let heads = heads.map(|id| Ok((id, self.read_commit(id)?)));
        for near in ancestors.chain(heads) {
            // One that cannot be read is no reason not to send the wanted one.
            let Ok((_, commit)) = near else {
                continue;
            };
            let Ok(tree) = self.read_object::<Tree>(Table::Trees, commit.tree.as_bytes()) else {
                continue;
            };
            let Some(schema) = self.schema_of(&tree, sought) else {
                continue;
            };
            sought.strike(&tree, &schema);
            if sought.keys.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn schema_of(&self, tree: &Tree, sought: &mut Sought) -> Option<Arc<Schema>> {
        if let Some(schema) = sought.schemas.get(&tree.schema) {
            return Some(Arc::clone(schema));
        }
        let read = self.read_object::<Schema>(Table::Schemas, tree.schema.as_bytes());
        let schema = Arc::new(read.ok()?);
        (sought.schemas).insert(tree.schema, Arc::clone(&schema));
        Some(schema)
    }
}
