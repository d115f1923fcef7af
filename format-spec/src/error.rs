//! The one error type of the formats.

/// What is wrong with bytes or values that should have followed SPEC.md.
///
/// `what` names the kind of object (for example `"patch set"`), so that a caller can say which one failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes do not begin with the magic of this format.
    #[error("this is no {what}: its first bytes are not the {what} magic")]
    Magic {
        /// Kind of object.
        what: &'static str,
    },
    /// A version, coding, layout or code that this build does not know.
    #[error("{what}: unknown {field} {found}; this build reads {supported}")]
    Unsupported {
        /// Kind of object.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The values that are known, in words.
        supported: &'static str,
    },
    /// The bytes end before the object does.
    #[error("{what}: truncated, {needed} more bytes expected")]
    Truncated {
        /// Kind of object.
        what: &'static str,
        /// How many bytes are missing at least.
        needed: u64,
    },
    /// Bytes are left after the object's end.
    #[error("{what}: {bytes} bytes too many after its end")]
    Trailing {
        /// Kind of object.
        what: &'static str,
        /// How many are left.
        bytes: u64,
    },
    /// A declared size is over its cap.
    #[error("{what}: {field} is {found}, more than the limit of {limit}")]
    Limit {
        /// Kind of object.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Its cap.
        limit: u64,
    },
    /// The bytes changed on their way.
    #[error("{what}: it does not have its checksum")]
    Checksum {
        /// Kind of object.
        what: &'static str,
    },
    /// Any other rule of SPEC.md that does not hold.
    #[error("{what}: {why}")]
    Invalid {
        /// Kind of object.
        what: &'static str,
        /// The broken rule.
        why: String,
    },
    /// A change beyond the end of the tensor, or of the bytes it is applied to.
    #[error("patch: element {element} is past the end, there are {elements}")]
    OutOfBounds {
        /// Index of the element.
        element: u64,
        /// Number of elements.
        elements: u64,
    },
    /// `ord + shift` leaves the range of the element class.
    #[error("patch: the shift of element {element} leaves the range of its type")]
    ShiftOutOfRange {
        /// Index of the element, within its piece.
        element: u64,
    },
}

impl FormatError {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid {
            what,
            why: why.into(),
        }
    }
}

/// Result of reading or making a format object.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;
