//! What the kernel drops in receiving because a buffer of its is full, system-wide.

use std::{
    fs::File,
    io::{self, Read, Seek},
};

/// The counters of this network namespace, and of the processors.
#[derive(Debug)]
pub struct ReceiveOverflows {
    udp: File,
    udp6: Option<File>,
    processors: Option<File>,
    text: String,
}

/// A longer file is not read to its end. Ours: a line of 200 bytes for each of 300 processors.
const FILE_BYTES_MAX: u64 = 1 << 16;

impl ReceiveOverflows {
    /// Opens the counters.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            udp: File::open("/proc/net/snmp")?,
            udp6: File::open("/proc/net/snmp6").ok(),
            processors: File::open("/proc/net/softnet_stat").ok(),
            text: String::new(),
        })
    }

    /// Datagrams that full sockets dropped, whosever they were, and packets that full backlogs of
    /// processors dropped, since the system or the namespace began.
    ///
    /// # Errors
    /// A counter cannot be read.
    pub fn read(&mut self) -> io::Result<u64> {
        let text = &mut self.text;
        reread(&mut self.udp, text)?;
        let mut total = udp_overflows(text);
        if let Some(udp6) = &mut self.udp6 {
            reread(udp6, text)?;
            total = total.saturating_add(udp6_overflows(text));
        }
        if let Some(processors) = &mut self.processors {
            reread(processors, text)?;
            total = total.saturating_add(backlog_overflows(text));
        }
        Ok(total)
    }
}

fn reread(file: &mut File, text: &mut String) -> io::Result<()> {
    text.clear();
    file.rewind()?;
    file.take(FILE_BYTES_MAX).read_to_string(text)?;
    Ok(())
}

/// `/proc/net/snmp`: a line of names and a line of numbers for each protocol.
fn udp_overflows(text: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let place = names.split(' ').position(|name| name == "RcvbufErrors");
    let value = place.and_then(|place| values.split(' ').nth(place));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// `/proc/net/snmp6`: a name and a number a line.
fn udp6_overflows(text: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with("Udp6RcvbufErrors"));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// `/proc/net/softnet_stat`: a line of hexadecimal numbers a processor, the second what it dropped.
fn backlog_overflows(text: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let snmp = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors \
                    SndbufErrors\nUdp: 10 20 30 40 57 60\n";
        assert_eq!(udp_overflows(snmp), 57);
        assert_eq!(
            udp6_overflows("Udp6InErrors \t3\nUdp6RcvbufErrors   \t12\n"),
            12
        );
        assert_eq!(backlog_overflows("0001 0000000a 0\n0002 00000001 0\n"), 11);
        for strange in ["", "Udp: RcvbufErrors\n", "Udp: x\nUdp: y\n", "zz\n"] {
            assert_eq!(udp_overflows(strange), 0);
            assert_eq!(udp6_overflows(strange), 0);
            assert_eq!(backlog_overflows(strange), 0);
        }
    }

    #[test]
    fn this_machines_counters_are_read_again_and_again() {
        let mut overflows = ReceiveOverflows::open().unwrap();
        let first = overflows.read().unwrap();
        assert!(overflows.read().unwrap() >= first);
    }
}
