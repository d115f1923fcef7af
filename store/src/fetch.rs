//! "Give me N, I hold M": per tensor the cheapest of nothing, a composed patch, or the whole content.

use crate::contents::Contents;
use crate::error::{Result, StoreError};
use crate::graph::Route;
use crate::records::ContentKey;
use deltaic_format::ElementClass;
use deltaic_format::fetch::{Delivery, FetchPlan, PieceRef, TensorWish};
use deltaic_format::object::{Snapshot, TensorView};
use deltaic_format::patch::{Changes, PIECE_ELEMENTS, piece_count, piece_len};
use deltaic_format::patch_set::{self, SetBuilder};
use deltaic_format::progress::Progress;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Bytes of content that are worked on at a time.
const WINDOW_BYTES: u64 = 64 << 20;

/// How one wished tensor is answered.
enum Answer {
    Unchanged,
    Patch(Route),
    Whole,
}

/// A wished tensor with its answer.
struct Job<'a> {
    view: TensorView<'a>,
    answer: Answer,
}

impl Job<'_> {
    fn key(&self) -> ContentKey {
        ContentKey::new(self.view.spec.class, self.view.entry.id)
    }
}

/// A piece that travels.
enum Part {
    Patch(Changes),
    Whole(Vec<u8>),
}

impl Contents {
    /// What a fetch of `wishes` from `want` would take; exact for contents, an upper bound for patches, whose edges
    /// are counted as they are stored.
    pub(crate) fn plan(&self, want: &Snapshot, wishes: &[TensorWish]) -> Result<FetchPlan> {
        let mut plan = FetchPlan::default();
        for job in self.jobs(want, wishes)? {
            match &job.answer {
                Answer::Unchanged => plan.unchanged += 1,
                Answer::Patch(route) => {
                    plan.patched += 1;
                    plan.longest_path = plan.longest_path.max(route.steps.len() as u64);
                    plan.bytes += route.steps.iter().map(|s| s.edge.bytes).sum::<u64>();
                }
                Answer::Whole => {
                    plan.whole += 1;
                    plan.bytes += self.record(job.key())?.whole_bytes;
                }
            }
        }
        Ok(plan)
    }

    /// The same, with the patches composed and encoded to know their bytes exactly.
    pub(crate) fn plan_exactly(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        progress: &dyn Progress,
    ) -> Result<FetchPlan> {
        let mut plan = self.plan(want, wishes)?;
        let jobs = self.jobs(want, wishes)?;
        progress.phase("composing", Some(plan.bytes));
        plan.bytes = 0;
        for job in jobs
            .iter()
            .filter(|job| matches!(job.answer, Answer::Whole))
        {
            plan.bytes += self.record(job.key())?.whole_bytes;
        }
        let patches = jobs
            .into_iter()
            .filter(|job| matches!(job.answer, Answer::Patch(_)));
        self.deliver(&patches.collect::<Vec<_>>(), &mut |delivery| {
            plan.bytes += delivery.len();
            progress.advance(delivery.len());
            match progress.cancelled() {
                true => Err(StoreError::Interrupted),
                false => Ok(()),
            }
        })?;
        Ok(plan)
    }

    /// Send what turns the contents that `wishes` holds into those of `want`.
    pub(crate) fn fetch<E: From<StoreError>>(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.deliver(&self.jobs(want, wishes)?, deliver)
    }

