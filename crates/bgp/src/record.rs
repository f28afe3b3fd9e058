//! Speaker inputs as lines of text, to replay a run.
//!
//! A line has the time in nanoseconds, the kind of input, and its values; octets are hexadecimal.
//! Commands of the driver (originate, export) are in the same log, so a replay ends with the same
//! tables as the recorded run.

use std::{fmt::Write, str::FromStr};

use keiro_units::Instant;

use crate::{
    address::{Family, RouteDistinguisher, RouteTarget},
    rib::NeighbourId,
    speaker::{ConnectionId, Direction, Input, NextHop, VpnExport},
    srv6::{Label, Service},
};

/// The line is not a speaker input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a recorded speaker input: `{line}`")]
pub struct RecordError {
    /// The beginning of the line.
    pub line: String,
}

/// Formats an input as a line, without the line terminator.
pub fn write(now: Instant, input: &Input) -> String {
    let mut line = format!("{} ", now.as_nanos());
    // Writing to a string does not fail.
    let _ = match input {
        Input::Start(id) => write!(line, "start {}", id.0),
        Input::Stop(id) => write!(line, "stop {}", id.0),
        Input::IncomingConnection(id) => write!(line, "offered {}", id.0),
        Input::Connected(connection, local) => {
            write!(line, "connected {} {local}", shown(*connection))
        }
        Input::Disconnected(connection) => write!(line, "disconnected {}", shown(*connection)),
        Input::Received(connection, octets) => {
            write!(line, "received {} {}", shown(*connection), hex(octets))
        }
        Input::LinkDown(id) => write!(line, "link-down {}", id.0),
        Input::LinkUp(id) => write!(line, "link-up {}", id.0),
        Input::BfdDown(id) => write!(line, "bfd-down {}", id.0),
        Input::BfdUp(id) => write!(line, "bfd-up {}", id.0),
        Input::Timeout => write!(line, "timeout"),
        Input::Originate(prefix) => write!(line, "originate {prefix}"),
        Input::Retract(prefix) => write!(line, "retract {prefix}"),
        Input::Export(rd, export) => {
            let targets = export.targets.iter().map(RouteTarget::to_string);
            let targets: Vec<String> = targets.collect();
            write!(
                line,
                "export {rd} {} {} {} {}",
                export.from.0,
                targets.join(","),
                hex(&export.service.encode()),
                export.label.number()
            )
            .and_then(|()| match &export.ipv4 {
                Some(service) => write!(line, " {}", hex(&service.encode())),
                None => Ok(()),
            })
        }
        Input::Unexport(rd) => write!(line, "unexport {rd}"),
        Input::Refresh(id, family) => write!(line, "refresh {} {family}", id.0),
        Input::Unreachable(list) => write!(line, "unreachable{}", next_hops(list)),
        Input::Reachable(list) => write!(line, "reachable{}", next_hops(list)),
    };
    line
}

/// Parses a line.
///
/// # Errors
/// The line is not a speaker input.
pub fn read(line: &str) -> Result<(Instant, Input), RecordError> {
    let words: Vec<&str> = line.split_whitespace().collect();
    parse(&words).ok_or_else(|| RecordError {
        line: line.chars().take(LINE_SHOWN).collect(),
    })
}

fn parse(words: &[&str]) -> Option<(Instant, Input)> {
    let (now, words) = words.split_first()?;
    let input = match *words {
        ["start", id] => Input::Start(neighbour(id)?),
        ["stop", id] => Input::Stop(neighbour(id)?),
        ["offered", id] => Input::IncomingConnection(neighbour(id)?),
        ["connected", id, side, local] => Input::Connected(connection(id, side)?, get(local)?),
        ["disconnected", id, side] => Input::Disconnected(connection(id, side)?),
        ["received", id, side, octets] => {
            Input::Received(connection(id, side)?, octets_of(octets)?)
        }
        ["link-down", id] => Input::LinkDown(neighbour(id)?),
        ["link-up", id] => Input::LinkUp(neighbour(id)?),
        ["bfd-down", id] => Input::BfdDown(neighbour(id)?),
        ["bfd-up", id] => Input::BfdUp(neighbour(id)?),
        ["timeout"] => Input::Timeout,
        ["originate", prefix] => Input::Originate(get(prefix)?),
        ["retract", prefix] => Input::Retract(get(prefix)?),
        ["export", rd, from, targets, service, label, ref ipv4 @ ..] => {
            let service_of = |text| Service::decode(&octets_of(text)?).ok()?;
            let ipv4 = match ipv4 {
                [] => None,
                [service] => Some(service_of(service)?),
                _ => return None,
            };
            let targets = targets.split(',').filter(|text| !text.is_empty());
            let export = VpnExport {
                from: neighbour(from)?,
                targets: targets.map(get).collect::<Option<_>>()?,
                service: service_of(service)?,
                label: Label::new(get(label)?)?,
                ipv4,
            };
            Input::Export(get::<RouteDistinguisher>(rd)?, export)
        }
        ["unexport", rd] => Input::Unexport(get(rd)?),
        ["refresh", id, family] => Input::Refresh(
            neighbour(id)?,
            Family::ALL.into_iter().find(|f| f.to_string() == family)?,
        ),
        ["unreachable", ref list @ ..] => Input::Unreachable(next_hops_of(list)?),
        ["reachable", ref list @ ..] => Input::Reachable(next_hops_of(list)?),
        _ => return None,
    };
    Some((Instant::from_nanos(get(now)?), input))
}

