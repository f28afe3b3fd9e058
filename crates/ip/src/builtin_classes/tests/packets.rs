//! Packets for the classifier.

use std::net::IpAddr;

use crate::{Header, Ports, protocol};

/// Two addresses, ports and a protocol, seen from the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) client: IpAddr,
    pub(super) server: IpAddr,
    pub(super) protocol: u8,
    pub(super) client_port: u16,
    pub(super) server_port: u16,
}

const IP_BYTES: usize = 20;

impl Pair {
    /// A header as a packet from the client has it, or from the server.
    pub(super) fn header(&self, is_up: bool) -> Header {
        let (source, destination) = match is_up {
            true => (self.client, self.server),
            false => (self.server, self.client),
        };
        let (a, b) = match is_up {
            true => (self.client_port, self.server_port),
            false => (self.server_port, self.client_port),
        };
        Header {
            source,
            destination,
            traffic_class: 0,
            hop_limit: 64,
            protocol: self.protocol,
            transport: IP_BYTES,
            fragment: None,
            dont_fragment: true,
            ports: Some(Ports {
                source: a,
                destination: b,
            }),
        }
    }

    /// A packet with `payload`, of the given length on the wire if that is more.
    pub(super) fn packet(&self, payload: &[u8], length: usize) -> Vec<u8> {
        let mut packet = vec![0; IP_BYTES];
        match self.protocol {
            protocol::UDP => packet.extend_from_slice(&[0; 8]),
            _ => packet.extend(tcp_header(0, 0x10)),
        }
        packet.extend_from_slice(payload);
        packet.resize(packet.len().max(length), 0x5a);
        packet
    }

    pub(super) fn segment(&self, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; IP_BYTES];
        packet.extend(tcp_header(sequence, flags));
        packet.extend_from_slice(payload);
        packet
    }
}

fn tcp_header(sequence: u32, flags: u8) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    header[12] = 5 << 4;
    header[13] = flags;
    header
}

/// A query for an A record.
pub(super) fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    push_name(&mut message, name);
    message.extend_from_slice(&[0, 1, 0, 1]);
    message
}

/// Its answer: aliases and addresses.
pub(super) fn answer(id: u16, name: &str, aliases: &[&str], addresses: &[IpAddr]) -> Vec<u8> {
    let mut message = query(id, name);
    message[2] = 0x81;
    message[3] = 0x80;
    message[7] = (addresses.len() + aliases.len()) as u8;
    for alias in aliases {
        let mut data = Vec::new();
        push_name(&mut data, alias);
        push_record(&mut message, 5, &data);
    }
    for address in addresses {
        match address {
            IpAddr::V4(v4) => push_record(&mut message, 1, &v4.octets()),
            IpAddr::V6(v6) => push_record(&mut message, 28, &v6.octets()),
        }
    }
    message
}

fn push_record(message: &mut Vec<u8>, kind: u8, data: &[u8]) {
    // The owner: the question's name.
    message.extend_from_slice(&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
    message.extend_from_slice(data);
}

fn push_name(message: &mut Vec<u8>, name: &str) {
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
}

/// A ClientHello with this server name behind an extension of `padding` bytes.
pub(super) fn client_hello(name: &str, padding: usize) -> Vec<u8> {
    let mut extensions = vec![0, 21];
    extensions.extend_from_slice(&(padding as u16).to_be_bytes());
    extensions.resize(4 + padding, 0);
    let length = name.len() as u16;
    extensions.extend_from_slice(&[0, 0]);
    for number in [length + 5, length + 3] {
        extensions.extend_from_slice(&number.to_be_bytes());
    }
    extensions.push(0);
    extensions.extend_from_slice(&length.to_be_bytes());
    extensions.extend_from_slice(name.as_bytes());
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend_from_slice(&(body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&(message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

/// An RTP packet's begin.
pub(super) fn rtp(source: u32, sequence: u16, kind: u8) -> Vec<u8> {
    let mut packet = vec![0x80, kind];
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0]);
    packet.extend_from_slice(&source.to_be_bytes());
    packet
}

/// A STUN binding request's begin.
pub(super) fn stun() -> Vec<u8> {
    let mut packet = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
    packet.extend_from_slice(&[9; 12]);
    packet
}

/// The begin of a QUIC Initial, padded.
pub(super) fn quic_initial() -> Vec<u8> {
    let mut packet = vec![0xc3, 0, 0, 0, 1, 8];
    packet.resize(1200, 0x77);
    packet
}
