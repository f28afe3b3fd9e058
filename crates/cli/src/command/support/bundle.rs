//! The file of a bundle: texts in a compressed archive, bounded.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};

use crate::failure::Failure;

/// Bytes of one text; what is beyond is cut off. Ours: the answers of a gateway with a thousand applications.
pub(super) const ENTRY_BYTES_MAX: usize = 8 << 20;
/// Bytes of all. Ours.
const BYTES_MAX: usize = 64 << 20;

/// An archive that is being written; removed unless it is finished.
pub(super) struct Bundle {
    archive: Option<Builder<GzEncoder<File>>>,
    path: PathBuf,
    /// The directory that all texts are in.
    root: String,
    modified: u64,
    bytes: usize,
    /// The texts so far.
    pub(super) names: Vec<String>,
}

impl Bundle {
    /// A file that is not there yet, and that the user alone may read.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub(super) fn create(path: &Path, root: &str) -> Result<Self, Failure> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => Failure::new(format!("{} exists", path.display()))
                    .hint("name another file with --output, or remove this one"),
                _ => unwritable(path, &error),
            })?;
        let modified = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            archive: Some(Builder::new(GzEncoder::new(file, Compression::default()))),
            path: path.to_owned(),
            root: root.to_owned(),
            modified: modified.unwrap_or_default().as_secs(),
            bytes: 0,
            names: Vec::new(),
        })
    }

    /// Adds a text. What is too long is cut off, and says so.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        let room = BYTES_MAX.saturating_sub(self.bytes).min(ENTRY_BYTES_MAX);
        let shown = cut(text, room);
        self.write(name, &shown)
            .map_err(|error| unwritable(&self.path, &error))?;
        self.bytes += shown.len();
        self.names.push(name.to_owned());
        Ok(())
    }

    fn write(&mut self, name: &str, text: &str) -> io::Result<()> {
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.modified);
        let path = format!("{}/{name}", self.root);
        archive.append_data(&mut header, path, text.as_bytes())
    }

    /// Writes the end, down to the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let Some(archive) = self.archive.take() else {
            return Ok(());
        };
        let finished = archive.into_inner().and_then(GzEncoder::finish);
        let synced = finished.and_then(|file| file.sync_all());
        synced.map_err(|error| {
            let _ = fs::remove_file(&self.path);
            unwritable(&self.path, &error)
        })
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        // Half a bundle is of no use, and may be taken for a whole one.
        if self.archive.take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot write {}", path.display()))
        .because(error)
        .hint("name a file in a directory that you can write to with --output")
}

/// At most as many bytes, with a last line that says that it is not all.
fn cut(text: &str, bytes_max: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= bytes_max {
        return text.into();
    }
    let end = (0..=bytes_max)
        .rev()
        .find(|&end| text.is_char_boundary(end));
    let (shown, _) = text.split_at(end.unwrap_or(0));
    let left_out = text.len() - shown.len();
    format!("{shown}\n(keiro support left out {left_out} bytes)\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters_and_say_so() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("aéb", 2), "a\n(keiro support left out 3 bytes)\n");
    }

    #[test]
    fn a_bundle_replaces_no_file_and_half_a_one_does_not_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("b.tar.gz");
        let mut half = Bundle::create(&path, "b").unwrap();
        half.add("a.txt", "text").unwrap();
        assert!(Bundle::create(&path, "b").is_err() && path.exists());
        drop(half);
        assert!(!path.exists());
    }
}
