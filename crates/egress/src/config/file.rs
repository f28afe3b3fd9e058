//! Files as daemons read them, at the start and with every reload: regular ones, for nobody would know how long a pipe
//! is waited for, and of bounded length, for a device may never end.

use std::{
    fs::{self, File},
    io::{self, Read, Take},
    path::Path,
};

/// A file of at most so many MiB.
///
/// # Errors
/// It is something else, or cannot be read.
pub(super) fn open(path: &Path, mebibytes_max: u64) -> io::Result<Take<File>> {
    // Looked at first: opening a pipe would wait for who writes it.
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.len() > mebibytes_max << 20 {
        let bound = format!("it is larger than {mebibytes_max} MiB");
        return Err(io::Error::other(bound));
    }
    // It may grow meanwhile, and some say of themselves that they are empty.
    Ok(File::open(path)?.take(mebibytes_max << 20))
}
