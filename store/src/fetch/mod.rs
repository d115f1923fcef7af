//! "Give me N, I hold M": per tensor the cheapest of nothing, a composed patch, or the whole content.
//!
//! An answer is a row of chunks that are made on demand: a [`Position`] says where the next one begins, and nothing is
//! kept for who asks. What a chunk holds depends on where it begins alone, so that whoever goes on from the end of one
//! gets what it would have got without a break.
//!
//! | question | module |
//! |---|---|
//! | what may someone hold? | `held` |
//! | patch or content? | `answer` |
//! | which pieces come next, and what do they cost? | `walk` |
//! | which stored sets are sent as they are? | `stored` |
//! | how is a piece composed or read? | `piece` |
//! | what goes into which chunk? | `chunk` |
//! | what would it take? | `plan` |

mod answer;
mod chunk;
mod held;
mod piece;
mod plan;
mod stored;
mod walk;

use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::Store;
use answer::Decision;
use chunk::{Batch, WholeContents};
use deltaic_format::FormatError;
use deltaic_format::fetch::{
    AnswerKind, Chunk, FetchPlan, FetchRequest, HeldContents, Position, RequestDigest,
    SPAN_ELEMENTS,
};
use deltaic_format::ids::TensorId;
use deltaic_format::object::Snapshot;
use deltaic_format::progress::Progress;
use deltaic_format::slice::SliceMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request that was understood: what is wanted, and in which order it is answered.
#[derive(Debug)]
pub struct Fetch {
    digest: RequestDigest,
    want: Arc<Snapshot>,
    /// In the order of the answer.
    wishes: Vec<Wish>,
    /// What was found out about each, since deciding may mean composing.
    decisions: Vec<Decision>,
    slices: BTreeMap<usize, SliceMap>,
}

/// Bytes that a slice takes in memory, about.
const SLICE_MEMORY: usize = 512;

/// A wished tensor.
#[derive(Debug)]
struct Wish {
    tensor: usize,
    /// What is wanted.
    key: ContentKey,
    /// What is held.
    have: Option<TensorId>,
    /// Elements of the tensor.
    elements: u64,
}

impl Wish {
    /// Whether there is nothing to send.
    fn is_granted(&self) -> bool {
        self.have == Some(self.key.id) || self.elements == 0
    }
}

impl Fetch {
    /// What tells the request from every other.
    pub fn digest(&self) -> RequestDigest {
        self.digest
    }

    /// The version that is wanted.
    pub fn want(&self) -> &Snapshot {
        &self.want
    }

    /// Bytes that it takes in memory, beside the version, about.
    pub fn memory(&self) -> u64 {
        let wishes = self.wishes.len() * (size_of::<Wish>() + size_of::<Decision>());
        let slices = self.slices.len() * SLICE_MEMORY;
        (size_of::<Self>() + wishes + slices) as u64
    }

    /// Elements of a wished tensor, or of the slice that is wanted of it.
    fn elements(&self, wish: &Wish) -> u64 {
        let slice = self.slices.get(&wish.tensor);
        slice.map_or(wish.elements, SliceMap::elements)
    }

    /// Fails unless the answer can have a chunk that begins at `at`, or ends there.
    fn check(&self, at: Position) -> Result<()> {
        let invalid = |why: &str| {
            let Position { wish, element, .. } = at;
            let what = format!("wish {wish}, element {element}, is no place in the answer: {why}");
            Err(StoreError::Invalid { what })
        };
        let number = usize::try_from(at.wish).unwrap_or(usize::MAX);
        if number > self.wishes.len() {
            return invalid("it has fewer wishes");
        }
        let Some(kind) = at.kind else {
            return match at.element {
                0 => Ok(()),
                _ => invalid("it does not say what was being sent"),
            };
        };
        let Some(wish) = self.wishes.get(number) else {
            return invalid("it ends there");
        };
        let is_start = at.element > 0 && at.element.is_multiple_of(SPAN_ELEMENTS);
        if !is_start || at.element >= self.elements(wish) {
            return invalid("nothing goes on there");
        }
        match (kind, wish.have) {
            _ if wish.is_granted() => invalid("nothing of it is sent"),
            (AnswerKind::Patches, None) => invalid("there is nothing that could be patched"),
            _ => Ok(()),
        }
    }
}

