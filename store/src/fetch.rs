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

/// Wishes whose routes are held at a time.
const RUN_OF_WISHES: usize = 1024;

/// The patch sets being filled, one for each class.
type Builders = BTreeMap<ElementClass, SetBuilder<PieceRef>>;

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
    /// What a fetch of `wishes` from `want` would take, as edges and bases are stored: composing mostly makes patches
    /// smaller.
    pub(crate) fn plan(&self, want: &Snapshot, wishes: &[TensorWish]) -> Result<FetchPlan> {
        let mut plan = FetchPlan::default();
        self.for_each_run(want, wishes, &mut |jobs| self.count(&jobs, &mut plan))?;
        Ok(plan)
    }

    /// The same, with the patches composed and encoded to know their bytes exactly.
    pub(crate) fn plan_exactly(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        progress: &dyn Progress,
    ) -> Result<FetchPlan> {
        let mut plan = FetchPlan::default();
        let mut bytes = 0;
        let mut builders = Builders::new();
        let mut deliver = |delivery: Delivery<'_>| {
            bytes += delivery.len();
            progress.advance(delivery.len());
            match progress.cancelled() {
                true => Err(StoreError::Interrupted),
                false => Ok(()),
            }
        };
        progress.phase("composing", None);
        let mut whole_bytes = 0;
        self.for_each_run(want, wishes, &mut |mut jobs: Vec<Job<'_>>| {
            for job in jobs
                .iter()
                .filter(|job| matches!(job.answer, Answer::Whole))
            {
                whole_bytes += self.record(job.key())?.whole_bytes;
            }
            self.count(&jobs, &mut plan)?;
            jobs.retain(|job| matches!(job.answer, Answer::Patch(_)));
            self.deliver(&jobs, &mut builders, &mut deliver)
        })?;
        finish(&mut builders, &mut deliver)?;
        plan.bytes = bytes + whole_bytes;
        Ok(plan)
    }

    /// Send what turns the contents that `wishes` holds into those of `want`.
    pub(crate) fn fetch<E: From<StoreError>>(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut builders = Builders::new();
        self.for_each_run(want, wishes, &mut |jobs| {
            self.deliver(&jobs, &mut builders, deliver)
        })?;
        finish(&mut builders, deliver)
    }

    /// Find the answers to a run of wishes at a time, so that the routes held are bounded.
    fn for_each_run<E: From<StoreError>>(
        &self,
        want: &Snapshot,
        wishes: &[TensorWish],
        use_jobs: &mut dyn FnMut(Vec<Job<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let views = want.tensors();
        for run in wishes.chunks(RUN_OF_WISHES) {
            let job = |wish: &TensorWish| {
                let view = *views.get(wish.tensor).ok_or_else(|| StoreError::Invalid {
                    what: format!(
                        "{} has no tensor number {}",
                        want.commit.version, wish.tensor
                    ),
                })?;
                let answer = self.answer(view, wish)?;
                Ok(Job { view, answer })
            };
            let jobs: Result<Vec<Job<'_>>> = run.par_iter().map(job).collect();
            use_jobs(jobs?)?;
        }
        Ok(())
    }

    fn count(&self, jobs: &[Job<'_>], plan: &mut FetchPlan) -> Result<()> {
        for job in jobs {
            match &job.answer {
                Answer::Unchanged => plan.unchanged += 1,
                Answer::Patch(route) => {
                    plan.patched += 1;
                    plan.longest_path = plan.longest_path.max(route.steps.len() as u64);
                    let edges = route.steps.iter().map(|step| step.edge.bytes);
                    plan.bytes = edges.fold(plan.bytes, u64::saturating_add);
                }
                Answer::Whole => {
                    plan.whole += 1;
                    let bytes = self.record(job.key())?.whole_bytes;
                    plan.bytes = plan.bytes.saturating_add(bytes);
                }
            }
        }
        Ok(())
    }

    fn deliver<E: From<StoreError>>(
        &self,
        jobs: &[Job<'_>],
        builders: &mut Builders,
        deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let changed = jobs
            .iter()
            .filter(|job| !matches!(job.answer, Answer::Unchanged));
        let mut pieces = changed
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
                send(job, piece, part, builders, deliver)?;
            }
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
    builders: &mut Builders,
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

/// Send the sets that are not full.
fn finish<E: From<StoreError>>(
    builders: &mut Builders,
    deliver: &mut dyn FnMut(Delivery<'_>) -> Result<(), E>,
) -> Result<(), E> {
    (builders.values_mut()).try_for_each(|builder| send_set(builder, deliver))
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
