//! Makes the servers of the services in `format-spec/proto`; their messages are those of `deltaic_format::wire::proto`.

use std::error::Error;

const PROTO: &str = "../format-spec/proto";
const FILES: [&str; 5] = ["session", "versions", "transfer", "admin", "leases"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = FILES.map(|name| format!("{PROTO}/deltaic/v1/{name}.proto"));
    tonic_prost_build::configure()
        .build_client(false)
        .codec_path("crate::serve::codec::BoundedCodec")
        .extern_path(".deltaic.v1", "::deltaic_format::wire::proto")
        .compile_fds(protox::compile(files, [PROTO])?)?;
    Ok(())
}
