//! All flows of a tenant.

use std::{net::IpAddr, time::Duration};

use super::{
    BuiltInClass, Evidence,
    cache::Cache,
    dns::{self, Exchange, Resolved},
    flow::{Flow, Opening},
    media::MediaVerdict,
    names::{DomainPattern, Names, PatternId},
    ports,
    tls::{ClientHello, PartialHandshakes},
};
use crate::{
    FlowKey, Header,
    flow::{FlowSeed, Part},
    protocol,
};

/// Flows that are known at a time. Ours: some 6 MiB where all are; more flows than these are sorted anew with each packet,
/// by name and port.
const FLOWS_MAX: usize = 32_768;
/// After so long a UDP flow of the same ports is another one: the longest that RFC 4787 §4.3 asks of translators for them.
const UDP_IDLE_MAX: Duration = Duration::from_secs(300);
/// Packets with data in which a client's handshake is looked for: a greeting of the server may come before.
const HANDSHAKE_PACKETS_MAX: u8 = 8;
const UDP_HEADER_BYTES: usize = 8;
const HTTPS: u16 = 443;

/// Sorts a tenant's packets.
pub struct FlowClassifier {
    sorting: Sorting,
    seed: FlowSeed,
    names: Names,
    resolved: Resolved,
    waiting: PartialHandshakes,
    flows: Cache<Flow>,
    counts: [[Count; Evidence::KINDS.len()]; BuiltInClass::ALL.len() + 1],
}

/// What a tenant's packets are sorted by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorting {
    /// By built-in classes, not names of rules alone.
    pub has_classes: bool,
    /// Names of rules, whose places [`Classification::name`] gives; those beyond [`PATTERNS_MAX`](super::PATTERNS_MAX) are
    /// left out.
    pub patterns: Vec<DomainPattern>,
    /// Hosts that resolve names for others: the names of rules that their answers give addresses are for all hosts.
    pub resolvers: Vec<IpAddr>,
}

/// What a packet's flow is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classification {
    /// `None`: nothing says what it is.
    pub class: Option<BuiltInClass>,
    /// The longest pattern of a rule that its server's name matches.
    pub name: Option<PatternId>,
}

/// What was sorted alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub flows: u64,
    pub packets: u64,
    /// Of IP packets.
    pub bytes: u64,
}

/// A flow in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFigures {
    /// As its first packet had it.
    pub key: FlowKey,
    pub sorted: Classification,
    pub evidence: Evidence,
    pub packets: u64,
    pub bytes: u64,
}

/// Sizes of the tables.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) flows: usize,
    pub(super) queries: usize,
    pub(super) addresses: usize,
    pub(super) learners: usize,
    pub(super) handshake_bytes: usize,
}

impl FlowClassifier {
    pub fn new(seed: FlowSeed, sorting: Sorting) -> Self {
        Self {
            seed,
            names: Names::new(sorting.has_classes, &sorting.patterns),
            resolved: Resolved::new(&sorting.resolvers),
            waiting: PartialHandshakes::default(),
            flows: Cache::new(FLOWS_MAX),
            counts: Default::default(),
            sorting,
        }
    }

    /// Sorts by something else from now on. Flows keep their class, and the name of a rule that is there as before
    /// or covered by another one. Names that are new count for flows and DNS answers that come. Where classes begin or
    /// end, flows without a rule's name are sorted anew.
    pub fn set_sorting(&mut self, sorting: Sorting) {
        if sorting == self.sorting {
            return;
        }
        self.names = Names::new(sorting.has_classes, &sorting.patterns);
        let patterns = self.sorting.patterns.iter();
        let numbers: Vec<Option<PatternId>> = patterns.map(|of| self.names.covering(of)).collect();
        let number = |before: PatternId| *numbers.get(usize::from(before.0))?;
        self.resolved.follow(&sorting.resolvers, number);
        let has_other_classes = sorting.has_classes != self.sorting.has_classes;
        self.flows.retain(|flow| {
            flow.rule = flow.rule.and_then(number);
            if has_other_classes {
                flow.class = None;
                flow.evidence = Evidence::None;
            }
            !has_other_classes || flow.rule.is_some()
        });
        if has_other_classes {
            self.counts = Default::default();
            let flows = self.flows.values().count() as u64;
            count_of(&mut self.counts, (None, Evidence::None)).flows = flows;
        }
        self.sorting = sorting;
    }

