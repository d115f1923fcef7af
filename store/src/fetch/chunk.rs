//! What goes into which chunk.
//!
//! A set of patches begins with the first piece after a chunk and takes whole pieces until it is nearly full, or the next
//! piece is of another class, comes as content, or begins a stored set that is sent as it is. A dense piece has sets of its own, each of a few of its spans. So where
//! a chunk ends follows from where it begins.

use super::Fetch;
use super::answer::Job;
use super::piece::{EncodedSpan, SliceFeed};
use super::walk::{Room, Unit, Walk, What};
use crate::contents::Contents;
use crate::error::Result;
use bytes::Bytes;
use deltaic_format::ElementClass;
use deltaic_format::fetch::{
    AnswerKind, Chunk, DELIVERY_BYTES, Delivery, Position, SPAN_ELEMENTS, Span,
};
use deltaic_format::patch::{BLOCK_ELEMENTS, ChangedBlock, Changes, PIECE_ELEMENTS};
use deltaic_format::patch_set;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// A batch is enough with so many bytes,
const BATCH_BYTES: u64 = 2 * DELIVERY_BYTES;
/// or with a chunk behind which there are so many bytes of edges and bases,
const BATCH_WORK: u64 = 64 << 20;
/// or so many tensors.
const BATCH_TENSORS: usize = 4096;
/// With so many it ends, even if a few pieces have to be composed again for the next.
const MOST_BYTES: u64 = 4 * BATCH_BYTES;

/// A piece whose patch takes more than this has sets of its own.
const DENSE_BYTES: u64 = DELIVERY_BYTES / 4;
/// A set that takes as much, or more, is closed.
const FULL_BYTES: u64 = DELIVERY_BYTES - DENSE_BYTES;
/// The same for its changes,
const FULL_CHANGES: u64 = 1 << 20;
/// its members,
const FULL_MEMBERS: usize = 4096;
/// and its elements: a set holds 2^26, gaps in front of long members included, and another piece must find room.
const FULL_ELEMENTS: u64 = (1 << 26) - PIECE_ELEMENTS - LONGEST_BLOCK;
const LONGEST_BLOCK: u64 = 1 << 18;

/// Blocks of changes in a span.
const SPAN_BLOCKS: u32 = (SPAN_ELEMENTS / BLOCK_ELEMENTS) as u32;

/// Whether contents are sent or only passed over, by who wants to know about patches alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeContents {
    Send,
    Pass,
}

/// Chunks that follow one another.
pub(super) struct Batch<'f> {
    pub(super) chunks: Vec<Chunk>,
    /// Where to go on: after the last chunk, or what was passed over.
    pub(super) end: Position,
    /// Whether the answer ends here.
    pub(super) complete: bool,
    /// Bytes of the chunks.
    bytes: u64,
    closed: Vec<ClosedSet>,
    open: OpenSet,
    /// The slice that is being put together, with the number of its wish.
    feed: Option<(usize, SliceFeed<'f>)>,
    /// Units taken since the one that the last chunk ended with.
    since: usize,
}

/// What of a unit was made in parallel.
enum Part {
    Changes(u64, Changes),
    Contents(u64, Vec<EncodedSpan>),
    Stored(Bytes, Vec<Span>),
}

/// A set that is not encoded yet.
struct ClosedSet {
    class: ElementClass,
    members: Vec<(Span, Changes)>,
    next: Position,
}

