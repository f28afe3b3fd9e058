//! What `keiro join` and `keiro init --hub` have changed at this machine, kept beside the configuration so that
//! `keiro leave` takes it back.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use keiro_doctor::openings::Opening;
use keiro_linux::privilege::is_trusted;
use serde::{Deserialize, Serialize};

use super::installed_files::{unwritable, write_whole};
use crate::failure::Failure;

/// The file's name.
const FILE: &str = "changes.json";
/// Bytes of it; more are refused. Ours: a thousand times what it has.
const BYTES_MAX: u64 = 1 << 20;

/// Changes of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The membership of a branch; `None`: it is a hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) joined: Option<Joined>,
    /// In the order in which they were made.
    #[serde(default)]
    pub(super) openings: Vec<Opening>,
}

/// What `keiro join` has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Joined {
    pub(super) hub: String,
    /// The name that the network has for this machine.
    pub(super) site: String,
    /// Without the configuration.
    pub(super) files: Vec<PathBuf>,
    /// The configuration as it was written.
    pub(super) configuration: String,
    pub(super) settings: Vec<ChangedSetting>,
}

/// A setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChangedSetting {
    /// Below `/proc/sys`.
    pub(super) file: PathBuf,
    pub(super) before: String,
    pub(super) after: String,
}

impl Record {
    /// The file for the configuration at this place.
    pub(super) fn file(configuration: &Path) -> PathBuf {
        configuration.with_file_name(FILE)
    }

    /// Writes it, in the place of an older one.
    pub(super) fn write(&self, file: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        write_whole(file, text.as_bytes(), true).map_err(|error| unwritable(file, &error))
    }

    /// What was recorded; `None`: nothing.
    ///
    /// # Errors
    /// It cannot be read, or others than root may have written it: what it says is done as root.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, Failure> {
        let failed =
            |why: String| Failure::new(format!("cannot use {}", file.display())).because(why);
        let metadata = match fs::symlink_metadata(file) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        const OTHERS_WRITE: u32 = 0o022;
        let is_safe = metadata.is_file()
            && is_trusted(metadata.uid())
            && metadata.permissions().mode() & OTHERS_WRITE == 0;
        if !is_safe {
            return Err(failed(
                "it is not a file that only root may change".to_owned(),
            ));
        }
        if metadata.len() > BYTES_MAX {
            return Err(failed(format!("it has more than {BYTES_MAX} bytes")));
        }
        let text = fs::read(file).map_err(|error| failed(error.to_string()))?;
        let record: Self =
            serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        match record.openings.iter().all(Opening::is_sound) {
            true => Ok(Some(record)),
            false => Err(failed("it has openings that Keiro has not made".to_owned())),
        }
    }
}

impl ChangedSetting {
    /// Puts back what was there before, unless it was changed since.
    pub(super) fn put_back(&self) -> io::Result<()> {
        let is_setting = self.file.starts_with("/proc/sys/net")
            && self.file.components().all(|part| part.as_os_str() != "..");
        let is_ours = || fs::read_to_string(&self.file).is_ok_and(|now| now.trim() == self.after);
        match is_setting && is_ours() {
            true => fs::write(&self.file, &self.before),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_have_written_is_not_done() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        let read = || Record::read(&file).map_err(|failure| failure.message("keiro").to_string());
        assert_eq!(read(), Ok(None));
        let record = Record {
            joined: None,
            openings: vec![Opening::UfwPort { port: 7600 }],
        };
        record.write(&file).unwrap();
        assert_eq!(read(), Ok(Some(record)));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read().unwrap_err().contains("only root may change"));
        for (text, part) in [
            (
                r#"{"openings": [{"by": "ufw_route", "incoming": "-x", "outgoing": "a b"}]}"#,
                "not made",
            ),
            ("{", "EOF"),
        ] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            let error = read().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_settings_of_the_network_are_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("setting");
        fs::write(&file, "1").unwrap();
        let changed = ChangedSetting {
            file: file.clone(),
            before: "0".to_owned(),
            after: "1".to_owned(),
        };
        changed.put_back().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
    }
}
