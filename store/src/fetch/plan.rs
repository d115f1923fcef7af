//! What an answer takes.

use super::Fetch;
use super::answer::{Answer, Job};
use super::chunk::{Batch, WholeContents};
use crate::contents::Contents;
use crate::error::{Result, StoreError};
use deltaic_format::fetch::{FetchPlan, Position};
use deltaic_format::progress::Progress;
use rayon::prelude::*;

/// Wishes whose routes are held at a time.
const RUN_OF_WISHES: usize = 1024;

impl Contents {
    pub(super) fn plan(&self, fetch: &Fetch) -> Result<FetchPlan> {
        let (mut plan, patch_bytes, whole_bytes) = self.count(fetch)?;
        plan.bytes = patch_bytes.saturating_add(whole_bytes);
        Ok(plan)
    }

    pub(super) fn plan_exactly(&self, fetch: &Fetch, progress: &dyn Progress) -> Result<FetchPlan> {
        progress.phase("composing", None);
        let (mut plan, _, whole_bytes) = self.count(fetch)?;
        plan.bytes = whole_bytes;
        let mut at = Position::default();
        loop {
            if progress.cancelled() {
                return Err(StoreError::Interrupted);
            }
            let batch = Batch::make(self, fetch, at, WholeContents::Pass)?;
            let bytes = batch.chunks.iter().map(|chunk| chunk.delivery.len()).sum();
            progress.advance(bytes);
            plan.bytes = plan.bytes.saturating_add(bytes);
            if batch.complete {
                return Ok(plan);
            }
            at = batch.end;
        }
    }

    /// How the wishes are answered, bytes apart, and the bytes of the edges and of the contents.
    fn count(&self, fetch: &Fetch) -> Result<(FetchPlan, u64, u64)> {
        let mut plan = FetchPlan::default();
        let (mut patch_bytes, mut whole_bytes) = (0u64, 0u64);
        let (granted, wanted): (Vec<usize>, Vec<usize>) =
            (0..fetch.wishes.len()).partition(|&number| {
                let wish = &fetch.wishes[number];
                wish.have == Some(wish.key.id)
            });
        plan.unchanged = granted.len() as u64;
        for run in wanted.chunks(RUN_OF_WISHES) {
            let jobs: Result<Vec<Job<'_>>> = (run.par_iter())
                .map(|&number| self.answer(fetch, number))
                .collect();
            for mut job in jobs? {
                self.settle(fetch, &mut job)?;
                match &job.answer {
                    Answer::Patches(route) | Answer::Open(route) => {
                        plan.patched += 1;
                        plan.longest_path = plan.longest_path.max(route.steps.len() as u64);
                        let edges = route.steps.iter().map(|step| step.edge.bytes);
                        let bytes = edges.fold(0, u64::saturating_add);
                        patch_bytes = patch_bytes.saturating_add(job.share(bytes));
                    }
                    Answer::Content => {
                        plan.whole += 1;
                        whole_bytes = whole_bytes.saturating_add(job.whole);
                    }
                }
            }
        }
        Ok((plan, patch_bytes, whole_bytes))
    }
}
