//! The kernel's counters along a host's receive path.

use std::{collections::BTreeMap, fs, io};

use crate::{
    lab::{Host, LabError},
    traffic::TrafficError,
};

/// Losses of a host's receive path so far, from `/proc/net`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Packets that did not fit into a CPU's backlog; machine-wide (`softnet_stat`).
    pub backlog_drops: u64,
    /// Number of times that the kernel stopped receiving with work undone; machine-wide.
    pub backlog_squeezed: u64,
    /// Datagrams that did not fit into a socket's receive buffer (`RcvbufErrors`).
    pub udp_receive_buffer_errors: u64,
    /// Datagrams for a port without a listener (`NoPorts`).
    pub udp_no_ports: u64,
    /// By device of the host.
    pub devices: BTreeMap<String, DeviceCounters>,
}

/// Packets carried and lost by one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    pub received_packets: u64,
    /// Packets lost in receiving.
    pub receive_drops: u64,
    /// Packets lost in sending. A veth device counts here what did not fit into the receive ring at its other
    /// end.
    pub send_drops: u64,
}

impl ReceiveCounters {
    /// Reads a host's counters.
    ///
    /// # Errors
    /// The host cannot be entered, or `/proc` lacks them.
    pub fn read(host: &Host) -> Result<Self, TrafficError> {
        host.run(read_here)
            .map_err(LabError::from)?
            .map_err(|source| TrafficError::ReceivePath {
                host: host.name().to_owned(),
                what: "its counters cannot be read".to_owned(),
                source,
            })
    }

    /// All counters by name, such as `udp_receive_buffer_errors` and `uplink_send_drops`.
    pub fn named(&self) -> Vec<(String, u64)> {
        let mut named = vec![
            ("backlog_drops".to_owned(), self.backlog_drops),
            ("backlog_squeezed".to_owned(), self.backlog_squeezed),
            (
                "udp_receive_buffer_errors".to_owned(),
                self.udp_receive_buffer_errors,
            ),
            ("udp_no_ports".to_owned(), self.udp_no_ports),
        ];
        for (name, device) in &self.devices {
            named.push((format!("{name}_received_packets"), device.received_packets));
            named.push((format!("{name}_receive_drops"), device.receive_drops));
            named.push((format!("{name}_send_drops"), device.send_drops));
        }
        named
    }
}

/// Those of the calling thread's namespace.
fn read_here() -> io::Result<ReceiveCounters> {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let mut counters = ReceiveCounters::default();
    counters.add_softnet(&read("softnet_stat")?);
    counters.add_snmp(&read("snmp")?);
    counters.add_devices(&read("dev")?);
    Ok(counters)
}

impl ReceiveCounters {
    /// One line per CPU, hexadecimal: processed, dropped, squeezed.
    fn add_softnet(&mut self, text: &str) {
        for line in text.lines() {
            let mut values = line
                .split_ascii_whitespace()
                .map(|value| u64::from_str_radix(value, 16).unwrap_or(0));
            self.backlog_drops += values.nth(1).unwrap_or(0);
            self.backlog_squeezed += values.next().unwrap_or(0);
        }
    }

    /// For each protocol a line of names and a line of values.
    fn add_snmp(&mut self, text: &str) {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
            return;
        };
        let pairs = names
            .split_ascii_whitespace()
            .zip(values.split_ascii_whitespace());
        for (name, value) in pairs {
            let value = value.parse().unwrap_or(0);
            match name {
                "RcvbufErrors" => self.udp_receive_buffer_errors = value,
                "NoPorts" => self.udp_no_ports = value,
                _ => {}
            }
        }
    }

    /// Two header lines; then name, colon, eight columns of receiving, eight of sending.
    fn add_devices(&mut self, text: &str) {
        for line in text.lines().skip(2) {
            let Some((name, columns)) = line.split_once(':') else {
                continue;
            };
            let columns: Vec<u64> = columns
                .split_ascii_whitespace()
                .map(|value| value.parse().unwrap_or(0))
                .collect();
            let at = |index: usize| columns.get(index).copied().unwrap_or(0);
            let device = DeviceCounters {
                received_packets: at(1),
                receive_drops: at(3),
                send_drops: at(11),
            };
            self.devices.insert(name.trim().to_owned(), device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let mut counters = ReceiveCounters::default();
        counters.add_softnet("0000ffff 00000010 00000002 00000000\n00000001 00000001 00000000 0\n");
        counters.add_snmp(
            "Ip: Forwarding DefaultTTL\nIp: 1 64\nUdp: InDatagrams NoPorts InErrors OutDatagrams \
             RcvbufErrors SndbufErrors\nUdp: 10 3 5 7 4 0\nUdpLite: InDatagrams NoPorts\n\
             UdpLite: 1 9\n",
        );
        counters.add_devices(
            "Inter-|   Receive\n face |bytes packets\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 \
             16\nuplink:100 20 0 1 0 0 0 0 200 30 0 77 0 0 0 0\n",
        );
        assert_eq!((counters.backlog_drops, counters.backlog_squeezed), (17, 2));
        assert_eq!(
            (counters.udp_receive_buffer_errors, counters.udp_no_ports),
            (4, 3)
        );
        let uplink = DeviceCounters {
            received_packets: 20,
            receive_drops: 1,
            send_drops: 77,
        };
        assert_eq!(counters.devices["uplink"], uplink);
        let named = counters.named();
        assert!(
            named.contains(&("uplink_send_drops".to_owned(), 77)),
            "{named:?}"
        );
    }

    #[test]
    fn damaged_lines_are_ignored() {
        let mut counters = ReceiveCounters::default();
        counters.add_softnet("\nzz\n");
        counters.add_snmp("Udp: RcvbufErrors\n");
        counters.add_devices("a\nb\nno colon\nx: 1\n");
        assert_eq!(counters.backlog_drops, 0);
        assert_eq!(counters.devices["x"], DeviceCounters::default());
    }
}