fn get<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn neighbour(text: &str) -> Option<NeighbourId> {
    get(text).map(NeighbourId)
}

fn connection(id: &str, side: &str) -> Option<ConnectionId> {
    let direction = match side {
        "out" => Direction::Outgoing,
        "in" => Direction::Incoming,
        _ => return None,
    };
    Some(ConnectionId::new(neighbour(id)?, direction))
}

fn shown(connection: ConnectionId) -> String {
    let side = match connection.direction {
        Direction::Outgoing => "out",
        Direction::Incoming => "in",
    };
    format!("{} {side}", connection.neighbour.0)
}

/// Writes each next hop as the number of the neighbour and the address.
fn next_hops(list: &[NextHop]) -> String {
    let shown = list
        .iter()
        .map(|(id, address)| format!(" {} {address}", id.0));
    shown.collect()
}

fn next_hops_of(words: &[&str]) -> Option<Vec<NextHop>> {
    let pairs = words.chunks(2).map(|pair| match pair {
        [id, address] => Some((neighbour(id)?, get(address)?)),
        _ => None,
    });
    pairs.collect()
}

fn hex(octets: &[u8]) -> String {
    let mut text = String::with_capacity(2 * octets.len());
    for octet in octets {
        let _ = write!(text, "{octet:02x}");
    }
    text
}

fn octets_of(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok())
        .collect()
}

/// The number of characters of a bad line that an error shows. Ours.
const LINE_SHOWN: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::srv6::Structure;

    #[test]
    fn inputs_keep_their_meaning() {
        let id = NeighbourId(3);
        let connection = ConnectionId::new(id, Direction::Incoming);
        let structure = Structure {
            block: 40,
            node: 24,
            function: 16,
            argument: 0,
            transposed: 16,
            offset: 64,
        };
        let sid = "2001:db8:a:1:100::".parse().unwrap();
        let (service, label) = Service::transposed(sid, 18, structure).unwrap();
        let export = VpnExport {
            from: id,
            targets: vec!["65000:1".parse().unwrap(), "192.0.2.1:2".parse().unwrap()],
            service,
            label,
            ipv4: None,
        };
        let both = VpnExport {
            ipv4: Some(service),
            ..export.clone()
        };
        for input in [
            Input::Start(id),
            Input::Stop(id),
            Input::IncomingConnection(id),
            Input::Connected(connection, "2001:db8::1".parse().unwrap()),
            Input::Disconnected(ConnectionId::new(id, Direction::Outgoing)),
            Input::Received(connection, vec![0, 255, 16]),
            Input::LinkDown(id),
            Input::LinkUp(id),
            Input::BfdDown(id),
            Input::BfdUp(id),
            Input::Timeout,
            Input::Originate("10.0.0.0/8".parse().unwrap()),
            Input::Retract("2001:db8::/32".parse().unwrap()),
            Input::Export("65000:7".parse().unwrap(), export),
            Input::Export("65000:7".parse().unwrap(), both),
            Input::Unexport("65000:7".parse().unwrap()),
            Input::Refresh(id, Family::Vpn6),
            Input::Unreachable(vec![
                (id, "2001:db8::1".parse().unwrap()),
                (id, "192.0.2.1".parse().unwrap()),
            ]),
            Input::Reachable(vec![(id, "2001:db8::1".parse().unwrap())]),
        ] {
            let now = Instant::from_nanos(17);
            let line = write(now, &input);
            assert_eq!(read(&line), Ok((now, input)), "{line}");
        }
        for bad in [
            "",
            "x timeout",
            "1 received 1 in 0",
            "1 start 70000",
            "1 z",
            "1 reachable 1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