impl<'f> Batch<'f> {
    /// The next chunks from `at` on, which was checked.
    pub(super) fn make(
        contents: &Contents,
        fetch: &'f Fetch,
        at: Position,
        whole: WholeContents,
    ) -> Result<Self> {
        let mut batch = Self {
            chunks: Vec::new(),
            end: at,
            complete: false,
            bytes: 0,
            closed: Vec::new(),
            open: OpenSet::default(),
            feed: None,
            since: 0,
        };
        let mut walk = Walk::new(contents, fetch, at)?;
        loop {
            let is_enough = batch.bytes >= BATCH_BYTES
                || !batch.chunks.is_empty()
                    && (walk.work >= BATCH_WORK || walk.answered >= BATCH_TENSORS);
            if is_enough && (batch.since == 0 || batch.bytes >= MOST_BYTES) {
                return Ok(batch);
            }
            let window = walk.window(batch.room(is_enough))?;
            let goes_on = window.first().is_some_and(|unit| batch.open.takes(unit));
            if !goes_on && batch.open.close(&mut batch.closed) {
                batch.since = 0;
                batch.encode()?;
                if is_enough {
                    return Ok(batch);
                }
            }
            if window.is_empty() {
                batch.complete = true;
                batch.end = Position {
                    wish: fetch.wishes.len() as u64,
                    ..Position::default()
                };
                return Ok(batch);
            }
            if !batch.take(contents, window, whole)? {
                return Ok(batch);
            }
        }
    }

    /// How much the next window may take: what is missing of the batch, and once that is enough, of the open set, so that
    /// no piece is composed in vain.
    fn room(&self, is_enough: bool) -> Room {
        let missing = |all: u64| all.saturating_sub(self.bytes + self.open.bytes);
        match is_enough {
            false => Room {
                bytes: missing(BATCH_BYTES).max(FULL_BYTES.saturating_sub(self.open.bytes)),
                elements: u64::MAX,
            },
            true => Room {
                // What is stored tells only about how much will be encoded.
                bytes: FULL_BYTES.saturating_sub(self.open.bytes) / 4 * 3,
                elements: FULL_ELEMENTS.saturating_sub(self.open.elements()),
            },
        }
    }