    /// Takes a packet of either direction, `packets` of the wire if it is a large one; `now` since any begin.
    pub fn on_packet(
        &mut self,
        now: Duration,
        header: &Header,
        packet: &[u8],
        packets: u64,
    ) -> Classification {
        let key = FlowKey::of(header);
        if matches!(key.part, Part::Fragments { .. }) {
            return Classification::default();
        }
        let number = self.seed.number(&key.of_both_directions());
        let known = self.flows.get_mut(number);
        let is_same = known.is_some_and(|flow| is_same(now, flow, header, packet));
        self.waiting.on_time(now);
        if !is_same {
            self.begin(now, number, key, header);
        }
        let Some(flow) = self.flows.get_mut(number) else {
            return Classification::default();
        };
        let before = (flow.class, flow.evidence);
        if !matches!(flow.opening, Opening::Done) {
            look(flow, &self.sorting, header, packet);
        }
        let has_classes = self.sorting.has_classes;
        flow.on_carried(now, packets, packet.len() as u64, has_classes);
        let reads_handshake = matches!(flow.opening, Opening::Handshake(_));
        if header.protocol == protocol::UDP && has_port(header, dns::PORT) {
            self.on_dns(now, header, packet);
        }
        if reads_handshake {
            self.read_handshake(now, number, header, packet);
        }
        self.count(number, before, !is_same, packets, packet.len() as u64)
    }

    /// What was sorted, by class and kind of evidence; rows without flows are left out.
    pub fn counts(&self) -> impl Iterator<Item = (Option<BuiltInClass>, &'static str, Count)> {
        let classes = BuiltInClass::ALL.map(Some).into_iter().chain([None]);
        classes.zip(&self.counts).flat_map(|(class, of)| {
            let kinds = Evidence::KINDS.into_iter().zip(of);
            let kinds = kinds.filter(|(_, count)| **count != Count::default());
            kinds.map(move |(kind, count)| (class, kind, *count))
        })
    }

    /// The flows that have carried most among those with packets since `since`, at most `max`.
    pub fn largest_flows(&self, since: Duration, max: usize) -> Vec<FlowFigures> {
        let mut largest: Vec<&Flow> = Vec::new();
        for flow in self.flows.values().filter(|flow| flow.last >= since) {
            let place = largest.partition_point(|of| of.bytes >= flow.bytes);
            if place < max {
                largest.insert(place, flow);
                largest.truncate(max);
            }
        }
        largest.into_iter().map(figures).collect()
    }

    /// TLS handshakes in several packets that were not read, because too many others were incomplete.
    pub fn unread_handshakes(&self) -> u64 {
        self.waiting.displaced()
    }

    /// How many flows are known.
    pub fn flows(&self) -> usize {
        self.flows.values().count()
    }

    /// How much is kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> Kept {
        let [queries, addresses, learners] = self.resolved.sizes();
        Kept {
            flows: self.flows(),
            queries,
            addresses,
            learners,
            handshake_bytes: self.waiting.bytes(),
        }
    }

    /// A flow, by the key of either direction.
    pub fn flow(&mut self, key: FlowKey) -> Option<FlowFigures> {
        let number = self.seed.number(&key.of_both_directions());
        self.flows.get_mut(number).map(|flow| figures(flow))
    }

    /// A flow that was not known.
    fn begin(&mut self, now: Duration, number: u64, key: FlowKey, header: &Header) {
        let mut flow = Flow::new(now, key);
        self.waiting.forget(number);
        flow.is_tunnel = ports::is_tunnel(header);
        if self.sorting.has_classes {
            for (class, evidence) in [ports::class_of(header), ports::class_of_dscp(header)]
                .into_iter()
                .flatten()
            {
                flow.take(class, evidence);
            }
        }
        // The client is usually the first to send.
        let (from, to) = (key.source, key.destination);
        let named = self.resolved.named(now, &self.seed, from, to);
        let named = named.or_else(|| self.resolved.named(now, &self.seed, to, from));
        if let Some(named) = named {
            flow.take_name(named, Evidence::Dns);
        }
        self.flows.insert(number, flow);
    }

    fn on_dns(&mut self, now: Duration, header: &Header, packet: &[u8]) {
        let Some(ports) = header.ports else {
            return;
        };
        let payload = packet
            .get(header.transport + UDP_HEADER_BYTES..)
            .unwrap_or_default();
        let exchange = |client: IpAddr, client_port, server: IpAddr| Exchange {
            client,
            client_port,
            server,
            payload,
        };
        if ports.destination == dns::PORT {
            let sent = exchange(header.source, ports.source, header.destination);
            self.resolved.on_query(now, &self.seed, &sent);
        } else {
            let got = exchange(header.destination, ports.destination, header.source);
            self.resolved.on_answer(now, &self.seed, &self.names, &got);
        }
    }

    /// Reads a TLS handshake of the client.
    fn read_handshake(&mut self, now: Duration, number: u64, header: &Header, packet: &[u8]) {
        let Some((sequence, data)) = tcp_data(header, packet) else {
            return;
        };
        let hello = self
            .waiting
            .on_bytes(now, header.source, number, sequence, data);
        let Some(flow) = self.flows.get_mut(number) else {
            return;
        };
        match hello {
            ClientHello::Name(name) => {
                let named = self.names.named(&name);
                // An address may have had another name of the same client.
                if matches!(flow.evidence, Evidence::Dns(_)) {
                    flow.class = None;
                    flow.evidence = Evidence::None;
                    if let Some((class, evidence)) = ports::class_of(header) {
                        flow.take(class, evidence);
                    }
                }
                flow.rule = None;
                flow.take_name(named, Evidence::Sni);
                flow.opening = Opening::Done;
            }
            ClientHello::Incomplete | ClientHello::Nothing => {}
        }
    }

    fn count(
        &mut self,
        number: u64,
        before: (Option<BuiltInClass>, Evidence),
        is_new: bool,
        packets: u64,
        bytes: u64,
    ) -> Classification {
        let Some(flow) = self.flows.get_mut(number) else {
            return Classification::default();
        };
        let now = (flow.class, flow.evidence);
        let sorted = Classification {
            class: flow.class,
            name: flow.rule,
        };
        if is_new || now != before {
            if !is_new {
                let count = count_of(&mut self.counts, before);
                count.flows = count.flows.saturating_sub(1);
            }
            count_of(&mut self.counts, now).flows += 1;
        }
        let count = count_of(&mut self.counts, now);
        count.packets += packets;
        count.bytes += bytes;
        sorted
    }
}

