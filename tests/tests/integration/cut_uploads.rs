//! Commits over links that fail, to servers that restart, against shadows that are damaged: there is exactly one new version and
//! it is what the checkpoint holds, or there is an error and nothing has changed.

use deltaic_client::asynchronous::pull;
use deltaic_client::publish::commit;
use deltaic_client::{Checkpoint, ClientError, PullOptions, ReplicaFolder, Result};
use deltaic_format::answers::CommitOutcome;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::progress::Silent;
use deltaic_format::refusal::Refusal;
use deltaic_tests::checkpoints::NamedTensor;
use deltaic_tests::linked::{
    Hurry, Linked, large_model, main_branch, policy, request_to, small_model,
};
use deltaic_tests::network::{Fault, FaultAt, Way};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Less than half of what an item takes that is no end of something.
const STEP: usize = 240 << 10;

/// About what a chunk takes at most.
const CHUNK: u64 = 1100 << 10;

/// What a second connection takes besides: greeting, handshake, headers, questions.
const ALLOWANCE: u64 = 4 << 10;

/// Which commit is made: the first one of a repository, which sends everything, or the second one, a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Whole,
    Patch,
}

/// A served store, checkpoints to commit, and places that commits go to, a new one for each run.
struct Scene {
    linked: Linked,
    checkpoints: Vec<PathBuf>,
    /// The first version of the repository in which patches are committed.
    first: CommitId,
    runs: usize,
    _hurry: Hurry,
}

/// Where a run commits to.
struct Place {
    repo: RepoName,
    branch: BranchName,
    shadow: PathBuf,
    checkpoint: PathBuf,
    versions: usize,
}

impl Scene {
    fn new(model: [Vec<NamedTensor>; 3]) -> Self {
        let linked = Linked::direct();
        let checkpoints: Vec<PathBuf> = (model.into_iter().enumerate())
            .map(|(version, tensors)| linked.checkpoint(&format!("v{version}"), tensors))
            .collect();
        let request = request_to(&policy(), &main_branch(), "v0");
        let first = linked.commit(&request, &checkpoints[0]).id;
        Self {
            linked,
            checkpoints,
            first,
            runs: 0,
            _hurry: Hurry::start(),
        }
    }

    /// A place that nobody has committed to, with a shadow as an earlier commit leaves it.
    async fn place(&mut self, which: Which) -> Place {
        self.runs += 1;
        let run = self.runs;
        let shadow = self.linked.path("shadows").join(format!("{run}"));
        if which == Which::Whole {
            return Place {
                repo: RepoName::new(format!("acme/run-{run}")).unwrap(),
                branch: main_branch(),
                shadow,
                checkpoint: self.checkpoints[0].clone(),
                versions: 1,
            };
        }
        let branch = BranchName::new(format!("run-{run}")).unwrap();
        let created = (self.linked.store()).create_branch(&policy(), &branch, self.first, 1);
        created.unwrap();
        fs::create_dir_all(shadow.parent().unwrap()).unwrap();
        let replica = ReplicaFolder::open_or_create(&shadow, &Silent).unwrap();
        let options = PullOptions {
            seeds: vec![self.checkpoints[0].clone()],
            ..PullOptions::default()
        };
        let first = self.linked.snapshot(self.first);
        let local = self.linked.local();
        let pulled = pull(replica, local, policy(), first, options, Arc::new(Silent)).await;
        pulled.unwrap();
        Place {
            repo: policy(),
            branch,
            shadow,
            checkpoint: self.checkpoints[1].clone(),
            versions: 2,
        }
    }

    async fn commit(&self, place: &Place) -> Result<CommitOutcome> {
        let request = request_to(&place.repo, &place.branch, "over the wire");
        let checkpoint = Checkpoint::open(&place.checkpoint).unwrap();
        let shadow = place.shadow.clone();
        let remote = self.linked.remote();
        commit(remote, checkpoint, request, shadow, Arc::new(Silent)).await
    }

