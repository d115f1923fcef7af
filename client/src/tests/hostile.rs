//! A source that sends anything else than what was asked for changes nothing.

use super::model::{Answer, History, Tamper};
use super::{assert_holds, error_of, pull};
use crate::ClientError;
use deltaic_format::ElementClass;
use deltaic_format::base::encode_base;
use deltaic_format::fetch::Span;
use deltaic_format::patch::Changes;
use deltaic_format::patch_set::{PatchSetReader, encode};
use std::fs;
use tempfile::tempdir;

/// Pull version 1 over version 0 with every delivery changed by `tamper`, and expect it to be refused.
#[track_caller]
fn refused(what: &str, answer: Answer, tamper: Tamper) {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    history.answer.set(answer);
    *history.tamper.borrow_mut() = Some(tamper);
    let error = error_of(pull(folder.path(), &history, 1));
    assert!(
        matches!(
            error,
            ClientError::Delivery { .. } | ClientError::Proof { .. }
        ),
        "{what}: {error}"
    );
    assert_holds(folder.path(), &history.versions[0]);
    assert_eq!(
        fs::read_dir(folder.path().join(".deltaic/staged"))
            .unwrap()
            .count(),
        0
    );
    *history.tamper.borrow_mut() = None;
    pull(folder.path(), &history, 1).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

/// Decode a patch set, change the changes of its first member, encode it again.
fn recode(bytes: &mut Vec<u8>, change: impl Fn(&mut Vec<(u32, i64)>)) {
    let reader = PatchSetReader::new(bytes).unwrap();
    let mut all = reader.all().unwrap();
    let mut pairs: Vec<_> = all[0].iter().collect();
    change(&mut pairs);
    all[0] = Changes::from_pairs(pairs).unwrap();
    let members: Vec<_> = reader.members().zip(&all).collect();
    *bytes = encode(reader.class(), &members).unwrap().bytes;
}

/// Encode another set for the first member.
fn first_only(
    members: &mut Vec<Span>,
    bytes: &mut Vec<u8>,
    class: Option<ElementClass>,
    len: Option<u32>,
) {
    let reader = PatchSetReader::new(bytes).unwrap();
    let changes = Changes::from_pairs([(0, 1)]).unwrap();
    let (class, len) = (
        class.unwrap_or(reader.class()),
        len.or(reader.members().next()).unwrap(),
    );
    *bytes = encode(class, &[(len, &changes)]).unwrap().bytes;
    members.truncate(1);
}

#[test]
fn patches_other_than_the_right_ones_are_refused() {
    let cases: Vec<(&str, Tamper)> = vec![
        (
            "a member too few",
            Box::new(|members, _| members.truncate(members.len() - 1)),
        ),
        (
            "a member too many",
            Box::new(|members, _| members.push(members[0])),
        ),
        ("no bytes", Box::new(|_, bytes| bytes.clear())),
        ("cut", Box::new(|_, bytes| bytes.truncate(bytes.len() - 1))),
        (
            "no such tensor",
            Box::new(|members, _| members[0].tensor = 1 << 40),
        ),
        (
            "no such span",
            Box::new(|members, _| members[0].first = u64::MAX),
        ),
        (
            "a tensor that is not wished",
            Box::new(|members, _| members[0].tensor = 0),
        ),
        (
            "a span twice",
            Box::new(|members, bytes| {
                let reader = PatchSetReader::new(bytes).unwrap();
                let (all, len) = (reader.all().unwrap(), reader.members().next().unwrap());
                *bytes = encode(reader.class(), &[(len, &all[0]), (len, &all[0])])
                    .unwrap()
                    .bytes;
                *members = vec![members[0], members[0]];
            }),
        ),
        (
            "another class",
            Box::new(|m, bytes| first_only(m, bytes, Some(ElementClass::I8), None)),
        ),
        (
            "another length",
            Box::new(|m, bytes| first_only(m, bytes, None, Some(1 << 22))),
        ),
        (
            "a shift more",
            Box::new(|_, bytes| recode(bytes, |pairs| pairs[0].1 += 2)),
        ),
        (
            "a change less",
            Box::new(|_, bytes| recode(bytes, |pairs| pairs.truncate(pairs.len() - 1))),
        ),
        ("no changes", Box::new(|_, bytes| recode(bytes, Vec::clear))),
        (
            "a shift out of range",
            Box::new(|_, bytes| {
                recode(bytes, |pairs| {
                    pairs[0].1 = if pairs[0].1 > 0 { -255 } else { 255 };
                });
            }),
        ),
    ];
    for (what, tamper) in cases {
        refused(what, Answer::Patches, tamper);
    }
}

#[test]
fn contents_other_than_the_right_ones_are_refused() {
    let cases: Vec<(&str, Tamper)> = vec![
        ("no bytes", Box::new(|_, bytes| bytes.clear())),
        ("cut", Box::new(|_, bytes| bytes.truncate(bytes.len() - 1))),
        (
            "another tensor's",
            Box::new(|members, _| members[0].tensor = 4),
        ),
        (
            "another span",
            Box::new(|members, _| members[0].first = 1 << 18),
        ),
        (
            "another content",
            Box::new(|_, bytes| *bytes = encode_base(ElementClass::BF16, &[0; 6000])),
        ),
        (
            "a huge length",
            Box::new(|_, bytes| bytes[11..19].copy_from_slice(&(1u64 << 47).to_le_bytes())),
        ),
        ("all of one class", Box::new(|_, bytes| bytes[9] = 5)),
    ];
    for (what, tamper) in cases {
        refused(what, Answer::Contents, tamper);
    }
}

#[test]
fn every_flipped_byte_of_a_delivery_is_refused_or_harmless() {
    for answer in [Answer::Patches, Answer::Contents] {
        let history = History::new(&super::model::example_trees(100));
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 0).unwrap();
        history.answer.set(answer);
        for at in 0..60 {
            *history.tamper.borrow_mut() = Some(Box::new(move |_, bytes| {
                let at = at * bytes.len() / 60;
                bytes[at] ^= 0x41;
            }));
            match pull(folder.path(), &history, 1) {
                Err(_) => assert_holds(folder.path(), &history.versions[0]),
                Ok(_) => assert_holds(folder.path(), &history.versions[1]),
            }
            *history.tamper.borrow_mut() = None;
            pull(folder.path(), &history, 0).unwrap();
        }
    }
}

