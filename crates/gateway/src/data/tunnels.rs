//! Tenants' IP packets between TUN devices and the core. Ingress: read, segmented, validated,
//! classified and sent to a peer. Egress: validated, coalesced and written.
//!
//! The control thread opens devices, with their addresses and routes, and replaces lost ones.
//! Windows and queues are the core's.

mod counts;
mod destinations;
mod device;
mod flow_classifier;
mod held_syns;
mod next_hops;
mod prefix_faults;
mod split;
mod tenant;
mod transit;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    ops::Range,
    sync::mpsc,
    thread,
};

use keiro_core::{AppId, Endpoint, Event, Instant, PeerId, TenantId, TenantSnapshot};
use keiro_ip::{
    flow::FlowSeed,
    offload::{Coalescer, VNET_HEADER_BYTES},
};
use keiro_linux::{
    epoll::{Epoll, Interest},
    tun::{Offloads, READ_BYTES_MAX, TunFault, TunQueue},
};

pub(crate) use self::counts::{Counts, ReceivedPackets};
pub(crate) use self::flow_classifier::ClassificationFigures;
pub(crate) use self::prefix_faults::{PrefixFault, PrefixMismatch};
pub(crate) use self::split::{AcceptedClient, SplitListeners};
pub(crate) use self::tenant::{ExitSetup, PacketFromPeer, PeerSetup, TenantSetup};
use self::{
    device::Device,
    flow_classifier::TenantFlowClassifier,
    held_syns::HeldSyns,
    next_hops::NextHops,
    split::SplitListener,
    tenant::{IngressContext, PeerPacketAction, Tenant},
    transit::{TransitContext, TransitQueue},
};
use super::{
    quota::Quota,
    report::{Report, Reporter},
    split::SplitFlows,
    token,
};

/// A tenant in numbers.
#[derive(Clone, Debug)]
pub(crate) struct TenantFigures {
    pub(crate) id: TenantId,
    /// Its device is there.
    pub(crate) has_device: bool,
    /// Its TCP connections are split.
    pub(crate) splits_tcp: bool,
    pub(crate) counts: Counts,
    /// `None`: nothing is sorted.
    pub(crate) sorted: Option<ClassificationFigures>,
    pub(crate) peers: BTreeMap<PeerId, TenantSnapshot>,
    /// Peers that packets take before others that lead to the same networks.
    pub(crate) preferred: BTreeSet<PeerId>,
}

/// All tenants and their devices.
pub(crate) struct Tunnels {
    devices: HashMap<u64, Device>,
    tenants: BTreeMap<TenantId, Tenant>,
    by_device: HashMap<u64, TenantId>,
    seed: FlowSeed,
    /// One packet as the kernel gave it, and one of a peer's that is changed. Empty as long as there is
    /// no tenant.
    read: Vec<u8>,
    changed: Vec<u8>,
    out: WriteBatch,
    transit: TransitQueue,
    next_hops: NextHops,
    held_syns: HeldSyns,
    /// Connections whose servers cannot be reached.
    unreachable: Vec<u64>,
    /// Applications that carry split connections.
    split_apps: BTreeMap<AppId, TenantId>,
    /// Where the kernel gives clients of split connections to us.
    split_listeners: BTreeMap<u64, SplitListener>,
    next_split_listener: u64,
    closer: DeviceCloser,
    /// Devices that do not work any more and are still waited on.
    lost: Vec<Device>,
    /// Whose paths have changed, so that packets of another length may fit.
    changed_peers: BTreeSet<PeerId>,
    /// Tenants of which packets were dropped for their addresses.
    faulty: BTreeSet<TenantId>,
}

/// Closes devices' queues while others go on.
#[derive(Default)]
struct DeviceCloser {
    thread: Option<mpsc::Sender<Vec<TunQueue>>>,
}

/// Packets that wait to be written within one turn. Large buffers are shared by all tenants:
/// packets of one tenant are coalesced, those of others are deferred.
#[derive(Default)]
struct WriteBatch {
    coalescer: Option<(Offloads, Coalescer)>,
    of: Option<TenantId>,
    bytes: Vec<u8>,
    deferred: Vec<(TenantId, Range<usize>)>,
}

