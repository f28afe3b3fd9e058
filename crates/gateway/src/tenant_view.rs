//! Tenants in the control protocol's types.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use ipnet::IpNet;
use keiro_control::{
    config::{AppIndex, Config, Mapping, TcpCarriage, Tenant},
    protocol::{
        AddressField, ClassesSnapshot, DeviceState, ErrorCode, ErrorResponse, EventKind,
        FlowSnapshot, MappedNetwork, Side, SortedSnapshot, Stats, TenantPathSnapshot,
        TenantPeerSnapshot, TenantSnapshot,
    },
    rounded::bytes,
};
use keiro_core::{self as core, AppId, PeerId, TenantId};
use keiro_ip::{builtin_classes::BuiltInClass, flow::Part};
use keiro_planning::apps_of_packets;
use keiro_stats::TenantStats;
use keiro_units::Probability;

use crate::{
    data::{
        command::DataThreadGone,
        split::app_of,
        tunnels::{ClassificationFigures, PrefixFault, PrefixMismatch, TenantFigures},
    },
    error_response::not_found,
    gateway::Gateway,
    tenants::DeviceHealth,
};

/// Tenants in an explanation. Ours: `keiro show tenant` has all of them.
const TENANTS_EXPLAINED_MAX: usize = 8;

impl Gateway {
    /// The tenant of this name, with its largest flows, or all of them without.
    pub(crate) fn tenants(
        &self,
        name: Option<&str>,
    ) -> Result<Vec<TenantSnapshot>, DataThreadGone> {
        if self.config.tenants.is_empty() {
            return Ok(Vec::new());
        }
        let named = name.and_then(|name| self.config.tenant_named(name));
        let figures = self.data.tenants(named.map(|tenant| TenantId(tenant.id)))?;
        let of = |id: u32| figures.iter().find(|of| of.id == TenantId(id));
        let wanted = |tenant: &&Tenant| name.is_none_or(|name| tenant.name.as_str() == name);
        let tenants = self.config.tenants.iter().filter(wanted);
        Ok(tenants
            .map(|tenant| self.tenant(tenant, of(tenant.id)))
            .collect())
    }

    /// That no application has this name; if a tenant has, which ones carry its packets.
    pub(crate) fn no_application(&self, name: &str) -> ErrorResponse {
        let Some(tenant) = self.config.tenant_named(name) else {
            return not_found("application", name);
        };
        let apps: BTreeSet<_> = apps_of_packets(tenant).collect();
        let names = apps.iter().map(|app| self.config[*app].name.as_str());
        let carrying: Vec<&str> = names.take(TENANTS_EXPLAINED_MAX).collect();
        let message = format!("`{name}` is a tenant, not an application");
        let hint = match carrying.is_empty() {
            true => format!("`keiro show tenant {name}` shows it"),
            false => format!("its packets are carried by {}", carrying.join(", ")),
        };
        ErrorResponse::new(ErrorCode::NotFound, message, &hint)
    }

    /// Sentences about the tenants whose packets an application carries, or whose it is itself, with
    /// their windows on `path`; empty if there are none.
    pub(crate) fn tenants_of(&self, app: AppIndex, path: Option<&str>) -> String {
        let own = self.config.tenant_of(app).map(|tenant| tenant.id);
        let carries = |tenant: &Tenant| own == Some(tenant.id) || gives_packets_to(tenant, app);
        let config = &self.config;
        let names: Vec<&str> = config
            .tenants
            .iter()
            .filter(|tenant| carries(tenant))
            .map(|tenant| tenant.name.as_str())
            .take(TENANTS_EXPLAINED_MAX)
            .collect();
        let Ok(tenants) = (match names.is_empty() {
            true => return String::new(),
            false => self.tenants(None),
        }) else {
            return String::new();
        };
        let peer = config[config[app].peer].name.as_str();
        let mut text = String::new();
        for tenant in tenants.iter().filter(|t| names.contains(&t.name.as_str())) {
            let share = tenant.stats.share.get() * 100.0;
            let (name, weight) = (&tenant.name, tenant.stats.weight);
            let _ = write!(
                text,
                " It carries traffic of tenant {name}: weight {weight}, {share:.0} % of all weights"
            );
            let peers = tenant.peers.iter().filter(|of| of.peer == peer);
            let mut paths = peers.flat_map(|of| &of.paths);
            let on_path = paths.find(|of| Some(of.path.as_str()) == path);
            if let Some(on_path) = on_path
                && let Some(window) = on_path.stats.window_bytes
            {
                let in_flight = bytes(on_path.stats.in_flight_bytes);
                let window = bytes(window);
                let _ = write!(text, ", {in_flight} of its window of {window} in flight");
            }
            text.push('.');
            if let Some(tenant) = config.tenant_named(name) {
                text.push_str(&self.internet_in_words(tenant));
            }
        }
        if self.carries_packets(app) {
            text.push_str(" IP packets are neither aggregated nor sent in copies.");
        }
        text
    }

