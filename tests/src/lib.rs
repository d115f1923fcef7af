//! The harness of Deltaic's tests, benchmarks and fuzz targets.
//!
//! | what a test needs | module |
//! |---|---|
//! | made-up contents and updates, the same every time | [`weights`] |
//! | generators for property tests | [`strategies`] |
//! | what SPEC.md says, written naively, to compare with | [`model`] |
//! | checkpoint folders: writing, reading, the real ones | [`checkpoints`] |
//! | decoding hostile bytes, shared with the fuzz targets | [`decoders`], [`mutations`] |
//! | golden vectors | [`vectors`] |
//! | how many bytes patches take | [`patch_sizes`] |
//! | the `deltaic` program, its server, and stores that it works on | [`program`], [`servers`], [`stores`] |
//! | the program as a server, and what goes on until it is stopped | [`servers`] |
//! | servers behind links that fail | [`network`] |
//! | where things lie | [`places`] |

pub mod checkpoints;
pub mod decoders;
pub mod model;
pub mod mutations;
pub mod network;
pub mod patch_sizes;
pub mod places;
pub mod program;
pub mod rust_vectors;
pub mod servers;
pub mod stores;
pub mod strategies;
pub mod vectors;
pub mod weights;
