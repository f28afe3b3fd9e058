//! What a reload changes.
//!
//! Compares two configurations by name, so that moving entries about in the file changes
//! nothing. The contents of key files are not looked at. Acting on the changes is the gateway's.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{
    App, AppIndex, Config, Forward, Gateway, Listener, MessageClient, MessageTls, Peer, Tenant,
    TenantRule, Transport,
};

/// The difference of two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConfigDiff {
    /// Keys of `[gateway]` whose values changed.
    pub gateway: Vec<String>,
    /// By name.
    pub paths: Changes,
    /// By name. A peer with another key is one that changed.
    pub peers: Changes,
    /// By name.
    pub apps: Changes,
    /// By address; TCP's begin with `tcp `.
    pub listeners: Changes,
    /// By application.
    pub forwards: Changes,
    /// By name.
    #[serde(default)]
    pub tenants: Changes,
    /// By name. The contents of token files are not looked at.
    #[serde(default)]
    pub message_clients: Changes,
}

/// Entries of one kind that are new, gone, or there with other values; sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changes {
    /// Only in the new configuration.
    pub added: Vec<String>,
    /// Only in the old configuration.
    pub removed: Vec<String>,
    /// In both, with different values.
    pub changed: Vec<String>,
}

impl Changes {
    /// Nothing changed.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl ConfigDiff {
    /// Nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ConfigDiff {
    /// One line: `path +path3 -path1; app ~A3`, or `nothing changed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = Changes {
            changed: self.gateway.clone(),
            ..Changes::default()
        };
        let kinds = [
            ("gateway", &gateway),
            ("path", &self.paths),
            ("peer", &self.peers),
            ("app", &self.apps),
            ("listener", &self.listeners),
            ("forward", &self.forwards),
            ("tenant", &self.tenants),
            ("message_client", &self.message_clients),
        ];
        let mut separator = "";
        for (kind, changes) in kinds {
            if changes.is_nothing() {
                continue;
            }
            write!(f, "{separator}{kind}")?;
            separator = "; ";
            for (sign, names) in [
                ('+', &changes.added),
                ('-', &changes.removed),
                ('~', &changes.changed),
            ] {
                for name in names {
                    write!(f, " {sign}{name}")?;
                }
            }
        }
        if self.is_empty() {
            f.write_str("nothing changed")
        } else {
            Ok(())
        }
    }
}

pub(super) fn diff(old: &Config, new: &Config) -> ConfigDiff {
    ConfigDiff {
        gateway: {
            let mut keys = gateway_keys(&old.gateway, &new.gateway);
            // Tables of their own, and like these keys there once.
            keys.extend((old.store != new.store).then(|| "store".to_owned()));
            keys.extend((old.history != new.history).then(|| "history".to_owned()));
            let same = old.aggregation == new.aggregation;
            keys.extend((!same).then(|| "aggregation".to_owned()));
            keys.extend((old.fairness != new.fairness).then(|| "fairness".to_owned()));
            keys.extend((old.network != new.network).then(|| "network".to_owned()));
            let (tls_old, tls_new) = (&old.message_tls, &new.message_tls);
            keys.extend((tls_old != tls_new).then(|| "message_tls".to_owned()));
            let moved = listen_of(tls_old) != listen_of(tls_new);
            keys.extend(moved.then(|| "message_tls.listen".to_owned()));
            keys
        },
        paths: changes(
            old.paths.iter().map(|p| (p.name.to_string(), p)),
            new.paths.iter().map(|p| (p.name.to_string(), p)),
        ),
        peers: changes(peers(old), peers(new)),
        apps: changes(apps(old), apps(new)),
        listeners: changes(listeners(old), listeners(new)),
        forwards: changes(forwards(old), forwards(new)),
        tenants: changes(tenants(old), tenants(new)),
        message_clients: changes(message_clients(old), message_clients(new)),
    }
}

fn changes<T: PartialEq>(
    old: impl Iterator<Item = (String, T)>,
    new: impl Iterator<Item = (String, T)>,
) -> Changes {
    let mut old: BTreeMap<String, T> = old.collect();
    let new: BTreeMap<String, T> = new.collect();
    let mut changes = Changes::default();
    for (name, value) in new {
        match old.remove(&name) {
            None => changes.added.push(name),
            Some(before) if before != value => changes.changed.push(name),
            Some(_) => {}
        }
    }
    changes.removed = old.into_keys().collect();
    changes
}