    /// The control protocol's event for a core event about a tenant.
    pub(crate) fn tenant_event(&self, event: &core::Event) -> Option<EventKind> {
        let peer_of = |peer: &PeerId| self.running_config.peer_name(*peer).map(str::to_owned);
        match event {
            core::Event::TenantUnknown { peer, tenant } => Some(EventKind::TenantUnknown {
                peer: peer_of(peer)?,
                id: u64::from(tenant.0),
            }),
            core::Event::TenantRefused { peer, tenant } => {
                let mut tenants = self.config.tenants.iter();
                let found = tenants.find(|found| found.id == tenant.0)?;
                Some(EventKind::TenantRefused {
                    tenant: found.name.to_string(),
                    id: u64::from(tenant.0),
                    peer: peer_of(peer)?,
                })
            }
            core::Event::UnitContradicted {
                peer,
                path,
                tenant,
                configured,
                found,
            } => {
                let mut tenants = self.config.tenants.iter();
                let tenant = tenants.find(|of| of.id == tenant.0)?;
                Some(EventKind::UnitContradicted {
                    tenant: tenant.name.to_string(),
                    peer: peer_of(peer)?,
                    path: self.running_config.path_ids().name(*path)?.to_owned(),
                    configured_bits_per_second: configured.as_bits_per_second(),
                    found_bits_per_second: found.as_bits_per_second(),
                })
            }
            core::Event::PacketsRefused { peer, mismatch } => {
                let mut tenants = self.config.tenants.iter();
                let found = tenants.find(|found| found.id == mismatch.tenant.0)?;
                let (field, address) = match mismatch.address {
                    core::PacketAddress::Source(address) => (AddressField::Source, address),
                    core::PacketAddress::Destination(address) => {
                        (AddressField::Destination, address)
                    }
                };
                let peer = peer_of(peer)?;
                if !may_have_sent(found, &self.config, &peer, mismatch.address) {
                    return None;
                }
                Some(EventKind::PrefixMismatch {
                    tenant: found.name.to_string(),
                    peer: Some(peer),
                    from: Side::Us,
                    field,
                    address: address.to_string(),
                    dropped_packets: mismatch.packets,
                })
            }
            _ => None,
        }
    }

    /// The tenant whose split connections an application carries.
    pub(crate) fn split_of(&self, app: AppId) -> Option<&Tenant> {
        let mut tenants = self.config.tenants.iter();
        tenants.find(|tenant| app_of(TenantId(tenant.id)) == app)
    }

    /// The event of packets that were dropped because of an address.
    pub(crate) fn prefix_event(
        &self,
        tenant: TenantId,
        mismatch: PrefixMismatch,
    ) -> Option<EventKind> {
        let PrefixMismatch {
            fault,
            address,
            packets,
        } = mismatch;
        let (peer, from, field) = match fault {
            PrefixFault::LocalSource => (None, Side::Us, AddressField::Source),
            PrefixFault::NoPeer => (None, Side::Us, AddressField::Destination),
            PrefixFault::PeerSource(peer) => (Some(peer), Side::Peer, AddressField::Source),
            PrefixFault::PeerDestination(peer) => {
                (Some(peer), Side::Peer, AddressField::Destination)
            }
        };
        let mut tenants = self.config.tenants.iter();
        let tenant = tenants.find(|found| found.id == tenant.0)?;
        let peer = match peer {
            Some(peer) => Some(self.running_config.peer_name(peer)?.to_owned()),
            None => None,
        };
        Some(EventKind::PrefixMismatch {
            tenant: tenant.name.to_string(),
            peer,
            from,
            field,
            address: address.to_string(),
            dropped_packets: packets,
        })
    }

