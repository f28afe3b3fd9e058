//! Resource limits of the process.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit of open descriptors to the hard limit.
pub fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Up to the hard limit needs no privilege.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Lets the process and its future children open at least `count` descriptors.
///
/// # Errors
/// The system's error, if that exceeds the hard limit and the process is not privileged.
pub fn allow_open_files(count: u64) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= count {
        return Ok(());
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, count, hard.max(count))?)
}

/// A descriptor was refused because nearly all that the process may open are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NearlyReached;

impl fmt::Display for NearlyReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the limit of open files is nearly reached, and the last are kept for the control socket; \
             raise it or open fewer connections",
        )
    }
}

impl std::error::Error for NearlyReached {}

/// Whether `error` says that descriptors have run out, or that only the reserve of [`outside_reserve`] is left.
pub fn is_reached(error: &io::Error) -> bool {
    let is_reserve = error
        .get_ref()
        .is_some_and(|inner| inner.is::<NearlyReached>());
    is_reserve || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Descriptors that the process may still open without those that [`outside_reserve`] keeps.
pub fn left_outside_reserve() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count());
    let outside = usize::try_from(first_reserved(limit)).unwrap_or(usize::MAX);
    outside.saturating_sub(open)
}

/// Passes a new descriptor on, unless it is one of the last that the process may open: those are kept for
/// what controls it. It is closed then. Whatever others can cause to be opened goes through here.
///
/// The kernel gives the lowest number that is free, so a high one says that nearly all are in use.
///
/// # Errors
/// It is one of the last, as [`is_reached`] says.
pub fn outside_reserve<F: AsFd>(descriptor: F) -> io::Result<F> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    match is_reserved(descriptor.as_fd().as_raw_fd(), soft) {
        false => Ok(descriptor),
        true => Err(io::Error::other(NearlyReached)),
    }
}

/// Descriptors that are kept, if the limit is not small. Ours: as many clients as the control socket serves,
/// and as much again for files and devices.
const RESERVED: u64 = 128;

fn is_reserved(number: i32, limit: u64) -> bool {
    u64::try_from(number).is_ok_and(|number| number >= first_reserved(limit))
}

fn first_reserved(limit: u64) -> u64 {
    limit - RESERVED.min(limit / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_reserved() {
        assert!(!is_reserved(895, 1024));
        assert!(is_reserved(896, 1024));
        assert!(!is_reserved(29, 40));
        assert!(is_reserved(30, 40));
        assert!(!is_reserved(1 << 20, u64::MAX));
        let file = std::fs::File::open("/dev/null").unwrap();
        outside_reserve(file).unwrap();
        assert!(is_reached(&io::Error::other(NearlyReached)));
        assert!(is_reached(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(!is_reached(&io::Error::other("something else")));
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_open_files();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
        allow_open_files(soft).unwrap();
        assert!(allow_open_files(u64::MAX - 1).is_err());
    }
}
