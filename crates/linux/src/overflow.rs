//! System-wide counters of received packets that were dropped because a buffer was full.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The counters of this network namespace, and of the processors.
#[derive(Debug)]
pub struct ReceiveOverflows {
    udp: File,
    udp6: Option<File>,
    processors: Option<File>,
    rings: Rings,
    text: String,
}

/// Maximum length of a file that is read. Ours: a line of 200 bytes for each of 300 processors.
const FILE_BYTES_MAX: u64 = 1 << 16;

impl ReceiveOverflows {
    /// Opens the counters.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            udp: File::open("/proc/net/snmp")?,
            udp6: File::open("/proc/net/snmp6").ok(),
            processors: File::open("/proc/net/softnet_stat").ok(),
            rings: Rings::below(Path::new("/sys/class/net")),
            text: String::new(),
        })
    }

    /// Datagrams dropped by full sockets of any process, and packets dropped by full backlogs of processors,
    /// since the start of the system or the namespace; plus packets dropped by full rings of network cards
    /// since the counters were opened.
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
        Ok(total.saturating_add(self.rings.read(Instant::now(), text)))
    }
}

/// The network cards' counters. Devices without hardware have no ring with a driver's counter.
///
/// Reads files instead of netlink, which waits for the lock of all interfaces and routes.
#[derive(Debug)]
struct Rings {
    directory: PathBuf,
    cards: BTreeMap<PathBuf, Card>,
    /// When cards are searched again.
    look_at: Instant,
    /// Drops of all cards since they were found, including removed ones.
    total: u64,
}

#[derive(Debug)]
struct Card {
    counters: Vec<Counter>,
}

#[derive(Debug)]
struct Counter {
    file: File,
    /// A reloaded driver begins at zero.
    seen: Option<u64>,
}

/// Counters in which drivers count packets that found the ring full (`rtnl_link_stats64`).
const RING_COUNTERS: [&str; 2] = ["rx_missed_errors", "rx_fifo_errors"];

/// Maximum of cards. Ours.
const CARDS_MAX: usize = 16;

/// Period of searching for new cards. Ours.
const LOOK_EVERY: Duration = Duration::from_secs(30);

impl Rings {
    /// Cards of the interfaces in `directory`, which is like `/sys/class/net`.
    fn below(directory: &Path) -> Self {
        let mut rings = Self {
            directory: directory.to_owned(),
            cards: BTreeMap::new(),
            look_at: Instant::now(),
            total: 0,
        };
        rings.read(rings.look_at, &mut String::new());
        rings
    }

    fn read(&mut self, now: Instant, text: &mut String) -> u64 {
        if now >= self.look_at {
            self.look();
            self.look_at = now + LOOK_EVERY;
        }
        let total = &mut self.total;
        // Reading a removed card fails; it is searched again.
        self.cards.retain(|_, card| {
            let mut counters = card.counters.iter_mut();
            counters.all(|counter| match counter.grown(text) {
                Ok(grown) => {
                    *total = total.saturating_add(grown);
                    true
                }
                Err(_) => false,
            })
        });
        self.total
    }

    fn look(&mut self) {
        let Ok(interfaces) = self.directory.read_dir() else {
            return;
        };
        for interface in interfaces.flatten().map(|entry| entry.path()) {
            let is_new = !self.cards.contains_key(&interface);
            if is_new && self.cards.len() < CARDS_MAX && interface.join("device").exists() {
                let open = |name: &&str| {
                    let file = File::open(interface.join("statistics").join(name)).ok()?;
                    Some(Counter { file, seen: None })
                };
                let counters = RING_COUNTERS.iter().filter_map(open).collect();
                self.cards.insert(interface, Card { counters });
            }
        }
    }
}

impl Counter {
    /// Increase since the last reading; zero at the first one.
    fn grown(&mut self, text: &mut String) -> io::Result<u64> {
        reread(&mut self.file, text)?;
        let value = text.trim().parse().unwrap_or(0);
        let seen = self.seen.replace(value).unwrap_or(value);
        Ok(value.saturating_sub(seen))
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

/// `/proc/net/snmp6`: a name and a number per line.
fn udp6_overflows(text: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with("Udp6RcvbufErrors"));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// `/proc/net/softnet_stat`: a line of hexadecimal numbers per processor; the second number is its drops.
fn backlog_overflows(text: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn network_cards_are_counted_from_where_they_were_found_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let statistics = |interface: &str| directory.path().join(interface).join("statistics");
        let set = |interface: &str, counter: &str, value: &str| {
            fs::create_dir_all(statistics(interface)).unwrap();
            fs::write(statistics(interface).join(counter), value).unwrap();
        };
        set("eth0", "rx_missed_errors", "1000\n");
        set("eth0", "rx_fifo_errors", "5\n");
        fs::create_dir(directory.path().join("eth0/device")).unwrap();
        set("veth0", "rx_missed_errors", "7\n");
        let mut rings = Rings::below(directory.path());
        let begun = rings.look_at;
        let read = |rings: &mut Rings, at| rings.read(at, &mut String::new());
        assert_eq!(read(&mut rings, begun), 0);
        set("eth0", "rx_missed_errors", "1003\n");
        set("eth0", "rx_fifo_errors", "6\n");
        set("veth0", "rx_missed_errors", "70\n");
        assert_eq!(read(&mut rings, begun), 4);
        // Reloaded, plugged in, or invalid.
        set("eth0", "rx_missed_errors", "2\n");
        set("eth0", "rx_fifo_errors", "many");
        set("eth1", "rx_missed_errors", "50\n");
        fs::create_dir(directory.path().join("eth1/device")).unwrap();
        assert_eq!(read(&mut rings, begun + LOOK_EVERY), 4);
        set("eth0", "rx_missed_errors", "4\n");
        set("eth1", "rx_missed_errors", "51\n");
        assert_eq!(read(&mut rings, begun + LOOK_EVERY), 7);
        fs::remove_dir_all(directory.path()).unwrap();
        assert_eq!(read(&mut rings, begun + LOOK_EVERY * 2), 7);
    }

    #[test]
    fn this_machines_counters_are_read_again_and_again() {
        let mut overflows = ReceiveOverflows::open().unwrap();
        let first = overflows.read().unwrap();
        assert!(overflows.read().unwrap() >= first);
    }
}