    /// Whether an application has traffic whose small packets are aggregated. IP packets are not.
    pub(crate) fn may_be_aggregated(&self, app: AppIndex) -> bool {
        !self.has_only_packets(app)
    }

    /// It carries IP packets of tenants, and nothing of listeners or forwards.
    pub(crate) fn has_only_packets(&self, app: AppIndex) -> bool {
        let config = &self.config;
        let enters = config.listeners.iter().any(|listener| listener.app == app);
        let answers = config.forwards.iter().any(|forward| forward.app == app);
        self.carries_packets(app) && !enters && !answers
    }

    fn carries_packets(&self, app: AppIndex) -> bool {
        let mut tenants = self.config.tenants.iter();
        tenants.any(|tenant| gives_packets_to(tenant, app))
    }

    fn tenant(&self, tenant: &Tenant, figures: Option<&TenantFigures>) -> TenantSnapshot {
        let counts = figures
            .map(|figures| figures.counts.clone())
            .unwrap_or_default();
        let health = self.tenants.health(tenant);
        // What is in force; a queue that the core does not have yet has what is written.
        let live = figures.and_then(|figures| figures.peers.values().next());
        let weight = live.map_or(tenant.weight, |live| live.weight).get();
        let all: f64 = self.config.tenants.iter().map(|t| t.weight.get()).sum();
        let peers = tenant.peers.iter().map(|of| {
            let peer = self.config[of.peer].name.to_string();
            let id = self.running_config.peer_id(&peer);
            let live = id.and_then(|id| Some((id, figures?.peers.get(&id)?)));
            TenantPeerSnapshot {
                app: self.config[of.app].name.to_string(),
                prefixes: of.prefixes.iter().map(ToString::to_string).collect(),
                backup_prefixes: of.backup_prefixes.iter().map(ToString::to_string).collect(),
                ..self.tenant_peer(peer, live)
            }
        });
        TenantSnapshot {
            name: tenant.name.to_string(),
            id: u64::from(tenant.id),
            stats: Stats(TenantStats {
                weight,
                share: Probability::new(weight / all).unwrap_or(Probability::ZERO),
                mtu_bytes: tenant.mtu.get(),
                ..counts.stats
            }),
            controller: tenant.controller(&self.config.fairness).name().to_owned(),
            device: tenant.device.clone(),
            device_present: figures.is_some_and(|figures| figures.has_device),
            device_state: health
                .as_ref()
                .map_or(DeviceState::Missing, DeviceHealth::state),
            device_problem: health.and_then(|health| Some(health.why()?.to_owned())),
            table: tenant.table.map(u64::from),
            prefixes: tenant.prefixes.iter().map(ToString::to_string).collect(),
            map: tenant.map.iter().map(mapped_network).collect(),
            splits_tcp: figures.is_some_and(|figures| figures.splits_tcp),
            split_problem: self.tenants.split_problem(tenant),
            not_split_connections: match tenant.tcp {
                TcpCarriage::Split => by_name(counts.not_split.by_reason()),
                TcpCarriage::Packets => BTreeMap::new(),
            },
            exit: self.exit(tenant),
            internet: self.internet(tenant),
            not_forwarded_packets: by_name(counts.not_forwarded.by_reason()),
            dropped_packets: by_name(counts.drops.by_reason()),
            peers: peers.collect(),
            classes: figures
                .and_then(|figures| figures.sorted.as_ref())
                .map(classes_snapshot),
        }
    }

    fn tenant_peer(
        &self,
        peer: String,
        live: Option<(PeerId, &core::TenantSnapshot)>,
    ) -> TenantPeerSnapshot {
        let drops = live.map(|(_, live)| live.drops).unwrap_or_default();
        let paths = live.into_iter().flat_map(|(_, live)| {
            live.paths.iter().filter_map(move |path| {
                let name = self.running_config.path_ids().name(path.path)?;
                Some(on_path(name, path))
            })
        });
        TenantPeerSnapshot {
            peer,
            app: String::new(),
            prefixes: Vec::new(),
            backup_prefixes: Vec::new(),
            stats: Stats(live.map(|(_, live)| live.stats).unwrap_or_default()),
            dropped_packets: by_name(drops.by_reason()),
            paths: paths.collect(),
        }
    }
}