/// Reads from one device before others have their turn; one may give 64 KiB.
const READS_PER_TURN: usize = 64;
/// Bytes likewise: a quarter of a tenant's queue as it is by default.
const BYTES_PER_TURN: usize = 256 << 10;
/// Large packets that are put together at a time.
const COALESCED_MAX: usize = 64;
/// Bytes of packets that wait deferred.
const DEFERRED_BYTES_MAX: usize = 1 << 20;
impl Tunnels {
    /// Clients of split connections count among `descriptors`.
    pub(crate) fn new(seed: &[u8; 16], descriptors: Quota) -> Self {
        Self {
            devices: HashMap::new(),
            tenants: BTreeMap::new(),
            by_device: HashMap::new(),
            seed: FlowSeed::new(seed),
            read: Vec::new(),
            changed: Vec::new(),
            out: WriteBatch::default(),
            transit: TransitQueue::default(),
            next_hops: NextHops::default(),
            held_syns: HeldSyns::new(descriptors),
            unreachable: Vec::new(),
            split_apps: BTreeMap::new(),
            split_listeners: BTreeMap::new(),
            next_split_listener: 0,
            closer: DeviceCloser::default(),
            lost: Vec::new(),
            changed_peers: BTreeSet::new(),
            faulty: BTreeSet::new(),
        }
    }

    pub(crate) fn add_device(
        &mut self,
        epoll: &Epoll,
        number: u64,
        queues: Vec<TunQueue>,
        offloads: Offloads,
    ) -> io::Result<()> {
        for queue in &queues {
            epoll.add(queue, token::tun(number), Interest::Read)?;
        }
        let device = Device {
            queues,
            turn: Cell::new(0),
            offloads,
        };
        self.devices.insert(number, device);
        self.read.resize(READ_BYTES_MAX, 0);
        self.changed.resize(READ_BYTES_MAX, 0);
        Ok(())
    }

    /// Closes a device in another thread, which takes the kernel some 20 ms each.
    pub(crate) fn remove_device(&mut self, epoll: &Epoll, number: u64) {
        let Some(device) = self.devices.remove(&number) else {
            return;
        };
        self.close(epoll, device);
    }

    /// Closes the devices that failed.
    pub(crate) fn close_lost(&mut self, epoll: &Epoll) {
        while let Some(device) = self.lost.pop() {
            self.close(epoll, device);
        }
    }

    /// In the other thread, because closing waits for a kernel lock on interfaces. Events of the
    /// device are no longer received.
    fn close(&mut self, epoll: &Epoll, device: Device) {
        for queue in &device.queues {
            if let Err(error) = epoll.remove(queue) {
                tracing::debug!(%error, "TUN device");
            }
        }
        self.closer.close(device.queues);
    }

    /// Adds or changes a tenant.
    pub(crate) fn set(&mut self, now: Instant, setup: TenantSetup, endpoint: &mut Endpoint) {
        let id = setup.config.id;
        let before = self.tenants.remove(&id);
        if let Some(before) = &before {
            self.detach_device(before.setup.device, id);
            for peer in before.peers.keys() {
                if !setup.peers.contains_key(peer) {
                    endpoint.remove_tenant(*peer, id);
                }
            }
        }
        self.set_split_apps(
            before.as_ref().map(|before| &before.setup),
            &setup,
            endpoint,
        );
        for peer in setup.peers.keys() {
            let same = before.as_ref().is_some_and(|before| {
                before.setup.config == setup.config && before.peers.contains_key(peer)
            });
            if !same && let Err(error) = endpoint.set_tenant(now, *peer, setup.config) {
                tracing::error!(tenant = id.0, %error, "a tenant is not taken");
            }
        }
        self.by_device.insert(setup.device, id);
        let (counts, flows) = match before {
            Some(before) => (before.counts, before.flows),
            None => (Counts::default(), None),
        };
        let flows = TenantFlowClassifier::of(now, &setup.sorting, flows, &self.seed);
        let mut tenant = Tenant::new(now, setup, counts);
        tenant.flows = flows;
        let peers: Vec<PeerId> = tenant.peers.keys().copied().collect();
        for peer in peers {
            tenant.update_max_inner_packet(endpoint, peer);
            let settle_time = tenant.settle_time(peer);
            self.next_hops
                .on_peer_state(now, peer, endpoint.is_up(peer), settle_time);
        }
        self.tenants.insert(id, tenant);
        self.end_inadmissible_holds(id, endpoint);
    }

