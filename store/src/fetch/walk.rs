//! Walking through the wishes: which pieces come next, in windows of bounded work.

use super::Fetch;
use super::answer::{Answer, Job};
use super::chunk::span_of;
use super::piece::piece_end;
use super::stored::StoredSet;
use crate::contents::Contents;
use crate::error::Result;
use crate::graph::{Route, Step};
use bytes::Bytes;
use deltaic_format::ElementClass;
use deltaic_format::fetch::{Position, Span};
use deltaic_format::patch::{Changes, PIECE_ELEMENTS, piece_len};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// Wishes that are looked at ahead: few at first, since what is not used is looked up again, and then ever more,
const FIRST_RUN: usize = 8;
/// up to so many, so that the routes held are bounded.
const LONGEST_RUN: usize = 1024;

/// Pieces of a window at most.
const MAX_WINDOW: usize = 1024;

/// What a window may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Bytes, as stored: one piece it has in any case.
    pub(super) bytes: u64,
    /// Elements of patched pieces: the window ends with the piece that reaches them.
    pub(super) elements: u64,
}

/// One piece of the work.
pub(super) struct Unit<'f> {
    pub(super) job: Arc<Job<'f>>,
    pub(super) what: What,
}

pub(super) enum What {
    /// The changes of this piece of the tensor, which may have been composed already.
    Changes(u64, Option<Changes>),
    /// The content from this element of the tensor, or slice, to the end of the piece it lies in.
    Content(u64),
    /// A stored set, and the pieces that it answers, of which the unit's job has the last.
    Stored(Bytes, Vec<Span>),
}

impl Unit<'_> {
    pub(super) fn class(&self) -> ElementClass {
        self.job.wish.key.class
    }

    /// Whether it is changes that go into a set with others.
    pub(super) fn is_changes(&self) -> bool {
        matches!(self.what, What::Changes(..))
    }

    /// Whether there is more to it than reading what is stored, as far as can be told.
    pub(super) fn is_work(&self) -> bool {
        !self.is_stored()
    }

    fn is_content(&self) -> bool {
        matches!(self.what, What::Content(_))
    }

    fn is_stored(&self) -> bool {
        matches!(self.what, What::Stored(..))
    }
}

/// A job on its way, and what of it comes next.
struct Current<'f> {
    job: Arc<Job<'f>>,
    ready: VecDeque<(u64, Changes)>,
    next: Place,
}

enum Place {
    Piece(u64),
    Element(u64),
}

/// Where a walk through the wishes of a fetch stands.
pub(super) struct Walk<'s, 'f> {
    contents: &'s Contents,
    fetch: &'f Fetch,
    /// Number of the next wish that was not looked at.
    next: usize,
    run: usize,
    ahead: VecDeque<Job<'f>>,
    current: Option<Current<'f>>,
    /// Wishes that were answered, and bytes of edges and bases behind all units handed out.
    pub(super) answered: usize,
    pub(super) work: u64,
}

impl<'s, 'f> Walk<'s, 'f> {
    /// From `at` on, which was checked.
    pub(super) fn new(contents: &'s Contents, fetch: &'f Fetch, at: Position) -> Result<Self> {
        let number = at.wish as usize;
        let mut walk = Self {
            contents,
            fetch,
            next: number,
            run: FIRST_RUN,
            ahead: VecDeque::new(),
            current: None,
            answered: 0,
            work: 0,
        };
        if let Some(kind) = at.kind {
            let job = contents.go_on(fetch, number, (at.element, kind))?;
            walk.ahead.push_back(job);
            walk.next += 1;
        }
        Ok(walk)
    }

