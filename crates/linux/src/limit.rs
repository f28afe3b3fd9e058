//! Resource limits of the process.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the number of descriptors that the process may open to what the system allows it.
pub fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Up to the hard limit needs no privilege.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Lets the process, and those that it starts from now on, open `count` descriptors at least.
///
/// # Errors
/// The system's, where that is more than it allows and the process is not privileged.
pub fn allow_open_files(count: u64) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= count {
        return Ok(());
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, count, hard.max(count))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_open_files();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
        allow_open_files(soft).unwrap();
        assert!(allow_open_files(u64::MAX - 1).is_err());
    }
}
