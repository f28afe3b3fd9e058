//! Socket files, removed when the gateway stops or fails to start.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Socket files that are removed when the gateway stops or does not come to start.
#[derive(Default)]
pub(crate) struct SocketFiles(Vec<PathBuf>);

impl SocketFiles {
    /// Removes the file at `path` when this is dropped.
    pub(crate) fn add(&mut self, path: &Path) {
        self.0.push(path.to_owned());
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(PathBuf::as_path)
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        for file in &self.0 {
            if let Err(error) = std::fs::remove_file(file)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(file = %file.display(), %error, "cannot remove the socket");
            }
        }
    }
}