    /// Make a window's parts and put them into chunks; says whether what comes after the window may follow.
    fn take(
        &mut self,
        contents: &Contents,
        window: Vec<Unit<'f>>,
        whole: WholeContents,
    ) -> Result<bool> {
        let limit = BATCH_BYTES.saturating_sub(self.bytes).max(1);
        let part = |unit: Unit<'f>| {
            let part = match unit.what {
                What::Changes(piece, Some(changes)) => Part::Changes(piece, changes),
                What::Changes(piece, None) => {
                    Part::Changes(piece, contents.compose_job(&unit.job, piece)?)
                }
                What::Content(first) if whole == WholeContents::Pass => {
                    Part::Contents(first, Vec::new())
                }
                What::Content(first) => {
                    let spans = contents.encode_content(&unit.job, first, limit)?;
                    Part::Contents(first, spans)
                }
                What::Stored(bytes, members) => Part::Stored(bytes, members),
            };
            Ok((unit.job, part))
        };
        let parts: Result<Vec<(Arc<Job<'f>>, Part)>> = match window.iter().any(Unit::is_work) {
            true if window.len() > 1 => window.into_par_iter().map(part).collect(),
            // What is only read needs no other threads, which have others to serve.
            _ => window.into_iter().map(part).collect(),
        };
        let mut goes_on = true;
        for (job, part) in parts? {
            self.since += 1;
            match part {
                Part::Changes(piece, changes) => self.patch(&job, piece, changes)?,
                Part::Contents(first, spans) => {
                    goes_on = self.content(&job, first, spans, whole);
                    if !goes_on {
                        break;
                    }
                }
                Part::Stored(bytes, members) => self.stored(&job, bytes, members),
            }
        }
        self.encode()?;
        Ok(goes_on)
    }

    /// Take the changes of a piece of a tensor.
    fn patch(&mut self, job: &Arc<Job<'f>>, piece: u64, changes: Changes) -> Result<()> {
        let Some(slice) = job.slice else {
            let first = job.start.max(piece * PIECE_ELEMENTS);
            let skipped = ((first % PIECE_ELEMENTS) / BLOCK_ELEMENTS) as u32;
            let changes = match skipped {
                0 => changes,
                _ => changes.cut(skipped..(PIECE_ELEMENTS / BLOCK_ELEMENTS) as u32),
            };
            let end = super::piece::piece_end(first, job.elements());
            self.whole_piece(job, first..end, changes);
            return Ok(());
        };
        let mut feed = match self.feed.take() {
            Some((number, feed)) if number == job.number => feed,
            _ => SliceFeed::new(slice, job.start),
        };
        feed.take(piece, &changes, &mut |span, changes| {
            self.whole_piece(job, span, changes);
            Ok(())
        })?;
        self.feed = Some((job.number, feed));
        Ok(())
    }

    /// Take the changes of a piece of what is wanted, or of the rest of it, counted from its first element.
    fn whole_piece(&mut self, job: &Job<'_>, elements: Range<u64>, changes: Changes) {
        let class = job.wish.key.class;
        let sizes: Vec<(u32, u64)> = (changes.blocks().iter())
            .map(|block| (block.number, block_bytes(class, block)))
            .collect();
        let bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
        if elements.start.is_multiple_of(PIECE_ELEMENTS) && bytes <= DENSE_BYTES {
            self.open.push(job, elements, changes, bytes);
            if self.open.is_full() {
                self.close();
            }
            return;
        }
        self.close();
        let mut span_bytes =
            vec![0; (elements.end - elements.start).div_ceil(SPAN_ELEMENTS) as usize];
        for (block, bytes) in sizes {
            span_bytes[(block / SPAN_BLOCKS) as usize] += bytes;
        }
        let mut first = 0;
        while first < span_bytes.len() {
            let mut end = first + 1;
            let mut bytes = span_bytes[first];
            while end < span_bytes.len() && bytes + span_bytes[end] <= DELIVERY_BYTES {
                bytes += span_bytes[end];
                end += 1;
            }
            let part = changes.cut(first as u32 * SPAN_BLOCKS..end as u32 * SPAN_BLOCKS);
            let from = elements.start + first as u64 * SPAN_ELEMENTS;
            let upto = elements.start + end as u64 * SPAN_ELEMENTS;
            self.open
                .push(job, from..upto.min(elements.end), part, bytes);
            self.close();
            first = end;
        }
    }

    fn close(&mut self) {
        if self.open.close(&mut self.closed) {
            self.since = 0;
        }
    }

    /// Take a content; says whether it was whole, and another may follow.
    fn content(
        &mut self,
        job: &Job<'_>,
        first: u64,
        spans: Vec<EncodedSpan>,
        whole: WholeContents,
    ) -> bool {
        let end = super::piece::piece_end(first, job.elements());
        self.since = 0;
        for (elements, bytes) in spans {
            self.bytes += bytes.len() as u64;
            self.end = job.position_after(elements.end, AnswerKind::Content);
            self.chunks.push(Chunk {
                delivery: Delivery::Content {
                    span: span_of(job, &elements),
                    bytes: bytes.into(),
                },
                next: self.end,
            });
        }
        let all = job.position_after(end, AnswerKind::Content);
        if whole == WholeContents::Pass {
            self.end = all;
        }
        self.end == all
    }

    /// Take a set as it is stored; `job` has its last member.
    fn stored(&mut self, job: &Job<'_>, bytes: Bytes, members: Vec<Span>) {
        let end = members.last().map_or(0, Span::end);
        self.since = 0;
        self.bytes += bytes.len() as u64;
        self.end = job.position_after(end, AnswerKind::Patches);
        self.chunks.push(Chunk {
            delivery: Delivery::Patches {
                members: members.into(),
                bytes,
            },
            next: self.end,
        });
    }

    /// Encode the sets that are closed.
    fn encode(&mut self) -> Result<()> {
        let closed = std::mem::take(&mut self.closed);
        let chunks: Result<Vec<Chunk>> = match closed.len() {
            0 | 1 => closed.into_iter().map(ClosedSet::encode).collect(),
            _ => closed.into_par_iter().map(ClosedSet::encode).collect(),
        };
        for chunk in chunks? {
            self.bytes += chunk.delivery.len();
            self.end = chunk.next;
            self.chunks.push(chunk);
        }
        Ok(())
    }
}

