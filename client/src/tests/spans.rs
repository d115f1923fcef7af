//! Tensors that come span by span: in order, with gaps only where nothing changed, and in no other way.

use super::model::{Answer, History, TestTree, example_trees, nudge};
use super::{assert_holds, error_of, pull, pull_with};
use crate::source::{Ask, Source};
use crate::{ClientError, PullOptions, ReplicaFolder, Result, Trust, export};
use bytes::Bytes;
use deltaic_format::ElementClass;
use deltaic_format::base::encode_base;
use deltaic_format::fetch::{Delivery, FetchPlan, SPAN_ELEMENTS, Span};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::object::Snapshot;
use deltaic_format::patch::Changes;
use deltaic_format::patch_set::{PatchSetReader, encode};
use deltaic_format::progress::Silent;
use tempfile::tempdir;

/// Elements of a tensor of four spans, the last of them short.
const FOUR_SPANS: u64 = 3 * SPAN_ELEMENTS + 1001;

/// The place of that tensor in the example's tree.
const BIG: usize = 2;

/// Two versions in which only the second and the fourth span of the large tensor differ, in place or in a file that is
/// written anew.
fn two_versions(elements: u64, staged: bool) -> [TestTree; 2] {
    let first = example_trees(elements).remove(0);
    let mut second = first.clone();
    if staged {
        second.weights[0].metadata = "a longer note than before";
    }
    let big = second.content("big");
    for at in [SPAN_ELEMENTS + 7, 2 * SPAN_ELEMENTS - 1, elements - 1] {
        big[at as usize] ^= 1;
    }
    [first, second]
}

#[test]
fn tensors_of_several_pieces_come_in_spans() {
    for staged in [false, true] {
        let [first, second] = two_versions((1 << 22) + SPAN_ELEMENTS + 1001, staged);
        let mut third = second.clone();
        nudge(third.content("big"), 101);
        let history = History::new(&[first, second, third]);
        for (answer, span, trust) in [
            (Answer::Patches, SPAN_ELEMENTS, Trust::Server),
            (Answer::Patches, 2 * SPAN_ELEMENTS, Trust::Content),
            (Answer::Patches, 4 * SPAN_ELEMENTS, Trust::Edges),
            (Answer::Contents, SPAN_ELEMENTS, Trust::Server),
            (Answer::Contents, 4 * SPAN_ELEMENTS, Trust::Edges),
        ] {
            history.answer.set(answer);
            history.span.set(span);
            let options = PullOptions {
                trust,
                ..PullOptions::default()
            };
            let folder = tempdir().unwrap();
            for version in [0, 1, 2, 0] {
                let outcome = pull_with(folder.path(), &history, version, &options).unwrap();
                assert_eq!(outcome.trust, trust);
                assert_holds(folder.path(), &history.versions[version]);
            }
        }
        let folder = tempdir().unwrap();
        let want = &history.versions[2].snapshot;
        export(&history, want, None, folder.path(), &Silent).unwrap();
        assert_holds(folder.path(), &history.versions[2]);
    }
}

/// Sends what an honest source does, each span by itself, rearranged.
struct Rearranged<'a> {
    history: &'a History,
    arrange: &'a dyn Fn(&mut Vec<Delivery>),
}

impl Source for Rearranged<'_> {
    fn plan(&self, ask: &Ask<'_>) -> Result<FetchPlan> {
        self.history.plan(ask)
    }

    fn fetch(&self, ask: &Ask<'_>, receive: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        let mut deliveries = Vec::new();
        self.history.fetch(ask, &mut |delivery| {
            deliveries.extend(single_spans(delivery));
            Ok(())
        })?;
        (self.arrange)(&mut deliveries);
        deliveries.into_iter().try_for_each(receive)
    }

    fn file(
        &self,
        version: CommitId,
        id: FileId,
        size: u64,
        receive: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.history.file(version, id, size, receive)
    }

    fn snapshot(&self, id: CommitId) -> Result<Snapshot> {
        self.history.snapshot(id)
    }
}

/// The same, one span in each delivery.
pub(super) fn single_spans(delivery: Delivery) -> Vec<Delivery> {
    let Delivery::Patches { members, bytes } = delivery else {
        return vec![delivery];
    };
    let reader = PatchSetReader::new(&bytes).unwrap();
    let all = reader.all().unwrap();
    let single = |(span, changes): (&Span, _)| Delivery::Patches {
        members: [*span].into(),
        bytes: encode(reader.class(), &[(span.elements as u32, changes)])
            .unwrap()
            .bytes
            .into(),
    };
    members.iter().zip(&all).map(single).collect()
}

fn span_of(delivery: &mut Delivery) -> Span {
    match delivery {
        Delivery::Patches { members, .. } => members[0],
        Delivery::Content { span, .. } => *span,
    }
}

fn set_span(delivery: &mut Delivery, to: Span) {
    match delivery {
        Delivery::Patches { members, .. } => *members = [to].into(),
        Delivery::Content { span, .. } => *span = to,
    }
}

/// Where the large tensor's deliveries are.
fn places(deliveries: &mut [Delivery]) -> Vec<usize> {
    let big = |delivery: &mut Delivery| span_of(delivery).tensor == BIG;
    let places = deliveries.iter_mut().enumerate();
    (places.filter_map(|(at, delivery)| big(delivery).then_some(at))).collect()
}

type Arrange = fn(&mut Vec<Delivery>);