fn gateway_keys(old: &Gateway, new: &Gateway) -> Vec<String> {
    // Destructured, so that a new key cannot be forgotten here.
    let Gateway {
        name,
        private_key_file,
        control_socket,
        readonly_socket,
        readonly_group,
        message_socket,
        message_tcp,
        metrics,
        metrics_public,
        state_directory,
        scheduler,
        planner,
        tolerance,
        probe_share,
        socket_group,
        auto_uplinks,
    } = old;
    let keys = [
        ("name", *name != new.name),
        (
            "private_key_file",
            *private_key_file != new.private_key_file,
        ),
        ("control_socket", *control_socket != new.control_socket),
        // Its default follows the control socket, which is named then.
        (
            "readonly_socket",
            *readonly_socket != new.readonly_socket && *control_socket == new.control_socket,
        ),
        ("readonly_group", *readonly_group != new.readonly_group),
        ("message_socket", *message_socket != new.message_socket),
        ("message_tcp", *message_tcp != new.message_tcp),
        ("metrics", *metrics != new.metrics),
        ("metrics_public", *metrics_public != new.metrics_public),
        ("state_directory", *state_directory != new.state_directory),
        ("scheduler", *scheduler != new.scheduler),
        ("planner", *planner != new.planner),
        ("tolerance", *tolerance != new.tolerance),
        ("probe_share", *probe_share != new.probe_share),
        ("socket_group", *socket_group != new.socket_group),
        ("uplinks", *auto_uplinks != new.auto_uplinks),
    ];
    keys.into_iter()
        .filter(|(_, changed)| *changed)
        .map(|(key, _)| key.to_owned())
        .collect()
}

/// Peers with the names instead of the indices of their paths.
fn peers(config: &Config) -> impl Iterator<Item = (String, impl PartialEq)> {
    config.peers.iter().map(|peer| {
        let endpoints = peer
            .endpoints
            .iter()
            .map(|(path, e)| (config[*path].name.as_str(), *e));
        let endpoints: BTreeMap<&str, _> = endpoints.collect();
        let Peer {
            name,
            public_key,
            preshared_key_file,
            preshared_key,
            origin,
            endpoints: _,
            endpoint,
            further_paths: _,
            reassembly_max,
        } = peer;
        let endpoint = endpoint.clone();
        let rest = (
            *public_key,
            (preshared_key_file.clone(), preshared_key.clone(), *origin),
            *reassembly_max,
            endpoint,
        );
        let endpoints: Vec<_> = endpoints
            .into_iter()
            .map(|(n, e)| (n.to_owned(), e))
            .collect();
        (name.to_string(), (rest, endpoints))
    })
}

/// Applications with names instead of indices.
fn apps(config: &Config) -> impl Iterator<Item = (String, impl PartialEq)> {
    config.apps.iter().map(|app| {
        let App {
            name,
            wire_name,
            class,
            peer,
            latency_target,
            lifetime,
            loss,
            length,
            interval,
            paths,
            essential,
            path,
        } = app;
        let peer = config[*peer].name.clone();
        let path = path.map(|p| config[p].name.clone());
        let traffic = (*latency_target, *lifetime, *length, *interval);
        let traffic = (traffic, *loss, *essential, wire_name.clone());
        (name.to_string(), (*class, peer, (*paths, path), traffic))
    })
}

fn listeners(config: &Config) -> impl Iterator<Item = (String, impl PartialEq)> {
    config.listeners.iter().map(|listener| {
        let Listener {
            app,
            transport,
            local,
            member,
        } = listener;
        let key = match transport {
            Transport::Udp => local.to_string(),
            Transport::Tcp | Transport::Tproxy => format!("tcp {local}"),
        };
        (key, (config[*app].name.clone(), *transport, member.clone()))
    })
}

fn forwards(config: &Config) -> impl Iterator<Item = (String, impl PartialEq)> {
    let entry = |Forward {
                     app,
                     to,
                     allow_local,
                     member,
                 }: &Forward| {
        let value = (to.clone(), *allow_local, member.clone());
        (config[*app].name.to_string(), value)
    };
    config.forwards.iter().map(entry)
}

fn listen_of(tls: &Option<MessageTls>) -> Option<&[std::net::SocketAddr]> {
    tls.as_ref().map(|tls| &*tls.listen)
}

/// Clients with names instead of indices.
fn message_clients(config: &Config) -> impl Iterator<Item = (String, impl PartialEq)> {
    config.message_clients.iter().map(|client| {
        let MessageClient {
            name,
            token_file,
            send,
            receive,
            connections_max,
            messages_max,
            bytes_max,
        } = client;
        let names = |apps: &[AppIndex]| -> Vec<_> {
            apps.iter().map(|app| config[*app].name.clone()).collect()
        };
        let limits = (*connections_max, *messages_max, *bytes_max);
        let value = (token_file.clone(), names(send), names(receive), limits);
        (name.to_string(), value)
    })
}

/// Tenants with names instead of indices.
fn tenants(config: &Config) -> impl Iterator<Item = (String, impl PartialEq)> {
    config.tenants.iter().map(|tenant| {
        let peers = tenant.peers.iter().map(|peer| {
            let names = (
                config[peer.peer].name.clone(),
                config[peer.app].name.clone(),
            );
            let prefixes = (peer.prefixes.clone(), peer.backup_prefixes.clone());
            (names, prefixes, peer.transit, peer.is_direct)
        });
        let rules = tenant.rules.iter().map(|rule| {
            (
                config[rule.app].name.clone(),
                TenantRule {
                    app: AppIndex(0),
                    ..rule.clone()
                },
            )
        });
        let peers: Vec<_> = peers.collect();
        let rules: Vec<_> = rules.collect();
        let rest = Tenant {
            peers: Vec::new(),
            rules: Vec::new(),
            class_apps: BTreeMap::new(),
            ..tenant.clone()
        };
        (tenant.name.to_string(), (rest, peers, rules))
    })
}
