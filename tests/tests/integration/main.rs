//! The integration tests, one module per subject.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are tests too, which clippy does not see"
)]

mod allocations;
mod bad_input;
mod bases;
mod codings;
mod composition;
mod crashes;
mod dependencies;
mod figures;
mod forgotten_files;
mod full_disk;
mod golden_vectors;
mod hostile_bytes;
mod made_up_sets;
mod main_job;
mod proofs;
mod rust_vectors;
mod safetensors_headers;
mod small_policy;
