//! Firewalls of this machine, and the command of the program that owns the chain.

use ipnet::IpNet;

use super::Cause;
use crate::{
    Facts, Subject,
    facts::{Lan, Tenant, Uplink},
    firewall::{ChainId, Firewall, Owner, Packet, Tool},
};

pub(super) static INPUT_BLOCKED: Cause = Cause {
    id: "input_blocked",
    what: "the machine's firewall drops what peers send to a path's UDP port",
    remedy: "that port, opened in the firewall that the finding names",
    check: |facts, found| {
        let mut all = Vec::new();
        for uplink in facts
            .uplinks
            .iter()
            .filter(|uplink| uplink.problem.is_none())
        {
            let Some(interface) = uplink.interface.as_deref() else {
                continue;
            };
            let Some(is_reply) = missing(facts, uplink) else {
                continue;
            };
            let packet = Packet {
                incoming: interface,
                outgoing: None,
                source: None,
                destination: uplink.local.map(|local| IpNet::from(local.ip())),
                is_ipv6: uplink.local.is_some_and(|local| local.is_ipv6()),
                udp_port: Some(uplink.port),
                is_reply,
            };
            let path = Subject::Path(uplink.path.clone());
            if let Some(chain_id) = facts.firewall.dropped_by(packet)
                && !found.has(&path)
            {
                all.push(INPUT_BLOCKED.found(
                    path,
                    format!(
                        "{chain_id} drops what comes in by {interface} for UDP port {}",
                        uplink.port
                    ),
                    open_port(&facts.firewall, chain_id, uplink.port),
                ));
            }
        }
        all
    },
};

pub(super) static FORWARD_BLOCKED: Cause = Cause {
    id: "forward_blocked",
    what: "the machine's firewall drops what a tenant's hosts and peers send each other: the policy of Docker, ufw, \
           firewalld or of other rules",
    remedy: "rules for both directions, by the command of the firewall that the finding names",
    check: |facts, _| {
        let mut all = Vec::new();
        for tenant in &facts.tenants {
            let blocked = tenant.lans.iter().find_map(|lan| {
                let chain_id = blocked_between(&facts.firewall, tenant, lan)?;
                Some((lan, chain_id))
            });
            let Some((lan, chain_id)) = blocked else {
                continue;
            };
            let owner = match facts.firewall.owner(chain_id) {
                Owner::Docker => ", whose policy Docker has set,",
                Owner::Ufw => " of ufw",
                Owner::Firewalld => " of firewalld",
                Owner::Rules => "",
            };
            all.push(FORWARD_BLOCKED.found(
                Subject::Tenant(tenant.name.clone()),
                format!(
                    "{chain_id}{owner} drops packets between {} and {}",
                    lan.interface, tenant.device
                ),
                pass_between(&facts.firewall, chain_id, &lan.interface, &tenant.device),
            ));
        }
        all
    },
};

/// Whether a peer is missing that would come in by an uplink, and whether it only answers; `None`: none is.
fn missing(facts: &Facts, uplink: &Uplink) -> Option<bool> {
    if facts.gateway.is_none() {
        let mut peers = facts.peers.iter();
        return peers.any(|peer| peer.endpoints.is_empty()).then_some(false);
    }
    if facts.is_in_use(&uplink.path) {
        return None;
    }
    let down: Vec<bool> = facts
        .peers_down()
        .map(|(peer, _)| !peer.endpoints.is_empty())
        .collect();
    match down.is_empty() {
        true => None,
        // A peer that comes by itself needs more.
        false => Some(down.iter().all(|has_endpoint| *has_endpoint)),
    }
}

/// The chain that drops packets between the tenant's hosts and its peers in both directions. One direction may be
/// meant.
fn blocked_between<'a>(firewall: &'a Firewall, tenant: &Tenant, lan: &Lan) -> Option<&'a ChainId> {
    [false, true].into_iter().find_map(|is_ipv6| {
        let is_of = |network: &&IpNet| network.addr().is_ipv6() == is_ipv6;
        let mut of_peers = tenant.peers.iter().flat_map(|peer| &peer.prefixes);
        let theirs = *of_peers.find(is_of)?;
        let near = lan.networks.iter().find(is_of).copied();
        let near = near.or_else(|| tenant.prefixes.iter().find(is_of).copied())?;
        let out = Packet {
            incoming: &lan.interface,
            outgoing: Some(&tenant.device),
            source: Some(near),
            destination: Some(theirs),
            is_ipv6,
            udp_port: None,
            is_reply: false,
        };
        let back = Packet {
            incoming: &tenant.device,
            outgoing: Some(&lan.interface),
            source: Some(theirs),
            destination: Some(near),
            ..out
        };
        firewall.dropped_by(back)?;
        firewall.dropped_by(out)
    })
}

/// The command that lets packets to a UDP port in.
fn open_port(firewall: &Firewall, chain_id: &ChainId, port: u16) -> String {
    match (firewall.owner(chain_id), chain_id.tool) {
        (Owner::Ufw, _) => format!("`ufw allow {port}/udp`"),
        (Owner::Firewalld, _) => {
            format!("`firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload`")
        }
        (Owner::Docker | Owner::Rules, Tool::Iptables) => format!(
            "`{} -I INPUT -p udp --dport {port} -j ACCEPT`, and the same where the machine keeps its rules",
            chain_id.iptables()
        ),
        (Owner::Docker | Owner::Rules, Tool::Nft) => format!(
            "`nft insert rule {} udp dport {port} accept`, and the same in /etc/nftables.conf",
            chain_id.nft()
        ),
    }
}

/// The command that lets packets pass between two interfaces.
fn pass_between(firewall: &Firewall, chain_id: &ChainId, lan: &str, device: &str) -> String {
    let iptables = chain_id.iptables();
    let both = |chain: &str| {
        format!(
            "`{iptables} -I {chain} -i {lan} -o {device} -j ACCEPT && {iptables} -I {chain} -i {device} -o {lan} -j ACCEPT`"
        )
    };
    match (firewall.owner(chain_id), chain_id.tool) {
        (Owner::Ufw, _) => {
            format!(
                "`ufw route allow in on {lan} out on {device} && ufw route allow in on {device} out on {lan}`"
            )
        }
        (Owner::Firewalld, _) => format!(
            "`firewall-cmd --permanent --zone=trusted --add-interface={lan} --add-interface={device} && firewall-cmd --reload`"
        ),
        (Owner::Docker, _) => format!("{}, also after a restart of Docker", both("DOCKER-USER")),
        (Owner::Rules, Tool::Iptables) => {
            format!(
                "{}, and the same where the machine keeps its rules",
                both("FORWARD")
            )
        }
        (Owner::Rules, Tool::Nft) => {
            let chain = chain_id.nft();
            format!(
                "`nft 'insert rule {chain} iifname \"{lan}\" oifname \"{device}\" accept; insert rule {chain} iifname \
                 \"{device}\" oifname \"{lan}\" accept'`, and the same in /etc/nftables.conf"
            )
        }
    }
}
