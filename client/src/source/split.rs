//! A fetch in parts, for several connections at a time.

use deltaic_format::fetch::{FetchRequest, HeldContents, WishRun};
use std::collections::BTreeMap;

/// How a repository likes large fetches to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// How many parts are under way at a time; 1 for not at all.
    pub at_a_time: usize,
    /// Bytes of weights, as they are and not as they travel, that a part has at least.
    pub bytes: u64,
}

impl Split {
    /// Every fetch in one piece.
    pub const NONE: Self = Self {
        at_a_time: 1,
        bytes: u64::MAX,
    };

    /// Parts for each that is under way at a time: a connection that is slow then takes fewer of them than the others.
    const TURNS: u64 = 4;

    /// `request` in parts, whose tensors have `sizes` bytes. A tensor is in one part, so that its answer is in order.
    pub(super) fn split(&self, request: FetchRequest, sizes: &[u64]) -> Vec<FetchRequest> {
        let size = |tensor: usize| sizes.get(tensor).copied().unwrap_or(0);
        let wished = request.wishes.iter().flat_map(|run| run.tensors.clone());
        let all: u64 = wished.map(size).fold(0, u64::saturating_add);
        let turns = Self::TURNS.saturating_mul(self.at_a_time as u64);
        let each = self.bytes.max(all / turns.max(1)).max(1);
        if self.at_a_time <= 1 || all / 2 < each {
            return vec![request];
        }
        let mut parts = Vec::new();
        let (mut runs, mut bytes) = (Vec::new(), 0u64);
        for run in &request.wishes {
            let mut begin = run.tensors.start;
            for tensor in run.tensors.clone() {
                bytes = bytes.saturating_add(size(tensor));
                if bytes >= each {
                    runs.push(cut(run, begin..tensor + 1));
                    parts.push(part(&request, std::mem::take(&mut runs)));
                    (begin, bytes) = (tensor + 1, 0);
                }
            }
            if begin < run.tensors.end {
                runs.push(cut(run, begin..run.tensors.end));
            }
        }
        if !runs.is_empty() {
            parts.push(part(&request, runs));
        }
        parts
    }
}

/// The wishes of `run` for `tensors`.
fn cut(run: &WishRun, tensors: std::ops::Range<usize>) -> WishRun {
    let first = run.tensors.start;
    let held = match &run.held {
        HeldContents::Listed(ids) => {
            HeldContents::Listed(ids[tensors.start - first..tensors.end - first].to_vec())
        }
        other => other.clone(),
    };
    WishRun { tensors, held }
}

/// `request` with these of its wishes alone.
fn part(request: &FetchRequest, wishes: Vec<WishRun>) -> FetchRequest {
    let refers = (wishes.iter()).any(|run| run.held == HeldContents::AsVersion);
    let slices: BTreeMap<_, _> = (wishes.iter())
        .flat_map(|run| request.slices.range(run.tensors.clone()))
        .map(|(&tensor, slice)| (tensor, slice.clone()))
        .collect();
    FetchRequest {
        repo: request.repo.clone(),
        want: request.want,
        held: request.held.filter(|_| refers),
        wishes,
        slices,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::ids::{CommitId, TensorId};
    use deltaic_format::name::RepoName;
    use deltaic_format::slice::Slice;
    use proptest::prelude::*;

    fn request(wishes: Vec<WishRun>, slices: &[usize]) -> FetchRequest {
        let slice = || Slice::of_axis(&[8, 8], 0, 0..4).expect("the axis is there");
        FetchRequest {
            repo: RepoName::new("a/b").expect("valid"),
            want: CommitId([1; 32]),
            held: Some(CommitId([2; 32])),
            wishes,
            slices: slices.iter().map(|&tensor| (tensor, slice())).collect(),
        }
    }

    fn id(tensor: usize) -> TensorId {
        TensorId([tensor as u8; 32])
    }

    /// Each wish by itself: tensor, what is held in its place.
    fn single(request: &FetchRequest) -> Vec<(usize, HeldContents)> {
        let runs = request.wishes.iter();
        runs.flat_map(|run| {
            let one = |tensor: usize| (tensor, cut(run, tensor..tensor + 1).held);
            run.tensors.clone().map(one).collect::<Vec<_>>()
        })
        .collect()
    }

    fn runs() -> impl Strategy<Value = Vec<WishRun>> {
        let run = (0usize..3, 1usize..9, 0u8..3);
        prop::collection::vec(run, 1..8).prop_map(|runs| {
            let mut next = 0;
            let place = |(gap, len, kind): (usize, usize, u8)| {
                let tensors = next + gap..next + gap + len;
                next = tensors.end;
                let held = match kind {
                    0 => HeldContents::Nothing,
                    1 => HeldContents::AsVersion,
                    _ => HeldContents::Listed(tensors.clone().map(id).collect()),
                };
                WishRun { tensors, held }
            };
            runs.into_iter().map(place).collect()
        })
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(
            runs in runs(),
            sizes in prop::collection::vec(0u64..100, 0..90),
            at_a_time in 1usize..5,
            bytes in 1u64..200,
        ) {
            let sliced: Vec<usize> = runs.iter().map(|run| run.tensors.start).collect();
            let whole = request(runs, &sliced);
            let split = Split { at_a_time, bytes };
            let parts = split.split(whole.clone(), &sizes);
            let all: Vec<_> = parts.iter().flat_map(single).collect();
            prop_assert_eq!(all, single(&whole));
            let slices: Vec<usize> = parts.iter().flat_map(|part| part.slices.keys().copied()).collect();
            prop_assert_eq!(slices, sliced);
            let size = |part: &FetchRequest| -> u64 {
                single(part).iter().filter_map(|(tensor, _)| sizes.get(*tensor)).sum()
            };
            let (_, full) = parts.split_last().expect("there is one");
            prop_assert!(full.iter().all(|part| size(part) >= bytes));
            prop_assert!(parts.len() as u64 <= 4 * at_a_time as u64 + 1);
            if parts.len() > 1 {
                for part in &parts {
                    let refers = part.wishes.iter().any(|run| run.held == HeldContents::AsVersion);
                    prop_assert_eq!(part.held.is_some(), refers);
                }
            }
        }
    }

    #[test]
    fn what_is_small_stays_whole() {
        let run = |held| WishRun {
            tensors: 0..4,
            held,
        };
        let whole = request(vec![run(HeldContents::AsVersion)], &[]);
        let parts = |at_a_time, bytes| {
            let split = Split { at_a_time, bytes };
            split.split(whole.clone(), &[100; 4]).len()
        };
        assert_eq!(
            (parts(1, 1), parts(4, 201), parts(4, 200), parts(4, 1)),
            (1, 1, 2, 4)
        );
        assert_eq!(Split::NONE.split(whole.clone(), &[100; 4]), [whole]);
    }
}
