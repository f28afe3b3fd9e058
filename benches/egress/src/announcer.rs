//! The far end of a session: a border router that announces given routes.

use std::{
    io::{Read, Write},
    net::{Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use keiro_lab::Host;
use socket2::{Domain, Socket, Type};

use crate::stream::{ASN, Family, message};

/// An established session. Messages from the other end are read and ignored.
pub(crate) struct Announcer {
    stream: TcpStream,
}

impl Announcer {
    /// Connects from an address of `host`; the other end may have to start first.
    pub(crate) fn connect(
        host: &Host,
        from: Ipv6Addr,
        to: Ipv6Addr,
        family: Family,
    ) -> anyhow::Result<Self> {
        let end = Instant::now() + PATIENCE;
        loop {
            match host.run(|| establish(from, to, family))? {
                Ok(stream) => {
                    let mut reader = stream.try_clone()?;
                    thread::spawn(move || {
                        let mut dropped = [0; 65_536];
                        while reader.read(&mut dropped).is_ok_and(|count| count > 0) {}
                    });
                    return Ok(Self { stream });
                }
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => thread::sleep(STEP),
            }
        }
    }

    /// Sends it, which takes as long as the other end reads.
    pub(crate) fn say(&self, octets: &[u8]) -> anyhow::Result<()> {
        let said = (&self.stream).write_all(octets);
        said.context("the announcer's session is broken")
    }

    /// Closes the connection at once, without a NOTIFICATION.
    pub(crate) fn vanish(self) -> anyhow::Result<()> {
        Ok(self.stream.shutdown(Shutdown::Both)?)
    }
}

fn establish(from: Ipv6Addr, to: Ipv6Addr, family: Family) -> anyhow::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&SocketAddr::from((to, PORT)).into(), STEP_MAX)?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STEP_MAX))?;
    stream.write_all(&open(from, family))?;
    // Its OPEN, and its KEEPALIVE, which acknowledges ours.
    for expected in [OPEN, KEEPALIVE] {
        let kind = read(&mut stream)?;
        ensure!(kind == expected, "message {kind} instead of {expected}");
        if kind == OPEN {
            stream.write_all(&message(KEEPALIVE, &[]))?;
        }
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Multiprotocol (RFC 4760) and AS numbers of four octets (RFC 6793) only: no graceful restart, so that
/// routes disappear with the session.
fn open(from: Ipv6Addr, family: Family) -> Vec<u8> {
    let mut capabilities = vec![1, 4];
    let codes = family.codes();
    capabilities.extend([codes[0], codes[1], 0, codes[2]]);
    capabilities.extend([65, 4, 0, 0]);
    capabilities.extend(ASN.to_be_bytes());
    let mut body = vec![4];
    body.extend(ASN.to_be_bytes());
    body.extend(HOLD_S.to_be_bytes());
    body.extend([10, 0, 0, from.octets()[15]]);
    body.push(capabilities.len() as u8 + 2);
    body.extend([2, capabilities.len() as u8]);
    body.extend(capabilities);
    message(OPEN, &body)
}

/// The kind of the next message.
fn read(stream: &mut TcpStream) -> anyhow::Result<u8> {
    let mut header = [0; 19];
    stream.read_exact(&mut header)?;
    let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
    let mut body = vec![0; length.saturating_sub(header.len())];
    stream.read_exact(&mut body)?;
    Ok(header[18])
}

const PORT: u16 = 179;
const OPEN: u8 = 1;
const KEEPALIVE: u8 = 4;
/// Longer than a measurement, so that no keepalives are needed.
const HOLD_S: u16 = 600;
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(50);
const STEP_MAX: Duration = Duration::from_secs(3);
