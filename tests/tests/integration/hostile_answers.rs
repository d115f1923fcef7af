//! Servers that lie about versions, files, histories and uploads. What this prevents: a client that believes an object which is
//! not what its id names, a history with a gap, a watch that doubles a version, an upload that is taken for complete; and one that
//! a server makes wait or allocate without end.

use crate::hostile_servers::kind;
use bytes::Bytes;
use deltaic_client::publish;
use deltaic_client::{Checkpoint, ClientError, Repository, Trust, UploadSource, Watcher};
use deltaic_format::answers::VerifyOptions;
use deltaic_format::fetch::FetchRequest;
use deltaic_format::ids::CommitId;
use deltaic_format::object::CanonicalObject;
use deltaic_format::progress::Silent;
use deltaic_format::revision::Selector;
use deltaic_format::upload::{ObjectKind, UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::wire::{file_part, id_bytes, proto, snapshot_parts};
use deltaic_server::serve::ServeOptions;
use deltaic_tests::liars::{Liar, Messages};
use deltaic_tests::linked::{main_branch, policy, request_to};
use deltaic_tests::scenes::Scene;
use deltaic_tests::stores::assert_same_files;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use proto::get_snapshot_response::Part;
use proto::upload_response::What as Told;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

/// No lie is believed for longer.
const SOON: Duration = Duration::from_secs(10);

/// What is asked for fails soon, as one of `expected`.
async fn fails<T>(
    what: &str,
    expected: &[&str],
    asked: impl Future<Output = Result<T, ClientError>>,
) {
    let begun = Instant::now();
    let error = match tokio::time::timeout(SOON, asked).await {
        Ok(Ok(_)) => panic!("{what} was believed"),
        Ok(Err(error)) => error,
        Err(_) => panic!("{what} takes too long"),
    };
    println!("{what}: {error} ({:?})", begun.elapsed());
    let kind = kind(&error);
    assert!(expected.contains(&kind), "{what}: {kind}: {error}");
}

fn silent() -> Watcher {
    Arc::new(Silent)
}

async fn scene() -> (Scene, Liar, Arc<dyn Repository>) {
    let scene = Scene::new(3, ServeOptions::default()).await;
    let liar = Liar::before(&scene.url).await;
    let remote = Scene::impatient(&liar.url);
    (scene, liar, remote)
}

/// These messages instead of what was to be answered.
fn instead<T: Clone + Send + Sync + 'static>(
    messages: Vec<T>,
) -> impl Fn(Messages<T>) -> Messages<T> {
    move |_| stream::iter(messages.clone().into_iter().map(Ok)).boxed()
}

/// The same message for ever.
fn for_ever<T: Clone + Send + Sync + 'static>(message: T) -> impl Fn(Messages<T>) -> Messages<T> {
    move |_| {
        let message = message.clone();
        let endless = stream::repeat_with(move || Ok(message.clone()));
        // Not faster than a busy server.
        let paced = endless.then(|message| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            message
        });
        paced.boxed()
    }
}

