//! Vectors that the Rust crate writes for the Python reference to read: made-up tensors, and a real step.

use crate::checkpoints;
use crate::weights::{self, Density, Update};
use deltaic_format::ElementClass;
use deltaic_format::base::encode_base;
use deltaic_format::ids::TensorId;
use deltaic_format::patch::{Changes, Patch, piece_len};
use deltaic_format::patch_set::encode;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The folder, in that of the golden vectors.
pub const FOLDER: &str = "rust";

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorFile {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether another release of zstd may write other bytes that mean the same.
    pub holds_zstd: bool,
}

/// Every file by name.
pub fn files() -> BTreeMap<String, VectorFile> {
    let mut writer = Writer::default();
    made_up_sets(&mut writer);
    real_sets(&mut writer);
    bases(&mut writer);
    writer.finish()
}

#[derive(Default)]
struct Writer {
    files: BTreeMap<String, VectorFile>,
    patch_sets: Vec<Value>,
    bases: Vec<Value>,
}

impl Writer {
    fn put(&mut self, name: &str, bytes: Vec<u8>) {
        // A frame's magic number; the sets written here hold it by no other chance.
        let holds_zstd = bytes
            .windows(4)
            .any(|four| four == [0x28, 0xb5, 0x2f, 0xfd]);
        let file = VectorFile { bytes, holds_zstd };
        assert!(self.files.insert(name.to_owned(), file).is_none());
    }

    /// A set whose members are all pieces of `patches`.
    fn set(&mut self, name: &str, class: ElementClass, patches: &[Patch]) {
        let mut members: Vec<(u32, &Changes)> = Vec::new();
        let mut described = Vec::new();
        for patch in patches {
            for (piece, changes) in patch.pieces.iter().enumerate() {
                let elements = piece_len(patch.elements, piece as u64) as u32;
                members.push((elements, changes));
                described.push(json!({
                    "elements": elements,
                    "from": patch.from.to_string(),
                    "to": patch.to.to_string(),
                    "patch_id": patch.id().to_string(),
                    "piece": piece,
                    "whole": patch.pieces.len() == 1,
                }));
            }
        }
        let file = format!("{name}.dps");
        let encoded = encode(class, &members).expect("the members fit a set");
        self.put(&file, encoded.bytes);
        self.patch_sets
            .push(json!({"file": file, "class": class.number(), "members": described}));
    }

    fn base(&mut self, name: &str, class: ElementClass, content: &[u8]) {
        let file = format!("{name}.dbs");
        self.put(&file, encode_base(class, content));
        self.bases
            .push(json!({"file": file, "id": TensorId::of(content).to_string()}));
    }

    fn finish(mut self) -> BTreeMap<String, VectorFile> {
        let manifest = json!({"patch_sets": self.patch_sets, "bases": self.bases});
        let text = serde_json::to_string_pretty(&manifest).expect("a manifest is JSON");
        self.put("manifest.json", format!("{text}\n").into_bytes());
        self.files
    }
}

/// The patch of a made-up update.
fn patch(class: ElementClass, elements: u64, density: Density, update: Update, seed: u64) -> Patch {
    let old = weights::content(class, elements, seed);
    let new = weights::updated(class, &old, density, update, seed + 1);
    Patch::diff(class, &old, &new).expect("the contents have one length")
}

fn made_up_sets(writer: &mut Writer) {
    let tenth = Density::Share(0.1);
    for &class in ElementClass::ALL {
        let patches = [(300, tenth), (1, Density::All), (70, Density::Share(0.6))]
            .map(|(elements, density)| patch(class, elements, density, Update::Step, 10));
        writer.set(
            &format!("step-{}", class.name().to_lowercase()),
            class,
            &patches,
        );
    }
    let many: Vec<Patch> = (0..300)
        .map(|i| {
            patch(
                ElementClass::F8E4M3,
                64 + i % 3,
                Density::Share(0.02),
                Update::Step,
                i,
            )
        })
        .collect();
    writer.set("many-members", ElementClass::F8E4M3, &many);

    let class = ElementClass::BF16;
    let across = patch(class, (1 << 22) + 100, Density::Ends, Update::Step, 20);
    let inside = patch(class, 70_000, Density::Share(0.002), Update::Step, 21);
    writer.set(
        "two-pieces-and-padding",
        class,
        &[inside.clone(), across, inside],
    );
    let full = patch(ElementClass::U8, 65_536, Density::All, Update::Step, 22);
    writer.set("full-block", ElementClass::U8, &[full]);
    let dense = patch(
        ElementClass::I32,
        4000,
        Density::Share(0.4),
        Update::Step,
        23,
    );
    writer.set("dense-block", ElementClass::I32, &[dense]);
    let extremes = patch(ElementClass::U64, 50, tenth, Update::Extremes, 24);
    writer.set("extreme-shifts", ElementClass::U64, &[extremes]);
    let rewritten = patch(ElementClass::F32, 900, Density::All, Update::Rewrite, 25);
    writer.set("byte-planes", ElementClass::F32, &[rewritten]);
    let unchanged = patch(class, 5000, Density::None, Update::Step, 26);
    writer.set("no-changes", class, &[unchanged]);
}

/// The first step of the small policy.
fn real_sets(writer: &mut Writer) {
    let set = checkpoints::small();
    let [old, new] = [0, 1].map(|version: usize| {
        checkpoints::read_folder(&set.versions[version]).expect("the small policy is readable")
    });
    let patches: Vec<Patch> = (old.iter().zip(&new))
        .map(|(old, new)| {
            Patch::diff(new.spec.class, &old.content, &new.content)
                .expect("versions differ in bits")
        })
        .collect();
    writer.set("real-step", ElementClass::BF16, &patches);
    let norm = (old.iter())
        .find(|tensor| {
            tensor
                .spec
                .name
                .ends_with("layers.0.input_layernorm.weight")
        })
        .expect("the small policy has this tensor");
    writer.base("real-norm", norm.spec.class, &norm.content);
}

fn bases(writer: &mut Writer) {
    writer.base(
        "weights-bf16",
        ElementClass::BF16,
        &weights::bf16_weights(5000, 30),
    );
    writer.base(
        "zeros-f32",
        ElementClass::F32,
        &vec![0; 4 * ((1 << 18) + 1)],
    );
    writer.base("empty-u8", ElementClass::U8, &[]);
    for class in [ElementClass::F8E4M3, ElementClass::F64, ElementClass::I16] {
        let name = format!("content-{}", class.name().to_lowercase());
        writer.base(&name, class, &weights::content(class, 700, 31));
    }
}
