//! What a pull is asked for, and what it answers.

use super::prepare::Tally;
use super::state::Labels;
use deltaic_format::Version;
use deltaic_format::name::TreePath;
use std::fmt;
use std::path::PathBuf;

/// How a pull proves that the replica holds the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Proof {
    /// By the elements that it changes: patches fit what they find, and everything written reads back.
    #[default]
    Touched,
    /// By scanning every tensor, before and after: stale and silently corrupted ones are found too.
    Full,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Touched => "touched",
            Self::Full => "full",
        })
    }
}

/// How far a pull trusts whoever sends patches. Whole contents always have to have the hash that the commit names, and every
/// patch has to fit the content that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Patches over several versions are taken as the server composed them.
    #[default]
    Server,
    /// Each version's own patches are fetched, compared with the ids that its commit lists, and composed here.
    Edges,
    /// The whole content of every patched tensor is hashed too, before anything is written.
    Content,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Edges => "edges",
            Self::Content => "content",
        })
    }
}

/// What a pull is to do besides getting a version.
#[derive(Debug, Clone, Default)]
pub struct PullOptions {
    /// How to prove it.
    pub proof: Proof,
    /// Whom to trust.
    pub trust: Trust,
    /// Check everything that is held, and fetch anew what others changed instead of failing.
    pub repair: bool,
    /// Checkpoints on this machine whose contents are reused where their hash is right.
    pub seeds: Vec<PathBuf>,
    /// The file or folder of the tree to hold; `None` for everything.
    pub path: Option<TreePath>,
    /// The repository as the user named it, kept with the state.
    pub repo: String,
    /// The revision as the user named it, likewise.
    pub revision: String,
}

/// What a pull did.
#[derive(Debug, Clone, PartialEq)]
pub struct PullOutcome {
    /// The version that the replica held; `None` if it held none.
    pub from: Option<Version>,
    /// The version that it holds.
    pub to: Version,
    /// Bytes that the source sent.
    pub received_bytes: u64,
    /// Elements changed by patches, and those of tensors replaced whole.
    pub changed: u64,
    /// Tensors changed by a patch.
    pub patched: u64,
    /// Tensors that the source sent whole.
    pub whole: u64,
    /// Tensors that were right already.
    pub unchanged: u64,
    /// Tensors copied from a seed, or from another place in the replica.
    pub seeded: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// How it was proven.
    pub proof: Proof,
    /// Whom it trusted.
    pub trust: Trust,
    /// What others had changed and was fetched anew.
    pub repaired: Vec<String>,
    /// Seeds that could not be used, with the reason.
    pub seeds_skipped: Vec<String>,
}

impl PullOptions {
    pub(super) fn labels(&self) -> Labels {
        Labels {
            repo: self.repo.clone(),
            revision: self.revision.clone(),
            path: self.path.clone(),
        }
    }
}

impl PullOutcome {
    /// That of a pull which did what `tally` says, in an instant and without incidents.
    pub(super) fn new(
        (from, to): (Option<Version>, Version),
        options: &PullOptions,
        tally: &Tally,
    ) -> Self {
        Self {
            from,
            to,
            received_bytes: tally.received_bytes,
            changed: tally.changed,
            patched: tally.patched,
            whole: tally.whole,
            unchanged: tally.unchanged,
            seeded: tally.seeded,
            seconds: 0.0,
            proof: options.proof,
            trust: options.trust,
            repaired: Vec::new(),
            seeds_skipped: Vec::new(),
        }
    }
}
