//! Reading a file of bounded size.

use std::{io, path::Path};

use crate::{regular_file, report::ConfigError};

/// How large a kind of file may be, and what to try when it cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// Bytes; a longer file is refused.
    pub bytes_max: u64,
    /// What to try when the file does not exist.
    pub missing_hint: &'static str,
    /// What to try when the file is too long.
    pub too_long_hint: &'static str,
}

impl FileLimits {
    /// The text of the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, is not a regular file, is too long, or is not UTF-8.
    pub fn read(&self, path: &Path) -> Result<String, ConfigError> {
        let name = path.display().to_string();
        let bytes = match regular_file::read(path, self.bytes_max) {
            Ok(bytes) => bytes,
            Err(e) => return Err(self.unreadable(&name, &e)),
        };
        String::from_utf8(bytes).map_err(|e| {
            let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = valid.iter().filter(|b| **b == b'\n').count() + 1;
            ConfigError::of_file(
                &name,
                format!("line {line} is not UTF-8"),
                "save the file as UTF-8 text",
            )
        })
    }

    /// Refuses a text that is too long; `file` is what messages call it.
    ///
    /// # Errors
    /// It has more than `bytes_max` bytes.
    pub fn check(&self, text: &str, file: &str) -> Result<(), ConfigError> {
        match text.len() as u64 > self.bytes_max {
            true => Err(self.too_long(file)),
            false => Ok(()),
        }
    }

    fn unreadable(&self, file: &str, error: &io::Error) -> ConfigError {
        match error.kind() {
            io::ErrorKind::NotFound => {
                ConfigError::of_file(file, "no such file".to_owned(), self.missing_hint)
            }
            io::ErrorKind::FileTooLarge => self.too_long(file),
            _ if regular_file::is_refused(error) => {
                ConfigError::of_file(file, error.to_string(), "name a TOML file")
            }
            _ => ConfigError::of_file(
                file,
                format!("cannot be read: {error}"),
                "name a file that the user keiro runs as can read",
            ),
        }
    }

    fn too_long(&self, file: &str) -> ConfigError {
        let message = format!("longer than {} bytes", self.bytes_max);
        ConfigError::of_file(file, message, self.too_long_hint)
    }
}