/// What is wrong whatever a tensor is answered with.
const WRONG: &[(&str, Arrange)] = &[
    ("swapped", |all| {
        let at = places(all);
        all.swap(at[0], at[1]);
    }),
    ("the first one twice", |all| {
        let at = places(all);
        all.insert(at[1], all[at[0]].clone());
    }),
    ("the last one twice", |all| {
        let at = places(all);
        let last = all[*at.last().unwrap()].clone();
        all.push(last);
    }),
    ("one missing", |all| {
        let at = places(all);
        all.remove(at[1]);
    }),
    ("misplaced", |all| {
        let at = places(all);
        let mut span = span_of(&mut all[at[0]]);
        span.first += 1 << 16;
        set_span(&mut all[at[0]], span);
    }),
    ("elsewhere", |all| {
        let at = places(all);
        let mut span = span_of(&mut all[at[0]]);
        span.first += 1 << 18;
        set_span(&mut all[at[0]], span);
    }),
    ("longer than it says", |all| {
        let at = places(all);
        let mut span = span_of(&mut all[at[0]]);
        span.elements = 2 * SPAN_ELEMENTS;
        set_span(&mut all[at[0]], span);
    }),
    ("beyond the end", |all| {
        let at = *places(all).last().unwrap();
        let mut span = span_of(&mut all[at]);
        span.first = 1 << 40;
        set_span(&mut all[at], span);
    }),
    ("beyond all numbers", |all| {
        let at = places(all)[0];
        let span = Span {
            tensor: BIG,
            first: u64::MAX - (SPAN_ELEMENTS - 1),
            elements: u64::MAX,
        };
        set_span(&mut all[at], span);
    }),
    ("empty", |all| {
        let at = places(all)[0];
        let mut span = span_of(&mut all[at]);
        span.elements = 0;
        set_span(&mut all[at], span);
    }),
    ("of both kinds", |all| {
        let at = places(all);
        let span = span_of(&mut all[at[1]]);
        let other = match all[at[1]] {
            Delivery::Patches { .. } => Delivery::Content {
                span,
                bytes: encode_base(ElementClass::F8E4M3, &vec![0; span.elements as usize]).into(),
            },
            Delivery::Content { .. } => {
                let changes = Changes::from_pairs([(0, 1)]).unwrap();
                let set = encode(ElementClass::F8E4M3, &[(span.elements as u32, &changes)]);
                Delivery::Patches {
                    members: [span].into(),
                    bytes: set.unwrap().bytes.into(),
                }
            }
        };
        all[at[1]] = other;
    }),
];

#[test]
fn spans_in_any_other_order_are_refused() {
    for staged in [false, true] {
        let history = History::new(&two_versions(FOUR_SPANS, staged));
        history.span.set(SPAN_ELEMENTS);
        for answer in [Answer::Patches, Answer::Contents] {
            history.answer.set(answer);
            for trust in [Trust::Server, Trust::Edges, Trust::Content] {
                let folder = tempdir().unwrap();
                pull(folder.path(), &history, 0).unwrap();
                for (what, arrange) in WRONG {
                    let source = Rearranged {
                        history: &history,
                        arrange,
                    };
                    let options = PullOptions {
                        trust,
                        ..PullOptions::default()
                    };
                    let mut replica =
                        ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
                    let want = &history.versions[1].snapshot;
                    let error = error_of(replica.pull(&source, want, &options, &Silent));
                    assert!(
                        matches!(
                            error,
                            ClientError::Delivery { .. } | ClientError::Proof { .. }
                        ),
                        "{what}: {error}"
                    );
                    drop(replica);
                    assert_holds(folder.path(), &history.versions[0]);
                }
            }
        }
    }
}

#[test]
fn exports_take_spans_in_order_only() {
    let history = History::new(&two_versions(FOUR_SPANS, false));
    history.span.set(SPAN_ELEMENTS);
    let want = &history.versions[1].snapshot;
    for (what, arrange) in WRONG {
        let source = Rearranged {
            history: &history,
            arrange,
        };
        let outside = tempdir().unwrap();
        let error = error_of(export(
            &source,
            want,
            None,
            &outside.path().join("a"),
            &Silent,
        ));
        assert!(
            matches!(error, ClientError::Delivery { .. }),
            "{what}: {error}"
        );
        assert!(!outside.path().join("a").exists());
    }
}

#[test]
fn a_patch_for_what_is_not_held_is_refused() {
    let history = History::new(&two_versions(FOUR_SPANS, false));
    history.span.set(SPAN_ELEMENTS);
    let changes = Changes::from_pairs([(0, 1)]).unwrap();
    let set = encode(ElementClass::F8E4M3, &[(SPAN_ELEMENTS as u32, &changes)]);
    let bytes: Bytes = set.unwrap().bytes.into();
    let source = Rearranged {
        history: &history,
        arrange: &|all| {
            let at = places(all)[0];
            let members = [span_of(&mut all[at])].into();
            let bytes = bytes.clone();
            all[at] = Delivery::Patches { members, bytes };
        },
    };
    for trust in [Trust::Server, Trust::Edges] {
        let options = PullOptions {
            trust,
            ..PullOptions::default()
        };
        let folder = tempdir().unwrap();
        let mut replica = ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
        let want = &history.versions[0].snapshot;
        let error = error_of(replica.pull(&source, want, &options, &Silent));
        assert!(matches!(error, ClientError::Delivery { .. }), "{error}");
        drop(replica);
        assert!(super::files_in(folder.path()).is_empty());
    }
}
