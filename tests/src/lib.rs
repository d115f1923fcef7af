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
//! | links that fail | [`network`] |
//! | servers that lie, and a store that hostile peers are let loose on | [`liars`], [`scenes`] |
//! | servers behind such links, in this process | [`linked`] |
//! | peers of another age | [`rewriting`] |
//! | where things lie | [`places`] |

pub mod checkpoints;
pub mod decoders;
pub mod liars;
pub mod linked;
pub mod model;
pub mod mutations;
pub mod network;
pub mod patch_sizes;
pub mod places;
pub mod program;
pub mod rewriting;
pub mod rust_vectors;
pub mod scenes;
pub mod servers;
pub mod stores;
pub mod strategies;
pub mod vectors;
pub mod weights;