fn count_of(
    counts: &mut [[Count; Evidence::KINDS.len()]; BuiltInClass::ALL.len() + 1],
    (class, evidence): (Option<BuiltInClass>, Evidence),
) -> &mut Count {
    let class = class.map_or(BuiltInClass::ALL.len(), |class| class as usize);
    &mut counts[class][evidence.strength()]
}

/// Whether a packet is of the flow that is known by its addresses and ports, or begins another one.
fn is_same(now: Duration, flow: &Flow, header: &Header, packet: &[u8]) -> bool {
    match header.protocol {
        protocol::UDP => now.saturating_sub(flow.last) <= UDP_IDLE_MAX,
        // A SYN without ACK; the first one may be sent again.
        protocol::TCP => {
            let flags = packet.get(header.transport + 13).copied().unwrap_or(0);
            flags & 0x12 != 0x02 || flow.bytes == flow.packets.saturating_mul(packet.len() as u64)
        }
        _ => true,
    }
}

/// Looks at one of a flow's first packets.
fn look(flow: &mut Flow, sorting: &Sorting, header: &Header, packet: &[u8]) {
    match &mut flow.opening {
        Opening::Form(form) if sorting.has_classes && form.is_open() => {
            let payload = packet.get(header.transport + UDP_HEADER_BYTES..);
            match form.on_payload(payload.unwrap_or_default()) {
                MediaVerdict::Media => {
                    flow.opening = Opening::Done;
                    flow.take(BuiltInClass::Voice, Evidence::Media);
                }
                MediaVerdict::Quic => {
                    flow.opening = Opening::Done;
                    if has_port(header, HTTPS) {
                        flow.take(BuiltInClass::Web, Evidence::CommonPort(HTTPS));
                    }
                }
                MediaVerdict::Unclear => {}
            }
        }
        Opening::Form(_) => flow.opening = Opening::Done,
        Opening::Handshake(packets) => {
            if tcp_data(header, packet).is_some() {
                *packets += 1;
            }
            // The port decides about the class, and the name about a rule.
            let has_class = matches!(flow.evidence, Evidence::Port(_));
            let is_known = has_class && sorting.patterns.is_empty();
            if *packets > HANDSHAKE_PACKETS_MAX || is_known {
                flow.opening = Opening::Done;
            }
        }
        Opening::Done => {}
    }
}

/// The sequence number and the data of a TCP segment that has any.
fn tcp_data<'a>(header: &Header, packet: &'a [u8]) -> Option<(u32, &'a [u8])> {
    let segment = packet.get(header.transport..)?;
    let sequence = u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?);
    let offset = usize::from(segment.get(12)? >> 4) * 4;
    let data = segment.get(offset..).filter(|data| !data.is_empty())?;
    Some((sequence, data))
}

fn has_port(header: &Header, port: u16) -> bool {
    let ports = header.ports;
    ports.is_some_and(|ports| ports.source == port || ports.destination == port)
}

fn figures(flow: &Flow) -> FlowFigures {
    FlowFigures {
        key: flow.key,
        sorted: Classification {
            class: flow.class,
            name: flow.rule,
        },
        evidence: flow.evidence,
        packets: flow.packets,
        bytes: flow.bytes,
    }
}
