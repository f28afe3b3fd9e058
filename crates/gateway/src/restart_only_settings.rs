//! The settings that this process runs with and only a restart changes.

use std::collections::BTreeMap;

use keiro_control::{
    config::{Config, Peer},
    key::PublicKey,
};
use keiro_units::ByteCount;

/// Keys of `[gateway]`, and tables that are there once, that a reload puts into force.
const LIVE_KEYS: [&str; 8] = [
    "name",
    "planner",
    "tolerance",
    "scheduler",
    "probe_share",
    "aggregation",
    "fairness",
    "message_tls",
];

/// What is in force, whatever the configuration file says by now.
#[derive(Debug)]
pub(crate) struct RestartOnlySettings {
    /// The configuration of the start.
    started_with: Config,
    /// `reassembly_max` of each peer since it was added, with its key: with another key it is
    /// another peer.
    reassembly_max: BTreeMap<String, (PublicKey, ByteCount)>,
    /// What waits for a restart, one line each.
    pending: Vec<String>,
}

impl RestartOnlySettings {
    pub(crate) fn new(config: &Config) -> Self {
        let mut running = Self {
            started_with: config.clone(),
            reassembly_max: BTreeMap::new(),
            pending: Vec::new(),
        };
        running.update_peers(config);
        running
    }

    /// Follows a configuration that was applied. `is_own_key`: its private key file holds the key
    /// in use.
    pub(crate) fn apply_config(&mut self, config: &Config, is_own_key: bool) {
        self.update_peers(config);
        let changed = self.started_with.diff(config).gateway;
        let changed = changed
            .iter()
            .filter(|key| !LIVE_KEYS.contains(&key.as_str()));
        // With the same key in it, another file changes nothing.
        let changed = changed.filter(|key| *key != "private_key_file");
        let mut pending: Vec<String> = changed
            .map(|key| format!("{key}: the new value takes effect after a restart"))
            .collect();
        if !is_own_key {
            pending.push(
                "the private key file holds another key; it takes effect after a restart".into(),
            );
        }
        for peer in &config.peers {
            let running = self.reassembly_max.get(peer.name.as_str());
            if running.is_some_and(|(_, bytes)| *bytes != peer.reassembly_max) {
                pending.push(format!(
                    "peer {}: reassembly_max takes effect after a restart",
                    peer.name
                ));
            }
        }
        self.pending = pending;
    }

    pub(crate) fn pending(&self) -> &[String] {
        &self.pending
    }

    /// The limit in force for a peer's messages that are not complete.
    pub(crate) fn reassembly_max(&self, peer: &Peer) -> ByteCount {
        let running = self.reassembly_max.get(peer.name.as_str());
        running.map_or(peer.reassembly_max, |(_, bytes)| *bytes)
    }

    fn update_peers(&mut self, config: &Config) {
        let before = std::mem::take(&mut self.reassembly_max);
        for peer in &config.peers {
            let name = peer.name.as_str();
            let running = before.get(name).copied();
            let running = running.filter(|(key, _)| *key == peer.public_key);
            let running = running.unwrap_or((peer.public_key, peer.reassembly_max));
            self.reassembly_max.insert(name.to_owned(), running);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(metrics: &str, planner: &str, reassembly_max: &str) -> Config {
        let text = format!(
            "[gateway]\nname = \"a\"\nmetrics = \"{metrics}\"\nplanner = \"{planner}\"\n\
             [[path]]\nname = \"wan0\"\nlocal = \"192.0.2.1:7600\"\nrate = \"100Mbit\"\n\
             [[peer]]\nname = \"b\"\npublic_key = \"ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=\"\n\
             reassembly_max = \"{reassembly_max}\"\n"
        );
        Config::parse(&text, "f").unwrap()
    }

    #[test]
    fn pending_restart_lists_what_differs_from_what_runs() {
        let started = config("127.0.0.1:9477", "exact", "64MiB");
        let mut running = RestartOnlySettings::new(&started);
        running.apply_config(&config("127.0.0.1:9478", "frugal", "64MiB"), true);
        let line = "metrics: the new value takes effect after a restart";
        assert_eq!(running.pending(), [line]);
        // Reading the same file again brings nothing of it.
        running.apply_config(&config("127.0.0.1:9478", "frugal", "128MiB"), true);
        let peer = "peer b: reassembly_max takes effect after a restart";
        assert_eq!(running.pending(), [line, peer]);
        running.apply_config(&config("127.0.0.1:9478", "frugal", "128MiB"), false);
        assert_eq!(running.pending().len(), 3);
        // The values that run are written again.
        running.apply_config(&started, true);
        assert_eq!(running.pending(), [] as [&str; 0]);
    }
}