    /// Fail unless there is exactly one new version, `id`, and it is the checkpoint.
    fn assert_committed(&self, place: &Place, id: CommitId, why: impl std::fmt::Debug) {
        let history = self.linked.history(&place.repo, &place.branch);
        assert_eq!((history.len(), history[0]), (place.versions, id), "{why:?}");
        self.linked.assert_stored(id, &place.checkpoint);
    }

    /// Fail if the server has read much more than the `clean` bytes of a commit without faults.
    ///
    /// What it has read of an item when the connection fails is read again, if that was not all of it: less than one item. What
    /// the link or its own end of it held then, and it never read, never arrived, whether or not the sender was rid of it.
    fn assert_little_again(&self, clean: u64, why: impl std::fmt::Debug) {
        let most = clean + CHUNK + ALLOWANCE;
        let read = self.linked.network.read_by_server();
        assert!(read <= most, "{why:?}: {read} of {most}");
    }

    /// A commit without faults, and what went each way.
    async fn clean(&mut self, which: Which) -> (CommitOutcome, u64, u64) {
        let place = self.place(which).await;
        self.linked.plan(Vec::new()).await;
        let outcome = self.commit(&place).await.unwrap();
        let (to_client, to_server, connections) = self.linked.traffic();
        assert_eq!(connections, 1);
        self.assert_committed(&place, outcome.id, "no fault");
        (outcome, to_client, to_server)
    }

    /// A commit through one fault, which ends well.
    async fn through(&mut self, which: Which, fault: FaultAt, made: CommitId) {
        let place = self.place(which).await;
        self.linked.plan(vec![fault]).await;
        let outcome = self.commit(&place).await;
        let outcome = outcome.unwrap_or_else(|error| panic!("{which:?}, {fault:?}: {error}"));
        assert_eq!(outcome.id, made, "{which:?}, {fault:?}");
        self.assert_committed(&place, made, fault);
        fs::remove_dir_all(&place.shadow).unwrap();
    }
}

fn at(way: Way, after: u64, fault: Fault) -> FaultAt {
    FaultAt { way, after, fault }
}

#[tokio::test(start_paused = true)]
async fn a_cut_in_any_item_costs_that_item_at_most() {
    let mut scene = Scene::new(large_model());
    for which in [Which::Whole, Which::Patch] {
        let (outcome, answers, clean) = scene.clean(which).await;
        assert!(clean > 4 * CHUNK, "{which:?}: {clean}");
        let items = (0..clean).step_by(STEP).map(|after| (Way::ToServer, after));
        // What the server says meanwhile.
        let answers = (0..answers).step_by(70).map(|after| (Way::ToClient, after));
        for (way, after) in items.chain(answers) {
            let fault = at(way, after, Fault::Cut);
            scene.through(which, fault, outcome.id).await;
            // A cut after the outcome has arrived is not noticed.
            let connections = scene.linked.network.connections();
            assert!(connections <= 2, "{which:?}, {fault:?}: {connections}");
            scene.assert_little_again(clean, (which, fault));
        }
    }
    scene.linked.assert_healthy();
}

