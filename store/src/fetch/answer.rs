//! How one wished tensor is answered.

use super::piece::{SliceFeed, first_piece, piece_after};
use super::{Fetch, Wish};
use crate::contents::Contents;
use crate::error::{Result, StoreError};
use crate::graph::Route;
use deltaic_format::fetch::{AnswerKind, Position};
use deltaic_format::patch::{Changes, piece_len};
use deltaic_format::patch_set;
use deltaic_format::slice::SliceMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};

/// Tensors of as few elements are decided about many at a time.
const SMALL: u64 = 1 << 16;

/// Changes that are kept of what deciding composed: of a small tensor,
const KEPT_OF_SMALL: u64 = 1 << 12;
/// and of another, which is alone.
const KEPT: u64 = 1 << 22;

/// What was found out about a wish, for as long as the fetch is open.
#[derive(Debug, Default)]
pub(super) struct Decision(AtomicU8);

impl Decision {
    const PATCHES: u8 = 1;
    const CONTENT: u8 = 2;

    fn get(&self) -> Option<AnswerKind> {
        match self.0.load(Ordering::Relaxed) {
            Self::PATCHES => Some(AnswerKind::Patches),
            Self::CONTENT => Some(AnswerKind::Content),
            _ => None,
        }
    }

    fn set(&self, kind: AnswerKind) {
        let kind = match kind {
            AnswerKind::Patches => Self::PATCHES,
            AnswerKind::Content => Self::CONTENT,
        };
        self.0.store(kind, Ordering::Relaxed);
    }
}

/// How a tensor is answered.
pub(super) enum Answer {
    Patches(Route),
    Content,
    /// Only composing tells whether the patch along this route is smaller than the content.
    Open(Route),
}

/// A wished tensor that is not held, with its answer.
pub(super) struct Job<'f> {
    pub(super) number: usize,
    pub(super) wish: &'f Wish,
    pub(super) slice: Option<&'f SliceMap>,
    pub(super) answer: Answer,
    /// What the content takes, or the slice's share of it.
    pub(super) whole: u64,
    /// Where sending begins.
    pub(super) start: u64,
    /// Composed pieces, the first ones, that were made to decide.
    pub(super) ready: VecDeque<(u64, Changes)>,
}

impl Job<'_> {
    /// Elements of the tensor or of its slice.
    pub(super) fn elements(&self) -> u64 {
        self.slice.map_or(self.wish.elements, SliceMap::elements)
    }

    /// The edges to compose, if patches are sent.
    pub(super) fn route(&self) -> Option<&Route> {
        match &self.answer {
            Answer::Patches(route) | Answer::Open(route) => Some(route),
            Answer::Content => None,
        }
    }

    /// The slice's share of what the whole tensor takes.
    pub(super) fn share(&self, bytes: u64) -> u64 {
        share(self.wish, self.slice, bytes)
    }

    /// The place after element `end`.
    pub(super) fn position_after(&self, end: u64, kind: AnswerKind) -> Position {
        match end < self.elements() {
            true => Position {
                wish: self.number as u64,
                element: end,
                kind: Some(kind),
            },
            false => Position {
                wish: self.number as u64 + 1,
                ..Position::default()
            },
        }
    }

    /// The first piece of the tensor that what is sent comes from.
    pub(super) fn first_piece(&self) -> u64 {
        first_piece(self.slice, self.start)
    }

    /// The next one after `piece`.
    pub(super) fn piece_after(&self, piece: u64) -> Option<u64> {
        piece_after(self.slice, self.wish.elements, piece)
    }
}

fn share(wish: &Wish, slice: Option<&SliceMap>, bytes: u64) -> u64 {
    let Some(slice) = slice else {
        return bytes;
    };
    let share = u128::from(bytes) * u128::from(slice.elements());
    (share / u128::from(wish.elements.max(1))) as u64
}