    /// A peer is removed.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.changed_peers.remove(&peer);
        self.next_hops.forget(peer);
    }

    /// Notes peers whose paths have changed, for [`update_peers`](Self::update_peers).
    pub(crate) fn on_event(&mut self, event: &Event) {
        if let Event::PathUp { peer, .. }
        | Event::PathDown { peer, .. }
        | Event::PeerUp { peer }
        | Event::PeerDown { peer, .. }
        | Event::PathMoved { peer, .. }
        | Event::MtuChanged { peer, .. }
        | Event::AppMoved { peer, .. } = event
        {
            self.changed_peers.insert(*peer);
        }
    }

    /// Updates the maximum packet length to peers whose paths have changed, before the first packet
    /// is sent: the MSS of a SYN from there has to fit. Packets take other peers than those that are down.
    pub(crate) fn update_peers(&mut self, now: Instant, endpoint: &Endpoint) {
        for peer in std::mem::take(&mut self.changed_peers) {
            let mut settle_time = None;
            for tenant in self.tenants.values_mut() {
                if tenant.peers.contains_key(&peer) {
                    settle_time = Some(tenant.settle_time(peer));
                }
                tenant.update_max_inner_packet(endpoint, peer);
            }
            if let Some(settle_time) = settle_time {
                let is_up = endpoint.is_up(peer);
                self.next_hops.on_peer_state(now, peer, is_up, settle_time);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: TenantId, endpoint: &mut Endpoint) {
        if let Some(tenant) = self.tenants.remove(&id) {
            self.detach_device(tenant.setup.device, id);
            for peer in tenant.peers.keys() {
                endpoint.remove_tenant(*peer, id);
            }
            self.end_splitting(&tenant.setup, endpoint);
        }
    }

    /// A device is a tenant's no more, unless another has taken it over meanwhile.
    fn detach_device(&mut self, number: u64, id: TenantId) {
        if self.by_device.get(&number) == Some(&id) {
            self.by_device.remove(&number);
        }
    }

    /// Takes what waits at device `number` over.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        number: u64,
        split_flows: &SplitFlows,
        endpoint: &mut Endpoint,
        reporter: &mut Reporter,
    ) {
        let Some(device) = self.devices.get(&number) else {
            return;
        };
        let tenant = self.by_device.get(&number);
        let mut tenant = tenant.and_then(|id| self.tenants.get_mut(id));
        let (mut reads, mut bytes) = (0, 0);
        for queue in device.in_turn() {
            loop {
                if reads >= READS_PER_TURN || bytes >= BYTES_PER_TURN {
                    device.turn.set(queue + 1);
                    return;
                }
                let length = match device.queues[queue].read(&mut self.read) {
                    Ok(Some(length)) => length,
                    Ok(None) | Err(TunFault::Down | TunFault::Refused) => break,
                    Err(fault) => {
                        self.on_device_failed(number, &fault, reporter);
                        return;
                    }
                };
                if let Some(tenant) = tenant.as_deref_mut() {
                    let mut context = IngressContext {
                        now,
                        device,
                        seed: &self.seed,
                        next_hops: &self.next_hops,
                        held_syns: &mut self.held_syns,
                        split_flows,
                        unreachable: &mut self.unreachable,
                        endpoint,
                    };
                    tenant.ingress(&mut context, &mut self.read[..length]);
                    if tenant.faults.has_new() {
                        self.faulty.insert(tenant.setup.config.id);
                    }
                    for destination in tenant.destinations.take_new() {
                        let tenant = tenant.setup.config.id;
                        reporter.report(Report::Destination {
                            tenant,
                            destination,
                        });
                    }
                }
                reads += 1;
                bytes += length;
            }
        }
    }

    /// Takes a packet of a peer; it is written with the next [`flush`](Self::flush), or passed on to another peer
    /// with the next [`send_transit`](Self::send_transit).
    pub(crate) fn deliver(&mut self, from_peer: &PacketFromPeer<'_>, reporter: &mut Reporter) {
        let id = from_peer.tenant;
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        let packet = match tenant.filter_from_peer(from_peer, &mut self.changed) {
            PeerPacketAction::Deliver(packet) => packet,
            PeerPacketAction::Transit(transit_packet) => {
                return self.transit.push(id, transit_packet, from_peer.data);
            }
            PeerPacketAction::Dropped => {
                if tenant.faults.has_new() {
                    self.faulty.insert(id);
                }
                return;
            }
        };
        let device = tenant.setup.device;
        let Some(device) = self.devices.get(&device) else {
            tenant.counts.drops.device += 1;
            return;
        };
        if self.out.of.is_none() {
            self.out.begin(id, device.offloads);
        }
        if self.out.of == Some(id) {
            if self.out.push(packet) {
                return;
            }
            let packet = packet.to_vec();
            self.write(reporter);
            if let Some(device) = self.devices.get(&self.tenants[&id].setup.device) {
                self.out.begin(id, device.offloads);
                self.out.push(&packet);
            }
            return;
        }
        let start = self.out.bytes.len();
        self.out.bytes.extend_from_slice(packet);
        self.out.deferred.push((id, start..self.out.bytes.len()));
        if self.out.bytes.len() > DEFERRED_BYTES_MAX {
            self.flush(reporter);
        }
    }

    /// So many packets wait for [`send_transit`](Self::send_transit) that it is due before more are taken.
    pub(crate) fn must_send_transit(&self) -> bool {
        self.transit.is_full()
    }

    /// Sends packets from peers to other peers on.
    pub(crate) fn send_transit(&mut self, now: Instant, endpoint: &mut Endpoint) {
        if self.transit.is_empty() {
            return;
        }
        if cfg!(debug_assertions) {
            self.transit.check_invariants();
        }
        let mut context = TransitContext {
            now,
            seed: &self.seed,
            next_hops: &self.next_hops,
            endpoint,
        };
        let tenants = &mut self.tenants;
        self.transit.drain(|id, transit_packet, packet| {
            if let Some(tenant) = tenants.get_mut(&id) {
                tenant.send_transit(&mut context, &transit_packet, packet);
            }
        });
        debug_assert!(self.transit.is_empty());
    }

    /// Reports packets that were dropped for their addresses, rarely.
    /// Peers that sent such packets are informed.
    pub(crate) fn report_faults(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        reporter: &mut Reporter,
    ) {
        for id in std::mem::take(&mut self.faulty) {
            let Some(tenant) = self.tenants.get_mut(&id) else {
                continue;
            };
            for mismatch in tenant.faults.take(now) {
                if let Some((peer, of_peer)) = mismatch.of_peer(id) {
                    endpoint.report_prefix_mismatch(peer, of_peer);
                }
                reporter.report(Report::PrefixMismatch {
                    tenant: id,
                    mismatch,
                });
            }
            // Those within a minute of a report are reported at its end, whether more follow or not.
            if tenant.faults.has_unreported() {
                self.faulty.insert(id);
            }
        }
    }

    /// Whether packets were dropped that [`report_faults`](Self::report_faults) has not reported.
    pub(crate) fn has_faults(&self) -> bool {
        !self.faulty.is_empty()
    }

    /// Writes what was taken.
    pub(crate) fn flush(&mut self, reporter: &mut Reporter) {
        if self.out.of.is_none() {
            return;
        }
        self.write(reporter);
        if self.out.deferred.is_empty() {
            return;
        }
        let mut deferred = std::mem::take(&mut self.out.deferred);
        let bytes = std::mem::take(&mut self.out.bytes);
        // Packets of one tenant stay in order.
        deferred.sort_by_key(|(id, _)| *id);
        for (id, range) in deferred.drain(..) {
            if self.out.of != Some(id) {
                self.write(reporter);
                let device = self.tenants.get(&id).map(|tenant| tenant.setup.device);
                let Some(device) = device.and_then(|number| self.devices.get(&number)) else {
                    continue;
                };
                self.out.begin(id, device.offloads);
            }
            let packet = &bytes[range];
            if !self.out.push(packet) {
                let offloads = self.out.coalescer.as_ref().map(|(offloads, _)| *offloads);
                self.write(reporter);
                self.out.begin(id, offloads.unwrap_or_default());
                self.out.push(packet);
            }
        }
        self.write(reporter);
        self.out.deferred = deferred;
        self.out.bytes = bytes;
        self.out.bytes.clear();
    }

    /// Every tenant in numbers, with flows that of `flows_of` alone.
    pub(crate) fn figures(
        &self,
        now: Instant,
        endpoint: &Endpoint,
        flows_of: Option<TenantId>,
    ) -> Vec<TenantFigures> {
        let figures = |(id, tenant): (&TenantId, &Tenant)| {
            let before = Some(TenantId(id.0.saturating_sub(1)));
            let of_peer = |peer: &PeerId| {
                let found = endpoint.tenants(now, *peer, before, 1).pop()?;
                (found.id == *id).then_some((*peer, found))
            };
            TenantFigures {
                id: *id,
                has_device: self.devices.contains_key(&tenant.setup.device),
                splits_tcp: tenant.setup.splits_tcp,
                counts: tenant.counts.clone(),
                sorted: tenant
                    .flows
                    .as_ref()
                    .map(|flows| flows.figures(now, flows_of == Some(*id))),
                peers: tenant.peers.keys().filter_map(of_peer).collect(),
                preferred: tenant
                    .peers
                    .keys()
                    .filter(|peer| self.next_hops.is_preferred(now, **peer))
                    .copied()
                    .collect(),
            }
        };
        self.tenants.iter().map(figures).collect()
    }

    /// What peers have sent of an application, by the rules of the tenants here.
    pub(crate) fn received_of(&self, app: AppId) -> ReceivedPackets {
        let mut sum = ReceivedPackets::default();
        for tenant in self.tenants.values() {
            sum.add(
                tenant
                    .counts
                    .received
                    .get(&app)
                    .copied()
                    .unwrap_or_default(),
            );
        }
        sum
    }

    /// Writes the coalesced packets; the batch has no tenant afterwards.
    fn write(&mut self, reporter: &mut Reporter) {
        let (Some(id), Some((_, coalescer))) = (self.out.of.take(), &mut self.out.coalescer) else {
            return;
        };
        let tenant = self.tenants.get_mut(&id);
        let number = tenant.as_ref().map(|tenant| tenant.setup.device);
        let device = number.and_then(|number| self.devices.get(&number));
        let (Some(tenant), Some(number), Some(device)) = (tenant, number, device) else {
            coalescer.drain(|_| {});
            return;
        };
        let skip = match device.offloads.vnet_header {
            true => 0,
            false => VNET_HEADER_BYTES,
        };
        let (mut lost, seed) = (None, &self.seed);
        coalescer.drain(|bytes| {
            let queue = device.queue_of(seed, &bytes[VNET_HEADER_BYTES..]);
            let written = queue.write(&bytes[skip..]);
            match written {
                Ok(true) => {
                    tenant.counts.stats.egress_packets += 1;
                    tenant.counts.stats.egress_bytes += (bytes.len() - VNET_HEADER_BYTES) as u64;
                }
                Ok(false) | Err(TunFault::Down | TunFault::Refused) => {
                    tenant.counts.drops.device += 1;
                }
                Err(fault) => {
                    tenant.counts.drops.device += 1;
                    lost = Some(fault);
                }
            }
        });
        if let Some(fault) = lost {
            self.on_device_failed(number, &fault, reporter);
        }
    }

    /// Removes a device that failed and reports it; the control thread opens another.
    fn on_device_failed(&mut self, number: u64, fault: &TunFault, reporter: &mut Reporter) {
        if let Some(device) = self.devices.remove(&number) {
            self.lost.push(device);
            let error = fault.to_string();
            reporter.report(Report::DeviceLost { number, error });
        }
    }
}