    fn deliver<E: From<StoreError>>(
        &self,
        jobs: &[Job<'_>],
        deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut builders: BTreeMap<ElementClass, SetBuilder<PieceRef>> = BTreeMap::new();
        let pieces = jobs
            .iter()
            .filter(|job| !matches!(job.answer, Answer::Unchanged));
        let mut pieces = pieces
            .flat_map(|job| {
                (0..piece_count(job.view.spec.elements())).map(move |piece| (job, piece))
            })
            .peekable();
        while pieces.peek().is_some() {
            let mut window = Vec::new();
            let mut bytes = 0;
            while bytes < WINDOW_BYTES
                && let Some((job, piece)) = pieces.next()
            {
                let elements = piece_len(job.view.spec.elements(), piece);
                bytes += elements * job.view.spec.class.width() as u64;
                window.push((job, piece));
            }
            let parts = window
                .par_iter()
                .map(|(job, piece)| self.part(job, *piece))
                .collect::<Result<Vec<_>>>()?;
            for ((job, piece), part) in window.into_iter().zip(parts) {
                send(job, piece, part, &mut builders, deliver)?;
            }
        }
        for builder in builders.values_mut() {
            send_set(builder, deliver)?;
        }
        Ok(())
    }

    fn part(&self, job: &Job<'_>, piece: u64) -> Result<Part> {
        match &job.answer {
            Answer::Patch(route) => self
                .compose_piece(job.key(), &route.steps, piece)
                .map(Part::Patch),
            _ => self.open(job.key())?.piece_as_base(piece).map(Part::Whole),
        }
    }

    fn jobs<'a>(&self, want: &'a Snapshot, wishes: &[TensorWish]) -> Result<Vec<Job<'a>>> {
        let views = want.tensors();
        wishes
            .par_iter()
            .map(|wish| {
                let view = *views.get(wish.tensor).ok_or_else(|| StoreError::Invalid {
                    what: format!(
                        "{} has no tensor number {}",
                        want.commit.version, wish.tensor
                    ),
                })?;
                let answer = self.answer(view, wish)?;
                Ok(Job { view, answer })
            })
            .collect()
    }

    fn answer(&self, view: TensorView<'_>, wish: &TensorWish) -> Result<Answer> {
        let key = ContentKey::new(view.spec.class, view.entry.id);
        let Some(have) = wish.have else {
            return Ok(Answer::Whole);
        };
        if have == key.id {
            return Ok(Answer::Unchanged);
        }
        let whole = self.record(key)?.whole_bytes;
        let Some(route) = self.route_between(have, key, whole)? else {
            return Ok(Answer::Whole);
        };
        // Far below the whole, the patch is smaller whatever composing does to it; close to it, only making it tells.
        if route.cost <= whole / 2 || self.composed_len(key, &route, view.spec.elements())? < whole
        {
            return Ok(Answer::Patch(route));
        }
        Ok(Answer::Whole)
    }

    fn composed_len(&self, key: ContentKey, route: &Route, elements: u64) -> Result<u64> {
        let mut len = 0;
        for piece in 0..piece_count(elements) {
            let changes = self.compose_piece(key, &route.steps, piece)?;
            let member = (piece_len(elements, piece) as u32, &changes);
            let set = patch_set::encode(key.class, &[member])?;
            // It travels in a set whose header many share.
            len += set.bytes.len() as u64 - set.overhead;
        }
        Ok(len)
    }
}

fn send<E: From<StoreError>>(
    job: &Job<'_>,
    piece: u64,
    part: Part,
    builders: &mut BTreeMap<ElementClass, SetBuilder<PieceRef>>,
    deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let piece_ref = PieceRef {
        tensor: job.view.index,
        piece,
    };
    match part {
        Part::Whole(bytes) => deliver(Delivery::Content {
            piece: piece_ref,
            bytes: &bytes,
        }),
        Part::Patch(changes) => {
            let class = job.view.spec.class;
            let builder = builders
                .entry(class)
                .or_insert_with(|| SetBuilder::new(class));
            // Pieces without changes are sent as well: the receiver sees that a tensor is complete.
            let elements = piece_len(job.view.spec.elements(), piece);
            debug_assert!(elements <= PIECE_ELEMENTS);
            if builder.is_full_for(elements as u32) {
                send_set(builder, deliver)?;
            }
            builder.push(elements as u32, changes, piece_ref);
            Ok(())
        }
    }
}

fn send_set<E: From<StoreError>>(
    builder: &mut SetBuilder<PieceRef>,
    deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let Some(set) = builder.close().map_err(StoreError::from)? else {
        return Ok(());
    };
    let members: Vec<PieceRef> = set.members.iter().map(|(_, piece)| *piece).collect();
    deliver(Delivery::Patches {
        members: &members,
        bytes: &set.encoded.bytes,
    })
}
