//! Turns `proto/` into the messages of `wire::proto`.

use prost::Message as _;
use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const FILES: [&str; 5] = ["session", "versions", "transfer", "admin", "leases"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = FILES.map(|name| format!("proto/deltaic/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("deltaic.v1.bin"), descriptors.encode_to_vec())?;
    prost_build::Config::new()
        .bytes(["."])
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