impl DeviceCloser {
    fn close(&mut self, queues: Vec<TunQueue>) {
        let Some(thread) = self.thread() else {
            return;
        };
        // Where the thread is gone they are closed here.
        let _ = thread.send(queues);
    }

    /// It begins with the first device that is closed, and ends with what holds it.
    fn thread(&mut self) -> Option<&mpsc::Sender<Vec<TunQueue>>> {
        if self.thread.is_none() {
            let (sender, queues) = mpsc::channel::<Vec<TunQueue>>();
            let began = thread::Builder::new()
                .name("devices".to_owned())
                .spawn(move || queues.into_iter().for_each(drop));
            self.thread = began.is_ok().then_some(sender);
        }
        self.thread.as_ref()
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        // The process does not wait for them: when it ends the kernel closes what is left.
        for (_, device) in self.devices.drain() {
            self.closer.close(device.queues);
        }
    }
}

impl WriteBatch {
    /// The next packets are of this tenant.
    fn begin(&mut self, id: TenantId, offloads: Offloads) {
        let same = |(of, _): &(Offloads, Coalescer)| *of == offloads;
        if !self.coalescer.as_ref().is_some_and(same) {
            let coalescer = Coalescer::new(COALESCED_MAX, offloads.tcp, offloads.udp);
            self.coalescer = Some((offloads, coalescer));
        }
        self.of = Some(id);
    }

    /// `false`: there is no room.
    fn push(&mut self, packet: &[u8]) -> bool {
        match &mut self.coalescer {
            Some((_, coalescer)) => coalescer.push(packet).is_ok(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
