//! Gathering the changes of many tensors' pieces into patch sets of bounded size.

use super::{EncodedPatchSet, encode};
use crate::dtype::ElementClass;
use crate::error::Result;
use crate::patch::Changes;

/// A set is closed once it holds this many elements,
const MAX_ELEMENTS: u64 = 1 << 24;
/// or this many changes, so that dense patches are bounded too,
const MAX_CHANGES: u64 = 1 << 20;
/// or this many members, so that one of them is found without reading a long list.
const MAX_MEMBERS: usize = 4096;

/// Members of one class that go into the next patch set; each carries what its owner needs later.
#[derive(Debug)]
pub struct SetBuilder<M> {
    class: ElementClass,
    members: Vec<(u32, Changes, M)>,
    elements: u64,
    changes: u64,
}

/// A closed set, encoded.
#[derive(Debug)]
pub struct ClosedSet<M> {
    /// Its bytes.
    pub encoded: EncodedPatchSet,
    /// Its members' changes, and what they carry.
    pub members: Vec<(Changes, M)>,
}

impl<M> SetBuilder<M> {
    /// An empty set of `class`.
    pub fn new(class: ElementClass) -> Self {
        Self {
            class,
            members: Vec::new(),
            elements: 0,
            changes: 0,
        }
    }

    /// Whether a member of `elements` elements would make the set too large, so that it is to be closed first.
    pub fn is_full_for(&self, elements: u32) -> bool {
        !self.members.is_empty()
            && (self.elements + u64::from(elements) > MAX_ELEMENTS
                || self.changes >= MAX_CHANGES
                || self.members.len() >= MAX_MEMBERS)
    }

    /// Add the changes of a piece of `elements` elements.
    pub fn push(&mut self, elements: u32, changes: Changes, owner: M) {
        self.elements += u64::from(elements);
        self.changes += changes.len();
        self.members.push((elements, changes, owner));
    }

    /// Encode what was gathered, and begin anew; `None` if there is nothing.
    ///
    /// # Errors
    ///
    /// As [`encode`].
    pub fn close(&mut self) -> Result<Option<ClosedSet<M>>> {
        let members = std::mem::take(&mut self.members);
        (self.elements, self.changes) = (0, 0);
        if members.is_empty() {
            return Ok(None);
        }
        let to_encode: Vec<(u32, &Changes)> = members.iter().map(|m| (m.0, &m.1)).collect();
        let encoded = encode(self.class, &to_encode)?;
        let members = members
            .into_iter()
            .map(|(_, changes, owner)| (changes, owner))
            .collect();
        Ok(Some(ClosedSet { encoded, members }))
    }
}
