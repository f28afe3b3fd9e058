//! Resource limits of the process.

use std::io;

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
