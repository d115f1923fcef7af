//! Writes `format-spec/vectors/rust`, the same bytes every time.

use deltaic_tests::{places, rust_vectors};
use std::{fs, io};

fn main() -> io::Result<()> {
    let folder = places::vectors().join(rust_vectors::FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for (name, file) in rust_vectors::files() {
        fs::write(folder.join(name), file.bytes)?;
    }
    Ok(())
}
