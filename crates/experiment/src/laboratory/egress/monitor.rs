//! Times of route changes in a host's kernel, from `ip monitor`.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use keiro_lab::{Lab, Process};
use keiro_linux::clock;

/// Watches one host's routes; ended when dropped.
pub(in crate::laboratory) struct Monitor {
    process: Process,
    reader: Option<JoinHandle<()>>,
    lines: Lines,
}

/// CLOCK_MONOTONIC in ns when the line was read.
type Lines = Arc<Mutex<Vec<(u64, String)>>>;

/// A change of a route.
#[derive(Clone, Copy, Debug)]
pub(in crate::laboratory) struct RouteChange<'a> {
    pub(in crate::laboratory) prefix: &'a str,
    /// `None` is the main table.
    pub(in crate::laboratory) table: Option<u32>,
    pub(in crate::laboratory) removed: bool,
    /// Further text that the line must contain, such as a next hop; empty matches any line.
    pub(in crate::laboratory) with: &'a str,
}

impl Monitor {
    pub(in crate::laboratory) fn start(lab: &Lab, host: &str) -> anyhow::Result<Self> {
        let of_host = lab.host(host)?;
        let mut command = of_host.command("ip");
        command.args(["-6", "monitor", "route"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = of_host.spawn(command)?;
        let out = process.take_stdout().context("its output is piped")?;
        let lines = Lines::default();
        let noted = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut all = noted.lock().unwrap_or_else(PoisonError::into_inner);
                all.push((clock::monotonic_nanos(), line));
            }
        });
        Ok(Self {
            process,
            reader: Some(reader),
            lines,
        })
    }

    /// The time of the first such change since `from_ns`; waits for it until `deadline`.
    pub(in crate::laboratory) fn wait(
        &self,
        expected: &RouteChange<'_>,
        from_ns: u64,
        deadline: Instant,
    ) -> anyhow::Result<u64> {
        loop {
            if let Some(at) = self.find(expected, from_ns) {
                return Ok(at);
            }
            if Instant::now() >= deadline {
                let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
                bail!(
                    "the kernel's routes did not change as expected: {expected:?}; the last changes: {last:?}"
                );
            }
            thread::sleep(LOOK_STEP);
        }
    }

    fn find(&self, expected: &RouteChange<'_>, from_ns: u64) -> Option<u64> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut since = lines.iter().filter(|(at, _)| *at >= from_ns);
        let (at, _) = since.find(|(_, line)| expected.is(line))?;
        Some(*at)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // A process that does not end is killed with the laboratory.
        let _ = self.process.end(Duration::from_secs(1));
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl RouteChange<'_> {
    /// Parses `[Deleted] PREFIX … [table N] …`.
    fn is(&self, line: &str) -> bool {
        let rest = line.strip_prefix("Deleted ");
        let removed = rest.is_some();
        let mut words = rest.unwrap_or(line).split_whitespace();
        if removed != self.removed || words.next() != Some(self.prefix) {
            return false;
        }
        let words: Vec<&str> = words.collect();
        let table = words.iter().position(|word| *word == "table");
        let table = table.and_then(|place| words.get(place + 1)?.parse().ok());
        table == self.table && (self.with.is_empty() || words.contains(&self.with))
    }
}

/// Period of checking the log. The times in it are exact, because each line is stamped when it is read.
const LOOK_STEP: Duration = Duration::from_millis(1);
const LINES_SHOWN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_by_prefix_table_and_next_hop() {
        let line = "2001:db8:c1::/48 nhid 7600000  encap seg6 mode encap.red segs 1 [ 2001:db8::a ] \
                    dev s1 table 7600 proto 76 metric 1024 pref medium";
        let mut expected = RouteChange {
            prefix: "2001:db8:c1::/48",
            table: Some(7600),
            removed: false,
            with: "",
        };
        assert!(expected.is(line));
        assert!(!expected.is(&format!("Deleted {line}")));
        expected.removed = true;
        assert!(expected.is(&format!("Deleted {line}")));
        expected.table = None;
        assert!(!expected.is(&format!("Deleted {line}")));
        let main = "2001:db8:c1::/48 nhid 7 via 2001:db8:a:1::1 dev s1 proto 76 metric 1024";
        (expected.removed, expected.with) = (false, "2001:db8:a:1::1");
        assert!(expected.is(main));
        expected.with = "2001:db8:a:1::";
        assert!(!expected.is(main));
    }
}
