//! What becomes of the privileges of the process and its threads.

use std::io;

use keiro_linux::privilege;

/// What becomes of the privileges that the process started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privileges {
    /// They stay as they are.
    Kept,
    /// Each thread keeps only what it uses.
    Reduced,
}

impl Privileges {
    /// Gives up all privileges of the calling thread if they are to be reduced.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn drop_in_thread(self) -> io::Result<()> {
        match self {
            Self::Kept => Ok(()),
            Self::Reduced => privilege::reduce_thread(&[]).map(drop),
        }
    }
}
