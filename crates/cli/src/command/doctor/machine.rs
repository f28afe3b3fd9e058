//! The machine itself: the private key's file, `/dev/net/tun`, the clock.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
    time::{Duration, SystemTime},
};

use keiro_control::{
    Config,
    key::{KeyFileError, load_private_key},
};
use keiro_doctor::facts::{Machine, Tun};

/// Files of the state directory whose time is looked at. Ours.
const FILES_MAX: usize = 1000;

pub(super) fn look(config: &Config) -> Machine {
    Machine {
        tun: tun(),
        key_problem: key_problem(&config.gateway.private_key_file),
        clock_behind: clock_behind(config),
    }
}

/// What is the user's alone to read is no fault.
fn key_problem(file: &Path) -> Option<String> {
    match load_private_key(file) {
        Ok(_) => None,
        Err(KeyFileError::Unreadable { source, .. })
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

fn tun() -> Tun {
    let device = "/dev/net/tun";
    if !Path::new(device).exists() {
        return Tun::Missing;
    }
    let opened = File::options().read(true).write(true).open(device);
    match opened {
        // A device without a driver, or one that a container may not use.
        Err(error)
            if error
                .raw_os_error()
                .is_some_and(|number| [1, 6, 19].contains(&number)) =>
        {
            Tun::Refused
        }
        _ => Tun::Present,
    }
}

/// The file of the gateway's state that was written the longest after now. Configuration and key may be from another
/// machine.
fn clock_behind(config: &Config) -> Option<(String, Duration)> {
    let now = SystemTime::now();
    let state = fs::read_dir(&config.gateway.state_directory).ok()?;
    let ahead = |file: &Path| {
        let written = fs::metadata(file).ok()?.modified().ok()?;
        let ahead = written.duration_since(now).ok()?;
        Some((file.display().to_string(), ahead))
    };
    let state = state.flatten().take(FILES_MAX);
    let all = state.filter_map(|entry| ahead(&entry.path()));
    all.max_by_key(|(_, ahead)| *ahead)
}
