//! Versions that servers are known to have: one that does not know such a version lags behind another.

use super::status::{Failure, Kind};
use crate::error::ClientError;
use deltaic_format::ids::CommitId;
use deltaic_format::refusal::Refusal;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The most of them that are remembered.
const MOST: usize = 1 << 12;

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// What a server need not have.
    Names,
    /// A version, or something of it.
    Version(CommitId),
    /// A version that a server must have had, for someone goes on from there.
    Known(CommitId),
    /// The rest of an answer of which something came.
    Rest,
    /// To take an upload after that version; one that finds no room does not begin elsewhere.
    Upload(Option<CommitId>),
}

impl About {
    /// Whether the refusal is that of a server which may lack what another one has.
    fn lacks(self, refusal: &Refusal) -> bool {
        match refusal {
            Refusal::Corrupt { .. } => !matches!(self, Self::Upload(_)),
            Refusal::NotFound { .. } => self != Self::Names,
            // It cannot go on where another one was.
            Refusal::Invalid { .. } => self == Self::Rest,
            _ => false,
        }
    }
}

/// Versions that came from a server not long ago.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    ids: HashSet<CommitId>,
    /// Oldest first.
    order: VecDeque<CommitId>,
}

impl Known {
    /// A server has it.
    pub(super) fn add(&self, id: CommitId) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.ids.insert(id) {
            recent.order.push_back(id);
        }
        if recent.order.len() > MOST
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.ids.remove(&oldest);
        }
    }

    fn has(&self, id: CommitId) -> bool {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.ids.contains(&id)
    }

    /// The failure of one of several servers, as that of one that lacks what another one may have, if it is such a failure.
    pub(super) fn judge(&self, server: usize, failure: &mut Failure, about: About) {
        let ClientError::Refused(refusal) = &failure.error else {
            return;
        };
        if about.lacks(refusal) {
            let known = match about {
                About::Names | About::Upload(None) => false,
                About::Version(id) | About::Upload(Some(id)) => {
                    self.has(id) && !names_another(refusal, id)
                }
                About::Known(_) | About::Rest => true,
            };
            failure.kind = Kind::Lagging { server, known };
        }
    }
}

/// Whether it is another version that is not found, such as the one that the asker holds, or what is wrong is something else.
fn names_another(refusal: &Refusal, id: CommitId) -> bool {
    match refusal {
        Refusal::NotFound { kind, name } => {
            kind == "commit" && *name != id.to_string() && *name != id.short()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(known: &Known, refusal: Refusal, about: About) -> Kind {
        let mut failure = Failure::refused(refusal);
        known.judge(1, &mut failure, about);
        failure.kind
    }

    #[test]
    fn a_server_lags_behind_if_it_lacks_what_another_one_had() {
        let known = Known::default();
        let (id, held) = (CommitId([1; 32]), CommitId([2; 32]));
        let lacks = |id: CommitId| Refusal::NotFound {
            kind: "commit".to_owned(),
            name: id.short(),
        };
        let repo = || Refusal::NotFound {
            kind: "repository".to_owned(),
            name: "acme/policy".to_owned(),
        };
        let lagging = |known| Kind::Lagging { server: 1, known };
        let version = About::Version(id);
        assert_eq!(judged(&known, lacks(id), version), lagging(false));
        known.add(id);
        assert_eq!(judged(&known, lacks(id), version), lagging(true));
        assert_eq!(judged(&known, repo(), version), lagging(true));
        assert_eq!(judged(&known, lacks(held), version), lagging(false));
        assert_eq!(judged(&known, repo(), About::Names), Kind::Final);
        assert_eq!(judged(&known, lacks(held), About::Rest), lagging(true));
        assert_eq!(
            judged(&known, lacks(held), About::Known(held)),
            lagging(true)
        );
    }

    #[test]
    fn what_is_known_is_bounded() {
        let known = Known::default();
        let id = |index: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&index.to_le_bytes());
            CommitId(bytes)
        };
        for index in 0..=MOST {
            known.add(id(index));
            known.add(id(index));
        }
        assert!(!known.has(id(0)));
        assert!((1..=MOST).all(|index| known.has(id(index))));
    }
}
