//! Whom a pull trusts: the server's sums, the commits' patches, or nothing but contents.

use super::model::{Answer, History, Tamper, example_trees, noise, tensor};
use super::{assert_holds, error_of, pull, pull_with};
use crate::{ClientError, PullOptions, Trust};
use deltaic_format::patch_set::PatchSetReader;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;

fn trusting(trust: Trust) -> PullOptions {
    PullOptions {
        trust,
        ..PullOptions::default()
    }
}

#[test]
fn whatever_is_trusted_every_version_is_reached_from_every_other() {
    let history = History::example();
    for (trust, answer) in [
        (Trust::Edges, Answer::Patches),
        (Trust::Edges, Answer::Contents),
        (Trust::Content, Answer::Patches),
    ] {
        history.answer.set(answer);
        let folder = tempdir().unwrap();
        for from in 0..5 {
            for to in 0..5 {
                pull_with(folder.path(), &history, from, &trusting(trust)).unwrap();
                assert_holds(folder.path(), &history.versions[from]);
                pull_with(folder.path(), &history, to, &trusting(trust)).unwrap();
                assert_holds(folder.path(), &history.versions[to]);
            }
        }
    }
}

#[test]
fn composed_edges_change_as_much_as_the_servers_patches() {
    let history = History::example();
    let folder = tempdir().unwrap();
    for (from, to) in [(0, 2), (2, 0), (0, 3), (3, 1)] {
        pull(folder.path(), &history, from).unwrap();
        let server = pull(folder.path(), &history, to).unwrap();
        pull(folder.path(), &history, from).unwrap();
        let edges = pull_with(folder.path(), &history, to, &trusting(Trust::Edges)).unwrap();
        assert_eq!(
            (edges.changed, edges.patched, edges.whole, edges.unchanged),
            (
                server.changed,
                server.patched,
                server.whole,
                server.unchanged
            )
        );
        assert!(edges.patched > 0);
        assert_holds(folder.path(), &history.versions[to]);
    }
}

/// What it prevents: a path on which a server's sum is taken for what the commits name.
#[test]
fn edges_other_than_those_that_the_commits_name_are_refused() {
    let mut history = History::example();
    let tensors = &mut history.versions[2].snapshot.tree.tensors;
    tensors.iter_mut().find_map(|t| t.patch.as_mut()).unwrap().0[0] ^= 1;
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let error = error_of(pull_with(
        folder.path(),
        &history,
        2,
        &trusting(Trust::Edges),
    ));
    assert!(
        error
            .to_string()
            .contains("not the one that the commit names"),
        "{error}"
    );
    assert_holds(folder.path(), &history.versions[0]);
    // The version between is looked up by its id, which such a change would change.
    let error = error_of(pull_with(
        folder.path(),
        &history,
        3,
        &trusting(Trust::Edges),
    ));
    assert!(
        error.to_string().contains("not what its id names"),
        "{error}"
    );
    pull(folder.path(), &history, 2).unwrap();
    assert_holds(folder.path(), &history.versions[2]);
}

#[test]
fn tampered_edges_are_refused_or_harmless() {
    let history = History::new(&example_trees(100));
    let folder = tempdir().unwrap();
    for at in 0..60 {
        pull(folder.path(), &history, 0).unwrap();
        let tamper: Tamper = Box::new(move |_, bytes| {
            let at = at * bytes.len() / 60;
            bytes[at] ^= 0x41;
        });
        *history.tamper.borrow_mut() = Some(tamper);
        let version = match pull_with(folder.path(), &history, 2, &trusting(Trust::Edges)) {
            Ok(_) => 2,
            Err(_) => 0,
        };
        *history.tamper.borrow_mut() = None;
        assert_holds(folder.path(), &history.versions[version]);
    }
}

/// What it prevents: silent damage beside what a patch touches, in place, where nothing but a full hash sees it.
#[test]
fn trusting_contents_alone_finds_what_patches_do_not_touch() {
    let trees = example_trees(70_000);
    let history = History::new(&trees[..2]);
    let folder = tempdir().unwrap();
    let damage = || {
        pull(folder.path(), &history, 0).unwrap();
        let path = folder.path().join("model-1.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let views = history.versions[0].snapshot.tensors();
        let big = views.iter().find(|view| view.spec.name == "big").unwrap();
        bytes[big.offset as usize + 1] ^= 1;
        fs::write(&path, bytes).unwrap();
        super::pass_as_ours(folder.path());
    };
    damage();
    let before = super::files_in(folder.path());
    let error = error_of(pull_with(
        folder.path(),
        &history,
        1,
        &trusting(Trust::Content),
    ));
    assert!(
        matches!(&error, ClientError::Proof { object, .. } if object.contains("big")),
        "{error}"
    );
    assert!(
        super::files_in(folder.path()) == before,
        "something was written"
    );
    pull(folder.path(), &history, 1).unwrap();
    assert!(super::files_in(folder.path()) != history.versions[1].files);
}

/// What it prevents: sums of many dense patches in memory, which are larger than the contents.
#[test]
fn what_has_mostly_changed_comes_whole() {
    let mut trees = vec![example_trees(100).remove(0)];
    let wide = tensor("wide", "U8", &[200_000], noise(40, 200_000));
    trees[0].weights[0].tensors.push(wide);
    for seed in 41..43 {
        let mut next = trees.last().unwrap().clone();
        *next.content("wide") = noise(seed, 200_000);
        trees.push(next);
    }
    let history = History::new(&trees);
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let patches = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&patches);
    *history.tamper.borrow_mut() = Some(Box::new(move |_, bytes| {
        let set = PatchSetReader::new(bytes).is_ok();
        count.fetch_add(usize::from(set), Ordering::Relaxed);
    }));
    let outcome = pull_with(folder.path(), &history, 2, &trusting(Trust::Edges)).unwrap();
    assert_eq!((outcome.patched, outcome.whole), (0, 1));
    // The second step was not asked for any more.
    assert_eq!(patches.load(Ordering::Relaxed), 1);
    assert_holds(folder.path(), &history.versions[2]);
}
