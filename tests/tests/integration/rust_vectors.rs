//! The vectors that this crate writes for the Python reference, in `format-spec/vectors/rust`: written again, they are
//! the same bytes, so a change of format or encoder does not go unnoticed.

use deltaic_format::ElementClass;
use deltaic_format::base::decode_base;
use deltaic_format::ids::{PatchId, TensorId};
use deltaic_format::patch::PatchHasher;
use deltaic_format::patch_set::PatchSetReader;
use deltaic_tests::places;
use deltaic_tests::rust_vectors::{self, FOLDER};
use deltaic_tests::vectors::{list, number, text};
use serde_json::Value;

fn folder() -> std::path::PathBuf {
    places::vectors().join(FOLDER)
}

fn manifest() -> Value {
    let bytes = std::fs::read(folder().join("manifest.json")).expect("the folder has a manifest");
    serde_json::from_slice(&bytes).expect("the manifest is JSON")
}

#[test]
fn written_again_they_are_the_same_bytes() {
    let written = rust_vectors::files();
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.iter().eq(written.keys()), "{names:?}");
    for (name, file) in written.into_iter().filter(|(_, file)| !file.holds_zstd) {
        let found = std::fs::read(folder().join(&name)).unwrap();
        assert!(
            found == file.bytes,
            "format-spec/vectors/{FOLDER}/{name} would be written differently now: if the format was meant to change, \
             change SPEC.md and run `cargo run --workspace --bin write-vectors`"
        );
    }
}

#[test]
fn they_decode_to_what_the_manifest_says() {
    let manifest = manifest();
    for set in list(&manifest["patch_sets"]) {
        let bytes = std::fs::read(folder().join(text(&set["file"]))).unwrap();
        let reader = PatchSetReader::new(&bytes).unwrap();
        let class = ElementClass::from_number("vector", number(&set["class"]) as u8).unwrap();
        assert_eq!(reader.class(), class);
        let members = list(&set["members"]);
        assert!(
            reader
                .members()
                .map(u64::from)
                .eq(members.iter().map(|m| number(&m["elements"])))
        );
        let all = reader.all().unwrap();
        for ((elements, changes), member) in reader.members().zip(&all).zip(members) {
            let ids = ["from", "to"].map(|key| text(&member[key]).parse::<TensorId>().unwrap());
            let mut hasher = PatchHasher::new(class, ids[0], ids[1], u64::from(elements));
            hasher.piece(0, changes);
            let id: PatchId = text(&member["patch_id"]).parse().unwrap();
            let whole = member["whole"].as_bool().unwrap();
            assert_eq!(hasher.finish() == id, whole, "{}", set["file"]);
        }
    }
    for base in list(&manifest["bases"]) {
        let bytes = std::fs::read(folder().join(text(&base["file"]))).unwrap();
        let (_, content) = decode_base(&bytes).unwrap();
        assert_eq!(TensorId::of(&content).to_string(), text(&base["id"]));
    }
}
