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
mod cut_fetches;
mod cut_pulls;
mod cut_uploads;
mod dependencies;
mod every_command;
mod figures;
mod forgotten_files;
mod full_disk;
mod golden_vectors;
mod hostile_answers;
mod hostile_bytes;
mod hostile_servers;
mod interrupts;
mod killed_peers;
mod made_up_sets;
mod main_job;
mod memory;
mod other_protocols;
mod over_a_server;
mod proofs;
mod rust_vectors;
mod safetensors_headers;
mod settings;
mod small_policy;
mod watching;

use deltaic_tests::program::Program;
use deltaic_tests::stores::{Access, ScratchStore};

/// The program as cargo built it for these tests.
fn program() -> Program {
    Program::at(env!("CARGO_BIN_EXE_deltaic-under-test"))
}

/// An empty store.
fn scratch_store() -> ScratchStore {
    ScratchStore::new(program())
}

/// Run a test on an empty store that the program opens, and on one that a server has open and the program talks to:
/// what users see is the same.
fn each_way(test: impl Fn(&ScratchStore)) {
    for access in [Access::Folder, Access::Server] {
        test(&ScratchStore::with_access(program(), access));
    }
}