#[tokio::test(start_paused = true)]
async fn other_faults_in_items_change_nothing() {
    let mut scene = Scene::new(large_model());
    for which in [Which::Whole, Which::Patch] {
        let (outcome, _, clean) = scene.clean(which).await;
        for fault in [Fault::Stall, Fault::HalfClose, Fault::Corrupt] {
            for after in (STEP as u64..clean).step_by(5 * STEP) {
                let fault = at(Way::ToServer, after, fault);
                scene.through(which, fault, outcome.id).await;
                if fault.fault != Fault::Corrupt {
                    scene.assert_little_again(clean, (which, fault));
                }
            }
        }
    }
    scene.linked.assert_healthy();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_found_again() {
    let mut scene = Scene::new(small_model());
    for which in [Which::Whole, Which::Patch] {
        let (outcome, clean, _) = scene.clean(which).await;
        for after in (clean.saturating_sub(400)..clean).step_by(7) {
            for fault in [Fault::Cut, Fault::HalfClose, Fault::Stall] {
                let fault = at(Way::ToClient, after, fault);
                scene.through(which, fault, outcome.id).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_in_the_middle_goes_on() {
    let mut scene = Scene::new(large_model());
    for which in [Which::Whole, Which::Patch] {
        let (outcome, to_client, to_server) = scene.clean(which).await;
        let items = (STEP as u64..to_server).step_by(4 * STEP);
        // A server that ends holds what it has read, as after a cut; one that is killed may lose what it had not yet written.
        let items = items.map(|after| (at(Way::ToServer, after, Fault::Cut), CHUNK));
        // The answer lost, and with it all that the server kept in memory, which may be everything before it was committed.
        let answers = [(300, to_server), (150, to_server), (40, 0), (10, 0)];
        let answers = answers.map(|(rest, again)| {
            let fault = at(Way::ToClient, to_client - rest, Fault::Cut);
            (fault, again)
        });
        for (fault, again) in items.chain(answers) {
            let place = scene.place(which).await;
            scene.linked.plan(vec![fault]).await;
            let remote = scene.linked.remote();
            let request = request_to(&place.repo, &place.branch, "over the wire");
            let checkpoint = Checkpoint::open(&place.checkpoint).unwrap();
            let silent = Arc::new(Silent);
            let committing = commit(remote, checkpoint, request, place.shadow.clone(), silent);
            let made = scene.linked.through_restart(committing).await;
            let made = made.unwrap_or_else(|error| panic!("{which:?}, {fault:?}: {error}"));
            assert_eq!(made.id, outcome.id);
            scene.assert_committed(&place, made.id, fault);
            let read = scene.linked.network.read_by_server();
            let most = to_server + again + 2 * ALLOWANCE;
            assert!(read <= most, "{which:?}, {fault:?}: {read} of {most}");
        }
    }
    scene.linked.assert_healthy();
}

/// Which of `clean` bytes have a bit flipped: many at the beginning and the end, where questions, answers and objects lie, and some
/// of the weights and files between, which are all alike.
fn flipped(clean: u64) -> impl Iterator<Item = u64> {
    let step = move |at: u64| {
        if at < 2000 || at + 1500 > clean {
            17
        } else {
            997
        }
    };
    (0..clean).filter(move |&at| at.is_multiple_of(step(at)))
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_anywhere_makes_no_other_version() {
    let mut scene = Scene::new(small_model());
    for which in [Which::Whole, Which::Patch] {
        let (outcome, to_client, to_server) = scene.clean(which).await;
        for (way, clean) in [(Way::ToServer, to_server), (Way::ToClient, to_client)] {
            for after in flipped(clean) {
                let fault = at(way, after, Fault::Corrupt);
                let place = scene.place(which).await;
                let before = scene.linked.store().repos().unwrap();
                scene.linked.plan(vec![fault]).await;
                let made = scene.commit(&place).await;
                match &made {
                    Ok(made) => assert_eq!(made.id, outcome.id, "{fault:?}"),
                    Err(
                        ClientError::Refused(_)
                        | ClientError::Protocol { .. }
                        | ClientError::Delivery { .. }
                        | ClientError::Unreachable { .. }
                        | ClientError::Stalled { .. },
                    ) => {}
                    Err(other) => panic!("{fault:?}: {other:?}"),
                }
                let mut repos = scene.linked.store().repos().unwrap();
                repos.retain(|repo| !before.contains(repo) && *repo != place.repo);
                assert!(repos.is_empty(), "{fault:?}: {repos:?} with {made:?}");
                let there = scene.linked.store().branch(&place.repo, &place.branch);
                let stands = there.ok().map(|record| record.commit);
                match stands {
                    Some(id) if id != scene.first || which == Which::Whole => {
                        scene.assert_committed(&place, outcome.id, fault);
                    }
                    _ => assert!(made.is_err(), "{fault:?}"),
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_committers_one_wins_and_the_other_is_told() {
    let mut scene = Scene::new(large_model());
    let one = scene.place(Which::Patch).await;
    let two = Place {
        branch: one.branch.clone(),
        checkpoint: scene.checkpoints[2].clone(),
        ..scene.place(Which::Patch).await
    };
    let (first, second) = tokio::join!(scene.commit(&one), scene.commit(&two));
    let (winner, made, told) = match (first, second) {
        (Ok(made), Err(told)) => (&one, made, told),
        (Err(told), Ok(made)) => (&two, made, told),
        other => panic!("{other:?}"),
    };
    let conflict = matches!(told, ClientError::Refused(Refusal::Conflict { .. }));
    assert!(conflict, "{told:?}");
    scene.assert_committed(winner, made.id, "two committers");
    // Told, it commits on top of the other's version.
    let loser = if winner.checkpoint == one.checkpoint {
        two
    } else {
        one
    };
    let loser = Place {
        versions: 3,
        ..loser
    };
    let again = scene.commit(&loser).await.unwrap();
    scene.assert_committed(&loser, again.id, "told");
}

/// Flip bytes in a file; with `quiet`, its times stay what they were, as far as that can be.
fn damage(path: &Path, quiet: bool) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let metadata = file.metadata().unwrap();
    for share in [2, 3, 5, 7] {
        let at = metadata.len() / share;
        file.write_all_at(&[0x5a, 0xa5, 0x11], at).unwrap();
    }
    if quiet {
        let times = fs::FileTimes::new().set_modified(metadata.modified().unwrap());
        file.set_times(times).unwrap();
    }
}

/// Make a shadow take damage for its own writing, as it does that of a disk.
fn pass_as_its_own(shadow: &Path) {
    let path = shadow.join(".deltaic/state.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for line in state["files"].as_array_mut().unwrap() {
        let metadata = fs::metadata(shadow.join(line["path"].as_str().unwrap())).unwrap();
        let ns = |seconds: i64, ns: i64| serde_json::Value::from(seconds * 1_000_000_000 + ns);
        line["stat"]["mtime_ns"] = ns(metadata.mtime(), metadata.mtime_nsec());
        line["stat"]["ctime_ns"] = ns(metadata.ctime(), metadata.ctime_nsec());
    }
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_damaged_shadow_is_noticed_and_the_commit_right() {
    for model in [small_model(), large_model()] {
        let mut scene = Scene::new(model);
        let (outcome, ..) = scene.clean(Which::Patch).await;
        for (quiet, unnoticed) in [(false, false), (true, false), (true, true)] {
            let place = scene.place(Which::Patch).await;
            damage(&place.shadow.join("model.safetensors"), quiet);
            if unnoticed {
                pass_as_its_own(&place.shadow);
            }
            let made = scene.commit(&place).await.unwrap();
            assert_eq!(made.id, outcome.id);
            scene.assert_committed(&place, made.id, (quiet, unnoticed));
            // The shadow is right again: the next commit sends a patch.
            scene.linked.plan(Vec::new()).await;
            let next = Place {
                checkpoint: scene.checkpoints[2].clone(),
                versions: 3,
                ..place
            };
            let made = scene.commit(&next).await.unwrap();
            scene.assert_committed(&next, made.id, "after damage");
            assert!(made.patch_bytes < made.full_bytes);
        }
        // A shadow that is gone.
        let place = scene.place(Which::Patch).await;
        fs::remove_dir_all(&place.shadow).unwrap();
        let made = scene.commit(&place).await.unwrap();
        scene.assert_committed(&place, made.id, "no shadow");
    }
}
