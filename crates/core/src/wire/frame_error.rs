//! What may be wrong with frames.

use thiserror::Error;

/// The frames of an authentic packet cannot be parsed: the peer is broken or another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A frame ends after the packet does.
    #[error("frame is cut off")]
    Truncated,
    /// A type below the range that may be skipped.
    #[error("unknown frame type")]
    UnknownType,
    /// A field has a value that it cannot have.
    #[error("field out of range")]
    Range,
}

/// A field that the packet may be too short for.
pub(super) fn field<T>(value: Option<T>) -> Result<T, FrameError> {
    value.ok_or(FrameError::Truncated)
}
