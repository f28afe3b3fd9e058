//! CPU time and memory of a process, from `/proc`.

use std::fs;

use anyhow::Context;

/// CPU time of a process so far, user and system, in s.
pub(super) fn cpu_seconds(process: i32) -> anyhow::Result<f64> {
    let file = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    ticks(&stat)
        .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
        .with_context(|| format!("{file} has no times"))
}

/// Peak resident memory of a process, in MB.
pub(super) fn memory_max(process: i32) -> anyhow::Result<f64> {
    let file = format!("/proc/{process}/status");
    let status = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kibibytes
        .map(|kibibytes| kibibytes * 1024.0 / 1e6)
        .with_context(|| format!("{file} has no VmHWM"))
}

/// Fields 14 and 15 of `proc_pid_stat(5)`; the second field is a name that may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

/// `USER_HZ`: 100 on every architecture that Keiro is built for (`proc_pid_stat(5)`).
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 250 130 0 0 20 0 3 0 5 6 7";
        assert_eq!(ticks(stat), Some(380));
        assert_eq!(ticks("7 (a) S 1 7"), None);
    }

    #[test]
    fn a_process_has_used_cpu_time() {
        let own = cpu_seconds(std::process::id() as i32).unwrap();
        assert!((0.0..3600.0).contains(&own), "{own} s");
    }

    #[test]
    fn a_process_has_used_memory() {
        let own = memory_max(std::process::id() as i32).unwrap();
        assert!((0.1..1e6).contains(&own), "{own} MB");
    }
}
