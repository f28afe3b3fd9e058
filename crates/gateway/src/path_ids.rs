//! Identifiers of the configured paths.
//!
//! A path has one [`PathId`] for all peers, which it keeps over reloads; the core uses the same. Names
//! are for what leaves the gateway: files, the control socket, logs. Positions in the configuration
//! ([`PathIndex`]) are for planning, which sees one configuration only.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::config::{Config, PathIndex};
use keiro_core::{PathId, PeerId};

/// Identifiers are below this: a peer keeps something of 64 path numbers.
const IDS: u8 = 64;

/// The identifiers of the configuration in use.
#[derive(Default)]
pub(crate) struct PathIds {
    by_name: BTreeMap<String, PathId>,
    by_index: BTreeMap<PathIndex, PathId>,
    next: u8,
}

/// A path to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerPath {
    pub(crate) peer: PeerId,
    pub(crate) path: PathId,
}

impl PeerPath {
    pub(crate) fn new(peer: PeerId, path: PathId) -> Self {
        Self { peer, path }
    }
}

impl PathIds {
    /// Follows a new configuration. New paths get identifiers that no path has had yet, as long as
    /// there are any, because an identifier names a packet-number space of each session.
    pub(crate) fn apply_config(&mut self, config: &Config) {
        let wanted: BTreeSet<&str> = config.paths.iter().map(|path| path.name.as_str()).collect();
        let mut taken: BTreeSet<PathId> = self.by_name.values().copied().collect();
        self.by_name
            .retain(|name, _| wanted.contains(name.as_str()));
        for name in config.paths.iter().map(|path| path.name.as_str()) {
            if self.by_name.contains_key(name) {
                continue;
            }
            let mut candidates = (0..IDS).map(|step| PathId((self.next + step) % IDS));
            // A further path gets no identifier.
            let Some(id) = candidates.find(|id| !taken.contains(id)) else {
                break;
            };
            taken.insert(id);
            self.by_name.insert(name.to_owned(), id);
            self.next = (id.0 + 1) % IDS;
        }
        let ids = config
            .paths
            .iter()
            .enumerate()
            .filter_map(|(number, path)| {
                let id = self.by_name.get(path.name.as_str())?;
                Some((PathIndex(number), *id))
            });
        self.by_index = ids.collect();
    }

    /// `None`: more paths are configured than there are identifiers.
    pub(crate) fn id(&self, index: PathIndex) -> Option<PathId> {
        self.by_index.get(&index).copied()
    }

    pub(crate) fn id_of_name(&self, name: &str) -> Option<PathId> {
        self.by_name.get(name).copied()
    }

    /// The position in the configuration; `None`: it is not configured any more.
    pub(crate) fn index(&self, id: PathId) -> Option<PathIndex> {
        let mut all = self.by_index.iter();
        all.find(|(_, other)| **other == id)
            .map(|(index, _)| *index)
    }

    pub(crate) fn name(&self, id: PathId) -> Option<&str> {
        let mut all = self.by_name.iter();
        all.find(|(_, other)| **other == id)
            .map(|(name, _)| name.as_str())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = PathId> + '_ {
        self.by_index.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use keiro_planning::testing::paper;

    use super::*;

    #[test]
    fn paths_keep_their_identifiers_and_removed_ones_are_not_reused() {
        let mut ids = PathIds::default();
        let mut config = paper("", "");
        ids.apply_config(&config);
        let [first, second] = [0, 1].map(|number| ids.id(PathIndex(number)).unwrap());
        assert_eq!((first, second), (PathId(0), PathId(1)));
        let removed = config.paths.remove(0);
        ids.apply_config(&config);
        assert_eq!(ids.id(PathIndex(0)), Some(second));
        assert_eq!(
            (ids.index(second), ids.index(first)),
            (Some(PathIndex(0)), None)
        );
        assert_eq!(ids.name(second), Some("path2"));
        config.paths.push(removed);
        ids.apply_config(&config);
        assert_eq!(ids.id_of_name("path1"), Some(PathId(2)));
        assert_eq!(ids.iter().collect::<Vec<_>>(), [second, PathId(2)]);
    }
}