    /// The next pieces, all of one class and all patches or all contents; none at the end.
    pub(super) fn window(&mut self, room: Room) -> Result<Vec<Unit<'f>>> {
        let mut window: Vec<Unit<'f>> = Vec::new();
        let (mut bytes, mut elements) = (0u64, 0u64);
        while window.len() < MAX_WINDOW && elements < room.elements {
            if !self.advance(window.is_empty())? {
                break;
            }
            let stored = self.stored_set()?;
            if (window.first()).is_some_and(|first| first.is_stored() != stored.is_some()) {
                break;
            }
            if let Some(set) = stored {
                let len = set.bytes.len() as u64;
                if !window.is_empty() && bytes.saturating_add(len) > room.bytes {
                    break;
                }
                bytes = bytes.saturating_add(len);
                elements += set.elements;
                window.extend(self.take_stored(set)?);
                continue;
            }
            let Some(current) = &mut self.current else {
                break;
            };
            let fits = window.first().is_none_or(|first| {
                let is_content = matches!(current.next, Place::Element(_));
                (first.class(), first.is_content()) == (current.job.wish.key.class, is_content)
            });
            let (cost, len) = current.cost();
            if !fits || (!window.is_empty() && bytes.saturating_add(cost) > room.bytes) {
                break;
            }
            bytes = bytes.saturating_add(cost);
            elements += len;
            let (unit, is_last) = current.take();
            window.push(unit);
            if is_last {
                self.current = None;
            }
        }
        self.work = self.work.saturating_add(bytes);
        Ok(window)
    }

    /// The pieces that a stored set answers, as one unit.
    fn take_stored(&mut self, set: StoredSet) -> Result<Option<Unit<'f>>> {
        let mut spans = Vec::with_capacity(set.members);
        let mut last = None;
        while spans.len() < set.members && self.advance(false)? {
            let Some(current) = &mut self.current else {
                break;
            };
            let (unit, is_last) = current.take();
            if let What::Changes(piece, _) = unit.what {
                let first = piece * PIECE_ELEMENTS;
                spans.push(span_of(
                    &unit.job,
                    &(first..piece_end(first, unit.job.elements())),
                ));
            }
            last = Some(unit.job);
            if is_last {
                self.current = None;
            }
        }
        Ok(last.map(|job| Unit {
            job,
            what: What::Stored(set.bytes, spans),
        }))
    }

    pub(super) fn contents(&self) -> &'s Contents {
        self.contents
    }

    /// The piece whose changes come next, if it is changes that do.
    pub(super) fn next_piece(&self) -> Option<(&Job<'f>, u64)> {
        match self.current.as_ref()? {
            Current {
                job,
                next: Place::Piece(piece),
                ..
            } => Some((job, *piece)),
            _ => None,
        }
    }

    /// The job that comes `ahead` jobs after the current one.
    pub(super) fn job(&mut self, ahead: usize) -> Result<Option<&Job<'f>>> {
        let Some(after) = ahead.checked_sub(1) else {
            return Ok(self.current.as_ref().map(|current| &*current.job));
        };
        while self.ahead.len() <= after && self.next < self.fetch.wishes.len() {
            self.look_ahead()?;
        }
        Ok(self.ahead.get(after))
    }

    /// Have a current job, unless there is none; one that only composing decides about is left unless it `may_compose`.
    fn advance(&mut self, may_compose: bool) -> Result<bool> {
        if self.current.is_some() {
            return Ok(true);
        }
        if self.ahead.is_empty() {
            self.look_ahead()?;
        }
        let Some(mut job) = self.ahead.pop_front() else {
            return Ok(false);
        };
        if matches!(job.answer, Answer::Open(_)) {
            if !may_compose {
                self.ahead.push_front(job);
                return Ok(false);
            }
            self.contents.settle(self.fetch, &mut job)?;
        }
        self.answered += 1;
        let ready = std::mem::take(&mut job.ready);
        let next = match job.answer {
            Answer::Content => Place::Element(job.start),
            _ => Place::Piece(job.first_piece()),
        };
        let job = Arc::new(job);
        self.current = Some(Current { job, ready, next });
        Ok(true)
    }

    fn look_ahead(&mut self) -> Result<()> {
        let wishes = &self.fetch.wishes;
        let mut run = Vec::with_capacity(self.run);
        while run.len() < self.run && self.next < wishes.len() {
            if !wishes[self.next].is_granted() {
                run.push(self.next);
            }
            self.next += 1;
        }
        self.run = (2 * self.run).min(LONGEST_RUN);
        let (contents, fetch) = (self.contents, self.fetch);
        let jobs: Result<Vec<Job<'f>>> = (run.into_par_iter())
            .map(|number| contents.answer(fetch, number))
            .collect();
        self.ahead.extend(jobs?);
        Ok(())
    }
}

impl<'f> Current<'f> {
    /// Bytes behind what comes next, about, and how many elements of patches it is.
    fn cost(&self) -> (u64, u64) {
        match (&self.next, &self.job.answer) {
            (&Place::Piece(piece), Answer::Patches(route) | Answer::Open(route)) => (
                piece_cost(route, piece),
                piece_len(self.job.wish.elements, piece),
            ),
            (&Place::Element(first), _) => {
                let len = piece_end(first, self.job.elements()) - first;
                let share = u128::from(self.job.whole) * u128::from(len);
                let all = u128::from(self.job.elements().max(1));
                ((share / all) as u64, 0)
            }
            (Place::Piece(_), Answer::Content) => (0, 0),
        }
    }

    /// What comes next, and whether it is the job's last.
    fn take(&mut self) -> (Unit<'f>, bool) {
        let job = Arc::clone(&self.job);
        let (what, next) = match self.next {
            Place::Piece(piece) => {
                let is_ready = (self.ready.front()).is_some_and(|(ready, _)| *ready == piece);
                let ready = is_ready.then(|| self.ready.pop_front()).flatten();
                let what = What::Changes(piece, ready.map(|(_, changes)| changes));
                (what, job.piece_after(piece).map(Place::Piece))
            }
            Place::Element(first) => {
                let end = piece_end(first, job.elements());
                let next = (end < job.elements()).then_some(Place::Element(end));
                (What::Content(first), next)
            }
        };
        let is_last = next.is_none();
        if let Some(next) = next {
            self.next = next;
        }
        (Unit { job, what }, is_last)
    }
}

/// Bytes of a route's edges that lie in a piece, about.
fn piece_cost(route: &Route, piece: u64) -> u64 {
    let of_step = |step: &Step| {
        let found = step.edge.piece(piece);
        found.map_or(0, |_| step.edge.bytes / step.edge.pieces.len() as u64)
    };
    route.steps.iter().map(of_step).fold(0, u64::saturating_add)
}