/// The tree names each tensor's patch, so a first-parent pull takes no other one that happens to fit.
#[test]
fn a_patch_other_than_the_one_that_the_commit_names_is_refused() {
    let mut history = History::example();
    let version = &mut history.versions[1].snapshot;
    let listed = version
        .tree
        .tensors
        .iter_mut()
        .find_map(|t| t.patch.as_mut());
    listed.unwrap().0[0] ^= 1;
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let error = error_of(pull(folder.path(), &history, 1));
    assert!(
        error
            .to_string()
            .contains("not the one that the commit names"),
        "{error}"
    );
    assert_holds(folder.path(), &history.versions[0]);
}

#[test]
fn trees_whose_files_collide_are_refused() {
    use deltaic_format::name::TreePath;
    for path in ["model-1.safetensors", "sub", "model-1.safetensors/x"] {
        let mut history = History::example();
        history.versions[0].snapshot.tree.files[0].path = TreePath::new(path).unwrap();
        let folder = tempdir().unwrap();
        let error = error_of(pull(folder.path(), &history, 0));
        assert!(matches!(error, ClientError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn files_of_another_size_or_content_are_refused() {
    for change in [-1i64, 1] {
        let mut history = History::example();
        let entry = &mut history.versions[0].snapshot.tree.files[0];
        entry.size = entry.size.wrapping_add_signed(change);
        let folder = tempdir().unwrap();
        let error = error_of(pull(folder.path(), &history, 0));
        assert!(matches!(error, ClientError::Delivery { .. }), "{error}");
        assert!(super::files_in(folder.path()).is_empty());
    }
}