fn part(part: Part) -> proto::GetSnapshotResponse {
    proto::GetSnapshotResponse { part: Some(part) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_are_not_what_their_ids_name_are_refused() {
    const METHOD: &str = "Versions/GetSnapshot";
    let (scene, liar, remote) = scene().await;
    let repo = policy();
    let [other, wanted] = [1, 2].map(|version| scene.snapshot(version));
    let id = wanted.id;
    let parts: Vec<_> = snapshot_parts(&wanted).collect();
    let is_tree = |p: &proto::GetSnapshotResponse| matches!(p.part, Some(Part::Tree(_)));
    let with_tree = |tree: Bytes| {
        let mut parts: Vec<_> = parts.iter().filter(|p| !is_tree(p)).cloned().collect();
        parts.push(part(Part::Tree(tree)));
        parts
    };
    let mut changed = wanted.tree.to_bytes();
    changed[40] ^= 1;
    let cut = wanted.tree.to_bytes()[..60].to_vec();
    for (what, answer) in [
        ("another version", snapshot_parts(&other).collect()),
        ("another tree", with_tree(other.tree.to_bytes().into())),
        ("a changed tree", with_tree(changed.into())),
        ("a part of a tree", with_tree(cut.into())),
        ("no tree", with_tree(Bytes::new())),
        ("nothing", Vec::new()),
        ("all of it twice", [parts.clone(), parts.clone()].concat()),
    ] {
        liar.lie(METHOD, instead(answer));
        fails(what, &["protocol"], remote.snapshot(&repo, id)).await;
    }
    let schema = part(Part::Schema(Bytes::from(vec![0; 8 << 20])));
    liar.lie(METHOD, move |_: Messages<proto::GetSnapshotResponse>| {
        let schema = schema.clone();
        stream::repeat_with(move || Ok(schema.clone())).boxed()
    });
    let asked = remote.snapshot(&repo, id);
    fails("a schema without end", &["protocol"], asked).await;
    liar.lie(METHOD, for_ever(proto::GetSnapshotResponse::default()));
    let asked = remote.snapshot(&repo, id);
    fails("no parts without end", &["stalled"], asked).await;
    liar.lie(METHOD, for_ever(part(Part::Tree(Bytes::new()))));
    let asked = remote.snapshot(&repo, id);
    fails("empty parts without end", &["protocol"], asked).await;

    for short in [&b""[..], b"short", &[7; 31], &[7; 33]] {
        let answer = proto::ResolveResponse {
            commit: Bytes::from_static(short),
            ..Default::default()
        };
        liar.lie("Versions/Resolve", instead(vec![answer]));
        let main = Selector::branch(main_branch());
        fails("a short id", &["protocol"], remote.resolve(&repo, &main)).await;
    }
    liar.repent();
    let found = remote.snapshot(&repo, id).await;
    assert_eq!(found.expect("it is the truth").id, id);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_other_bytes_are_refused() {
    const METHOD: &str = "Transfer/GetFile";
    let (scene, liar, _) = scene().await;
    let [first, _, wanted] = scene.versions[..] else {
        panic!("three versions");
    };
    let pulled = scene.pull(&liar.url, "replica", first, Trust::Server);
    pulled.await.expect("it is the truth");

    type File = proto::GetFileResponse;
    type Lie = fn(Messages<File>) -> Messages<File>;
    fn with(answer: Messages<File>, change: fn(&mut File)) -> Messages<File> {
        let mut at = 0;
        let lie = move |part: Result<File, Status>| {
            let mut part = part?;
            change(&mut part);
            let length = part.data.len() as u64;
            at += length;
            Ok(file_part(at - length, part.data, part.complete))
        };
        answer.map(lie).boxed()
    }
    let lies: [(&str, &[&str], Lie); 7] = [
        ("other bytes", &["delivery"], |answer| {
            with(answer, |part| {
                part.data = vec![b'x'; part.data.len()].into()
            })
        }),
        ("more bytes", &["delivery"], |answer| {
            with(answer, |part| {
                part.data = [&part.data[..], b"x"].concat().into()
            })
        }),
        ("fewer bytes", &["delivery"], |answer| {
            with(answer, |part| part.data = part.data.slice(1..))
        }),
        ("no bytes", &["delivery"], |_| {
            stream::iter([Ok(file_part(0, Bytes::new(), true))]).boxed()
        }),
        ("no last part", &["unreachable", "protocol"], |answer| {
            with(answer, |part| part.complete = false)
        }),
        ("parts without end", &["delivery"], |_| {
            let data = Bytes::from(vec![b'v'; 1 << 20]);
            let part = move |n: u64| Ok(file_part(n << 20, data.clone(), false));
            stream::iter(0..).map(part).boxed()
        }),
        ("empty parts without end", &["protocol"], |_| {
            stream::repeat_with(|| Ok(file_part(0, Bytes::new(), false))).boxed()
        }),
    ];
    for (what, expected, lie) in lies {
        liar.lie(METHOD, lie);
        let pull = scene.pull(&liar.url, "replica", wanted, Trust::Server);
        fails(what, expected, pull).await;
        assert_same_files(&scene.path("replica"), &scene.folder(0));
        liar.repent();
    }
    let pulled = scene.pull(&liar.url, "replica", wanted, Trust::Server);
    pulled.await.expect("it is the truth");
    assert_same_files(&scene.path("replica"), &scene.folder(2));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_and_watches_with_gaps_are_refused() {
    let (scene, liar, remote) = scene().await;
    let repo = policy();
    let commits: Vec<Bytes> = [0, 1, 2]
        .map(|version| scene.snapshot(version).commit.to_bytes().into())
        .into();
    let head = scene.versions[2];
    let log = async || {
        let history = remote.history(&repo, head, None).await?;
        history.try_collect::<Vec<_>>().await
    };
    let of = |order: &[usize]| {
        let commits = order.iter().map(|&version| commits[version].clone());
        proto::LogResponse {
            commits: commits.collect(),
        }
    };
    for (what, expected, answer) in [
        ("a gap", "protocol", of(&[2, 0])),
        ("another order", "protocol", of(&[0, 1, 2])),
        ("a commit twice", "protocol", of(&[2, 2, 1, 0])),
        ("a beginning that is missing", "protocol", of(&[2, 1])),
        ("nothing", "protocol", of(&[])),
    ] {
        liar.lie("Versions/Log", instead(vec![answer]));
        fails(what, &[expected], log()).await;
    }
    let garbage = proto::LogResponse {
        commits: vec![Bytes::from_static(b"no commit")],
    };
    liar.lie("Versions/Log", instead(vec![garbage]));
    fails("no commit", &["protocol"], log()).await;
    liar.lie("Versions/Log", for_ever(proto::LogResponse::default()));
    fails("no commits without end", &["protocol"], log()).await;

    let after = scene.versions[0];
    let watch = async || {
        let watch = remote.watch(&repo, &main_branch(), Some(after)).await?;
        watch.try_collect::<Vec<_>>().await
    };
    let seen = |version: usize| proto::WatchResponse {
        version: Some(proto::WatchedVersion {
            commit: commits[version].clone(),
            id: id_bytes(&scene.versions[version]),
        }),
    };
    for (what, expected, versions) in [
        ("a version twice", "protocol", vec![seen(1), seen(1)]),
        ("a version that is missing", "refused", vec![seen(2)]),
        ("the known version", "protocol", vec![seen(0)]),
        ("an end", "unreachable", Vec::new()),
    ] {
        liar.lie("Versions/Watch", instead(versions));
        fails(what, &[expected], watch()).await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_only_say_that_it_goes_on_are_given_up() {
    let (scene, liar, remote) = scene().await;
    let repo = policy();
    let [old, new] = [0, 2].map(|version| scene.snapshot(version));
    let progress = || {
        Some(proto::Progress {
            phase: "still".to_owned(),
            ..Default::default()
        })
    };
    let request = FetchRequest::all(policy(), &new, Some(&old));
    let plan = proto::PlanResponse {
        progress: progress(),
        ..Default::default()
    };
    liar.lie("Transfer/Plan", for_ever(plan));
    fails(
        "a plan",
        &["stalled"],
        remote.plan(&request, true, silent()),
    )
    .await;
    let diff = proto::DiffResponse {
        progress: progress(),
        ..Default::default()
    };
    liar.lie("Versions/Diff", for_ever(diff));
    let asked = remote.diff(&repo, &old, &new, silent());
    fails("a difference", &["stalled"], asked).await;
    let verify = proto::VerifyResponse {
        progress: progress(),
        ..Default::default()
    };
    liar.lie("Admin/Verify", for_ever(verify));
    let asked = remote.verify(VerifyOptions::default(), silent());
    fails("a check", &["stalled"], asked).await;
    liar.lie(
        "Versions/GetStats",
        for_ever(proto::GetStatsResponse::default()),
    );
    let asked = remote.version_stats(&repo, &new);
    fails("figures", &["stalled"], asked).await;

    // Too many of what there cannot be so many of.
    let stats = proto::GetStatsResponse {
        version: Some(proto::VersionStats::default()),
        tensors: vec![proto::TensorStats::default(); 6],
        ..Default::default()
    };
    liar.lie("Versions/GetStats", for_ever(stats));
    let asked = remote.version_stats(&repo, &new);
    fails("figures of more tensors", &["protocol"], asked).await;
    let diff = proto::DiffResponse {
        tensors: vec![proto::TensorDiff::default(); 100],
        ..Default::default()
    };
    liar.lie("Versions/Diff", for_ever(diff));
    let asked = remote.diff(&repo, &old, &new, silent());
    fails("more differences", &["protocol"], asked).await;
    scene.end().await;
}

/// A source of a few items, which fails on positions that it did not give.
#[derive(Debug)]
struct Items;

impl UploadSource for Items {
    fn items(
        &self,
        after: Option<UploadPosition>,
    ) -> BoxStream<'static, Result<(UploadPosition, UploadItem), ClientError>> {
        if after.is_some_and(|at| at.len() != 1) {
            let what = "no position of this source".to_owned();
            let error = deltaic_format::refusal::Refusal::Invalid { what };
            return stream::once(async { Err(error.into()) }).boxed();
        }
        let item = |at: u8| {
            let kind = ObjectKind::Tree;
            let bytes = Bytes::from(vec![at; 100]);
            let position = UploadPosition::copy_from_slice(&[at]);
            Ok((position, UploadItem::Object { kind, bytes }))
        };
        stream::iter((0..4).map(item)).boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_are_said_to_be_what_they_are_not_are_refused() {
    const METHOD: &str = "Transfer/Upload";
    let (scene, liar, remote) = scene().await;
    let target = UploadTarget {
        repo: policy(),
        branch: main_branch(),
        id: UploadId([1; 32]),
        parent: Some(scene.versions[2]),
        commit: Some(CommitId([2; 32])),
    };
    let upload = async || remote.upload(&target, Arc::new(Items), silent()).await;
    let told = |what| proto::UploadResponse { what: Some(what) };
    let ready = |position: &'static [u8], items| {
        told(Told::Ready(proto::UploadReady {
            position: Bytes::from_static(position),
            items,
        }))
    };
    let held = |items| told(Told::Held(proto::UploadProgress { items }));
    let outcome = |commit: &[u8]| {
        told(Told::Outcome(proto::CommitOutcome {
            commit: Bytes::copy_from_slice(commit),
            ..Default::default()
        }))
    };
    let endless = |first: Vec<proto::UploadResponse>, then: proto::UploadResponse| {
        move |answer: Messages<proto::UploadResponse>| {
            let first = stream::iter(first.clone().into_iter().map(Ok));
            first.chain(for_ever(then.clone())(answer)).boxed()
        }
    };
    for (what, expected, messages) in [
        (
            "more than was sent",
            "protocol",
            vec![ready(b"", 0), held(1000)],
        ),
        (
            "all that there can be",
            "protocol",
            vec![ready(b"", u64::MAX), held(0), held(u64::MAX), outcome(b"x")],
        ),
        (
            "another commit",
            "protocol",
            vec![ready(b"", 0), outcome(&[9; 32])],
        ),
        ("a short commit", "protocol", vec![outcome(b"short")]),
        (
            "twice ready",
            "protocol",
            vec![ready(b"", 0), ready(b"", 0)],
        ),
        (
            "a position that is none",
            "refused",
            vec![ready(b"somewhere", 3)],
        ),
        ("nothing", "stalled", Vec::new()),
    ] {
        liar.lie(METHOD, move |_| {
            let messages = stream::iter(messages.clone().into_iter().map(Ok));
            messages.chain(stream::pending()).boxed()
        });
        fails(what, &[expected], upload()).await;
    }
    liar.lie(METHOD, endless(vec![ready(b"", 0)], held(0)));
    fails("nothing held, for ever", &["stalled"], upload()).await;
    let going_on = told(Told::Progress(proto::Progress::default()));
    liar.lie(METHOD, endless(Vec::new(), going_on.clone()));
    fails("not ready, for ever", &["stalled"], upload()).await;
    liar.lie(METHOD, endless(vec![ready(b"", 0)], going_on));
    fails("no outcome, for ever", &["stalled"], upload()).await;
    liar.repent();
    fails("items of nothing", &["refused"], upload()).await;
    scene.assert_untouched();
    assert_eq!(scene.spools(), (0, 0));
    scene.end().await;
}

/// What this prevents: success for a commit that was not made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_are_said_to_have_become_another_version_are_not_believed() {
    const METHOD: &str = "Transfer/Upload";
    let (scene, liar, remote) = scene().await;
    let commit = async |version: usize, shadow: &str| {
        let checkpoint = Checkpoint::open(scene.folder(version)).expect("it is a checkpoint");
        let request = request_to(&policy(), &main_branch(), "once more");
        publish::commit(
            remote.clone(),
            checkpoint,
            request,
            scene.path(shadow),
            silent(),
        )
        .await
    };
    let another = Bytes::copy_from_slice(&scene.versions[1].0);
    let lied = proto::CommitOutcome {
        commit: another.clone(),
        ..Default::default()
    };
    let lied = proto::UploadResponse {
        what: Some(Told::Outcome(lied)),
    };
    // Before anything was sent.
    liar.lie(METHOD, instead(vec![lied]));
    fails("another version", &["delivery"], commit(0, "shadow")).await;
    scene.assert_untouched();
    // The version was made, and its id damaged on the way.
    liar.lie(METHOD, move |answer| {
        let another = another.clone();
        let damage = move |message: Result<proto::UploadResponse, Status>| {
            let mut message = message?;
            if let Some(Told::Outcome(outcome)) = &mut message.what {
                outcome.commit = another.clone();
            }
            Ok(message)
        };
        answer.map(damage).boxed()
    });
    let made = commit(0, "shadow").await.expect("it was made").id;
    let head = scene.store.branch(&policy(), &main_branch());
    assert_eq!(head.expect("it is there").commit, made);
    assert!(!scene.versions.contains(&made));
    scene.end().await;
}