/// The wishes, which are those of `request` in its order, whose held contents are listed in it.
fn listed<'w>(request: &FetchRequest, wishes: &'w mut [Wish]) -> Vec<&'w mut Wish> {
    let mut runs = request.wishes.iter();
    let mut run = runs.next();
    let is_listed = |wish: &&mut Wish| {
        while run.is_some_and(|run| run.tensors.end <= wish.tensor) {
            run = runs.next();
        }
        run.is_some_and(|run| matches!(run.held, HeldContents::Listed(_)))
    };
    wishes.iter_mut().filter(is_listed).collect()
}

impl Store {
    /// Understand a request: read the versions that it names and put its wishes in the order of the answer.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if the repository does not have a version that it names, [`StoreError::Invalid`] if its
    /// wishes or slices do not fit the wanted one.
    pub fn open_fetch(&self, request: &FetchRequest) -> Result<Fetch> {
        self.check_fetch(request)?;
        let want = self.snapshot(request.want)?;
        let held = request.held.map(|id| self.snapshot(id)).transpose()?;
        self.open_fetch_of(request, Arc::new(want), held.as_ref())
    }

    /// Fails unless the repository that a request names has the versions that it names.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if it does not have one.
    pub fn check_fetch(&self, request: &FetchRequest) -> Result<()> {
        let versions = std::iter::once(request.want).chain(request.held);
        versions
            .into_iter()
            .try_for_each(|id| self.must_reach(&request.repo, id))
    }

    /// Understand a request whose versions were read, and [checked](Self::check_fetch), before.
    ///
    /// # Errors
    ///
    /// As [`open_fetch`](Self::open_fetch).
    pub fn open_fetch_of(
        &self,
        request: &FetchRequest,
        want: Arc<Snapshot>,
        held: Option<&Snapshot>,
    ) -> Result<Fetch> {
        if want.id != request.want || held.map(|held| held.id) != request.held {
            let what = "other versions were read than the request names".to_owned();
            return Err(StoreError::Invalid { what });
        }
        let invalid = |e: FormatError| StoreError::Invalid {
            what: e.to_string(),
        };
        let wishes = request.wishes(&want, held).map_err(invalid)?;
        let slices = request.slice_maps(&want).map_err(invalid)?;
        let views = want.tensors();
        let mut wishes: Vec<Wish> = (wishes.into_iter())
            .map(|wish| {
                let view = &views[wish.tensor];
                Wish {
                    tensor: wish.tensor,
                    key: ContentKey::new(view.spec.class, view.entry.id),
                    have: wish.have,
                    elements: view.spec.elements(),
                }
            })
            .collect();
        drop(views);
        self.believe(&request.repo, (&want, held), listed(request, &mut wishes))?;
        wishes.sort_by_key(|wish| (wish.key.class.number(), wish.tensor));
        Ok(Fetch {
            digest: request.digest(),
            want,
            decisions: wishes.iter().map(|_| Decision::default()).collect(),
            wishes,
            slices,
        })
    }

    /// The next few chunks of the answer from `at` on, at least one unless the answer ends there: a few mebibytes, or
    /// what one piece makes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Invalid`] if the answer has no such place, [`StoreError::Corrupt`] if stored data is damaged, or
    /// patches were begun and lead no further.
    pub fn chunks(&self, fetch: &Fetch, at: Position) -> Result<Vec<Chunk>> {
        fetch.check(at)?;
        let batch = Batch::make(self.contents(), fetch, at, WholeContents::Send)?;
        Ok(batch.chunks)
    }

    /// What the answer takes, as edges and bases are stored: composing mostly makes patches smaller.
    ///
    /// # Errors
    ///
    /// If stored data is damaged.
    pub fn plan(&self, fetch: &Fetch) -> Result<FetchPlan> {
        self.contents().plan(fetch)
    }

    /// The same with the exact bytes of the patches, which are composed and encoded for it.
    ///
    /// # Errors
    ///
    /// If stored data is damaged, or the caller stops.
    pub fn plan_exactly(&self, fetch: &Fetch, progress: &dyn Progress) -> Result<FetchPlan> {
        self.contents().plan_exactly(fetch, progress)
    }
}