impl Contents {
    /// How wish number `number` is answered, which is not granted. Small tensors are decided about at once.
    pub(super) fn answer<'f>(&self, fetch: &'f Fetch, number: usize) -> Result<Job<'f>> {
        let wish = &fetch.wishes[number];
        let slice = fetch.slices.get(&wish.tensor);
        let whole = self.record(wish.key)?.whole_bytes;
        let share = share(wish, slice, whole);
        let decision = &fetch.decisions[number];
        let route = match (wish.have, decision.get()) {
            (None, _) | (_, Some(AnswerKind::Content)) => None,
            (Some(have), _) => self.route_between(have, wish.key, whole)?,
        };
        let answer = match route {
            None => Answer::Content,
            Some(route) if decision.get().is_some() => Answer::Patches(route),
            // Far below the whole, the patch is smaller whatever composing does to it. What of the route lies in
            // a slice is at most all of it.
            Some(route) if slice.is_none() && route.cost <= whole / 2 => Answer::Patches(route),
            Some(route) if slice.is_some() && route.cost <= share => Answer::Patches(route),
            Some(route) => Answer::Open(route),
        };
        let mut job = Job {
            number,
            wish,
            slice,
            answer,
            whole: share,
            start: 0,
            ready: VecDeque::new(),
        };
        if wish.elements <= SMALL {
            self.decide(&mut job, decision, KEPT_OF_SMALL)?;
        }
        Ok(job)
    }

    /// How the wish goes on of which a part was sent.
    pub(super) fn go_on<'f>(
        &self,
        fetch: &'f Fetch,
        number: usize,
        (start, kind): (u64, AnswerKind),
    ) -> Result<Job<'f>> {
        let wish = &fetch.wishes[number];
        let answer = match (kind, wish.have) {
            (AnswerKind::Patches, Some(have)) => {
                let route = self.route_between(have, wish.key, u64::MAX)?;
                Answer::Patches(route.ok_or_else(|| {
                    let why = format!("no patch leads to it any more from the held {have}");
                    StoreError::corrupt(wish.key, why)
                })?)
            }
            _ => Answer::Content,
        };
        Ok(Job {
            number,
            wish,
            slice: fetch.slices.get(&wish.tensor),
            answer,
            whole: self.record(wish.key)?.whole_bytes,
            start,
            ready: VecDeque::new(),
        })
    }

    /// Find out whether the patch is smaller than the content, if that is open.
    pub(super) fn settle(&self, fetch: &Fetch, job: &mut Job<'_>) -> Result<()> {
        self.decide(job, &fetch.decisions[job.number], KEPT)
    }

    fn decide(&self, job: &mut Job<'_>, decision: &Decision, keep: u64) -> Result<()> {
        let route = match std::mem::replace(&mut job.answer, Answer::Content) {
            Answer::Open(route) => route,
            decided => {
                job.answer = decided;
                return Ok(());
            }
        };
        let mut ready = VecDeque::new();
        if self.composed_is_smaller(job, &route, keep, &mut ready)? {
            job.answer = Answer::Patches(route);
            job.ready = ready;
            decision.set(AnswerKind::Patches);
        } else {
            decision.set(AnswerKind::Content);
        }
        Ok(())
    }

    /// Whether the composed patch takes less than the content; its first pieces are kept, up to `keep` changes.
    fn composed_is_smaller(
        &self,
        job: &Job<'_>,
        route: &Route,
        keep: u64,
        ready: &mut VecDeque<(u64, Changes)>,
    ) -> Result<bool> {
        // It travels in a set whose header many share.
        let bytes_of = |elements: u64, changes: &Changes| -> Result<u64> {
            let set = patch_set::encode(job.wish.key.class, &[(elements as u32, changes)])?;
            Ok(set.bytes.len() as u64 - set.overhead)
        };
        let mut feed = job.slice.map(|slice| SliceFeed::new(slice, 0));
        let (mut bytes, mut kept) = (0, 0);
        let mut next = Some(job.first_piece());
        while let Some(piece) = next {
            let changes = self.compose_piece(job.wish.key, &route.steps, piece)?;
            match &mut feed {
                None => bytes += bytes_of(piece_len(job.wish.elements, piece), &changes)?,
                Some(feed) => feed.take(piece, &changes, &mut |span, changes| {
                    bytes += bytes_of(span.end - span.start, &changes)?;
                    Ok(())
                })?,
            }
            if bytes >= job.whole {
                return Ok(false);
            }
            kept += changes.len();
            if kept <= keep {
                ready.push_back((piece, changes));
            }
            next = job.piece_after(piece);
        }
        Ok(true)
    }
}
