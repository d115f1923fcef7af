//! The formats of Deltaic (SPEC.md): ids, element classes and shifts, patches and their codings, bases,
//! moments, objects, safetensors headers.
//!
//! No I/O, no async, no store: bytes in, values out, and back. Where to look:
//!
//! | question | module |
//! |---|---|
//! | how is a patch made, composed, applied? | [`patch`] |
//! | how is it encoded? | [`patch_set`] |
//! | how is a whole tensor encoded? | [`base`] |
//! | how is a patch proven? | [`Moments`], [`patch::Touched`] |
//! | what is hashed? | [`ids`], [`object`] |

pub mod answers;
pub mod base;
mod bits;
pub mod bytes;
mod dtype;
mod error;
pub mod fetch;
pub mod ids;
mod moments;
pub mod name;
pub mod object;
mod ord;
pub mod patch;
pub mod patch_set;
pub mod progress;
pub mod refusal;
pub mod revision;
pub mod safetensors;
pub mod slice;
pub mod upload;
mod version;
pub mod wire;
mod zstd_frame;

pub use dtype::{Dtype, ElementClass, Order};
pub use error::{FormatError, Result};
pub use moments::Moments;
pub use ord::ord;
pub use version::Version;