fn classes_snapshot(figures: &ClassificationFigures) -> ClassesSnapshot {
    let name = |class: BuiltInClass| class.name().to_owned();
    let counts = figures.counts.iter();
    let sorted = counts.map(|(class, by, count)| SortedSnapshot {
        class: class.map(name),
        by: (*by).to_owned(),
        flows: count.flows,
        carried_packets: count.packets,
        carried_bytes: count.bytes,
    });
    let flows = figures.largest.iter().map(|flow| {
        let ports = match flow.key.part {
            Part::Ports(ports) => Some(ports),
            Part::Fragments { .. } | Part::All => None,
        };
        FlowSnapshot {
            source: flow.key.source.to_string(),
            destination: flow.key.destination.to_string(),
            protocol: flow.key.protocol,
            source_port: ports.map(|ports| ports.source),
            destination_port: ports.map(|ports| ports.destination),
            class: flow.sorted.class.map(name),
            why: flow.evidence.to_string(),
            carried_packets: flow.packets,
            carried_bytes: flow.bytes,
        }
    });
    ClassesSnapshot {
        sorted: sorted.collect(),
        unread_handshakes: figures.unread_handshakes,
        flows: flows.collect(),
    }
}

fn mapped_network(mapping: &Mapping) -> MappedNetwork {
    MappedNetwork {
        local: mapping.local.to_string(),
        network: mapping.network.to_string(),
    }
}

fn by_name(counts: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    let counts = counts.into_iter();
    counts.map(|(name, n)| (name.to_owned(), n)).collect()
}

/// Whether IP packets of a tenant are an application's.
fn gives_packets_to(tenant: &Tenant, app: AppIndex) -> bool {
    apps_of_packets(tenant).any(|of| of == app)
}

/// Whether this gateway can have sent a peer a packet of a tenant with this address. A peer's report of another
/// one is wrong, whatever the reason.
fn may_have_sent(
    tenant: &Tenant,
    config: &Config,
    peer: &str,
    address: core::PacketAddress,
) -> bool {
    let is_in = |prefixes: &[IpNet], address| prefixes.iter().any(|net| net.contains(&address));
    match address {
        core::PacketAddress::Source(address) => {
            tenant.exit.is_some() || is_in(&tenant.prefixes, address)
        }
        core::PacketAddress::Destination(address) => tenant
            .peers
            .iter()
            .filter(|of| config[of.peer].name.as_str() == peer)
            .any(|of| is_in(&of.prefixes, address) || is_in(&of.backup_prefixes, address)),
    }
}

fn on_path(name: &str, path: &core::TenantPathSnapshot) -> TenantPathSnapshot {
    TenantPathSnapshot {
        path: name.to_owned(),
        stats: Stats(path.stats),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
[gateway]
name = "a"
[[path]]
name = "wan0"
local = "192.0.2.1:7600"
rate = "100Mbit"
[[peer]]
name = "osaka"
public_key = "ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU="
[[peer]]
name = "nara"
public_key = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
[[app]]
name = "ip-osaka"
class = "datagram"
peer = "osaka"
[[app]]
name = "ip-nara"
class = "datagram"
peer = "nara"
[tenant.blue]
id = 1
prefixes = ["10.1.0.0/16"]
[tenant.blue.peer.osaka]
prefixes = ["10.2.0.0/16"]
app = "ip-osaka"
[tenant.blue.peer.nara]
prefixes = ["10.3.0.0/16"]
app = "ip-nara"
"#;

    #[test]
    fn report_of_an_address_never_sent_to_the_peer_is_ignored() {
        let config = Config::parse(CONFIG, "f").expect("valid");
        let tenant = &config.tenants[0];
        let address = |text: &str| text.parse().expect("an address");
        let source = |text: &str| core::PacketAddress::Source(address(text));
        let destination = |text: &str| core::PacketAddress::Destination(address(text));
        for (peer, claimed, expected) in [
            ("osaka", source("10.1.0.7"), true),
            ("osaka", source("10.2.0.7"), false),
            ("osaka", source("2001:db8::1"), false),
            ("osaka", destination("10.2.0.7"), true),
            ("osaka", destination("10.1.0.7"), false),
            // The other peer's.
            ("osaka", destination("10.3.0.7"), false),
            ("nara", destination("10.3.0.7"), true),
            ("kobe", destination("10.3.0.7"), false),
        ] {
            let found = may_have_sent(tenant, &config, peer, claimed);
            assert_eq!(found, expected, "{peer} {claimed:?}");
        }
    }
}
