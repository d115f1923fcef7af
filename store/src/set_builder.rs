//! Gathers the changes of many tensors' pieces into patch sets of bounded size.

use deltaic_format::patch::Changes;
use deltaic_format::patch_set::{self, EncodedPatchSet, MAX_ENCODED_ELEMENTS};
use deltaic_format::{ElementClass, FormatError};

/// A set is closed once it holds this many changes, so that dense patches are bounded too,
const MAX_CHANGES: u64 = 1 << 20;
/// or this many members, so that one of them is found without reading a long list.
const MAX_MEMBERS: usize = 4096;

/// Members of one class that go into the next patch set; each carries what its owner needs later.
#[derive(Debug)]
pub(crate) struct SetBuilder<M> {
    class: ElementClass,
    members: Vec<(u32, Changes, M)>,
    elements: u64,
    changes: u64,
}

/// A closed set.
pub(crate) struct ClosedSet<M> {
    pub(crate) encoded: EncodedPatchSet,
    pub(crate) members: Vec<(Changes, M)>,
}

impl<M> SetBuilder<M> {
    pub(crate) fn new(class: ElementClass) -> Self {
        Self {
            class,
            members: Vec::new(),
            elements: 0,
            changes: 0,
        }
    }

    /// Whether a member of `elements` elements would make the set too large, so that it is to be closed first.
    pub(crate) fn is_full_for(&self, elements: u32) -> bool {
        !self.members.is_empty()
            && (self.elements + u64::from(elements) > MAX_ENCODED_ELEMENTS
                || self.changes >= MAX_CHANGES
                || self.members.len() >= MAX_MEMBERS)
    }

    pub(crate) fn push(&mut self, elements: u32, changes: Changes, owner: M) {
        self.elements += u64::from(elements);
        self.changes += changes.len();
        self.members.push((elements, changes, owner));
    }

    /// Encode what was gathered; `None` if there is nothing.
    pub(crate) fn close(&mut self) -> Result<Option<ClosedSet<M>>, FormatError> {
        let members = std::mem::take(&mut self.members);
        (self.elements, self.changes) = (0, 0);
        if members.is_empty() {
            return Ok(None);
        }
        let to_encode: Vec<(u32, &Changes)> = members.iter().map(|m| (m.0, &m.1)).collect();
        let encoded = patch_set::encode(self.class, &to_encode)?;
        let members = members
            .into_iter()
            .map(|(_, changes, owner)| (changes, owner))
            .collect();
        Ok(Some(ClosedSet { encoded, members }))
    }
}