impl Contents {
    fn compose_job(&self, job: &Job<'_>, piece: u64) -> Result<Changes> {
        let steps = job.route().map_or(&[][..], |route| &route.steps);
        self.compose_piece(job.wish.key, steps, piece)
    }
}

pub(super) fn span_of(job: &Job<'_>, elements: &Range<u64>) -> Span {
    let span = Span {
        tensor: job.wish.tensor,
        first: elements.start,
        elements: elements.end - elements.start,
    };
    debug_assert!(span.is_of(job.elements()), "{span:?}");
    span
}

/// The set that is being filled.
#[derive(Default)]
struct OpenSet {
    /// Class of the members.
    class: Option<ElementClass>,
    members: Vec<(Span, Changes)>,
    next: Position,
    /// What it takes, about.
    bytes: u64,
    changes: u64,
    /// Where the members end in the set's index space, if its blocks are short, and if they are long.
    ends: [u64; 2],
}

impl OpenSet {
    /// Whether the unit can go into it.
    fn takes(&self, unit: &Unit<'_>) -> bool {
        unit.is_changes() && self.class.is_none_or(|class| class == unit.class())
    }

    fn elements(&self) -> u64 {
        self.ends[0].max(self.ends[1])
    }

    fn is_full(&self) -> bool {
        self.bytes >= FULL_BYTES
            || self.changes >= FULL_CHANGES
            || self.members.len() >= FULL_MEMBERS
            || self.elements() >= FULL_ELEMENTS
    }

    fn push(&mut self, job: &Job<'_>, elements: Range<u64>, changes: Changes, bytes: u64) {
        let span = span_of(job, &elements);
        self.class = Some(job.wish.key.class);
        self.next = job.position_after(elements.end, AnswerKind::Patches);
        self.bytes += bytes;
        self.changes += changes.len();
        for (end, block) in self.ends.iter_mut().zip([1 << 16, LONGEST_BLOCK]) {
            if span.elements >= block {
                *end = end.next_multiple_of(block);
            }
            *end += span.elements;
        }
        self.members.push((span, changes));
    }

    /// Close it, if there is anything in it.
    fn close(&mut self, closed: &mut Vec<ClosedSet>) -> bool {
        let Self {
            class,
            members,
            next,
            ..
        } = std::mem::take(self);
        let Some(class) = class else {
            return false;
        };
        closed.push(ClosedSet {
            class,
            members,
            next,
        });
        true
    }
}

impl ClosedSet {
    fn encode(self) -> Result<Chunk> {
        let members: Vec<(u32, &Changes)> = (self.members.iter())
            .map(|(span, changes)| (span.elements as u32, changes))
            .collect();
        let encoded = patch_set::encode(self.class, &members)?;
        let members: Arc<[Span]> = self.members.iter().map(|(span, _)| *span).collect();
        Ok(Chunk {
            delivery: Delivery::Patches {
                members,
                bytes: encoded.bytes.into(),
            },
            next: self.next,
        })
    }
}

/// What a block of changes takes as encoded, about.
fn block_bytes(class: ElementClass, block: &ChangedBlock) -> u64 {
    let count = block.shifts.len() as u64;
    let gap_bits = (BLOCK_ELEMENTS / count.max(1)).max(1).ilog2() + 2;
    let positions = (count * u64::from(gap_bits)).min(BLOCK_ELEMENTS);
    let shift_bits = |shift: &i64| match shift.unsigned_abs() {
        0 | 1 => 1,
        steps => 3 + 2 * u64::from(steps.ilog2()),
    };
    let shifts = block.shifts.iter().map(shift_bits).sum::<u64>();
    // Long shifts are coded in byte planes.
    let planes = count * 8 * class.width() as u64;
    (positions + shifts.min(planes)).div_ceil(8)
}
