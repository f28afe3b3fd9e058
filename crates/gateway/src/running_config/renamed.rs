//! Peers and applications that have another name than before, and otherwise stay as they are.

use std::collections::BTreeMap;

use keiro_control::config::Config;

use super::{Identity, RunningConfig, app_id};

/// Names that have changed while what they name stays.
#[derive(Debug, Default)]
pub(crate) struct Renamed {
    pub(crate) peers: Vec<Rename>,
    pub(crate) apps: Vec<Rename>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rename {
    pub(crate) before: String,
    pub(crate) now: String,
}

impl Renamed {
    /// Names that have not changed are themselves.
    pub(crate) fn peer<'a>(&'a self, name: &'a str) -> &'a str {
        of(&self.peers, name)
    }

    /// As [`Renamed::peer`].
    pub(crate) fn app<'a>(&'a self, name: &'a str) -> &'a str {
        of(&self.apps, name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.apps.is_empty()
    }
}

fn of<'a>(renames: &'a [Rename], name: &'a str) -> &'a str {
    let mut renames = renames.iter();
    renames
        .find(|rename| rename.before == name)
        .map_or(name, |rename| &rename.now)
}

impl RunningConfig {
    /// What the applications of `config` were called until now.
    pub(super) fn renamed_apps(&self, config: &Config) -> Vec<Rename> {
        let renamed = config.apps.iter().filter_map(|app| {
            let before = &self.apps.get(&app_id(app))?.name;
            (before != app.name.as_str()).then(|| Rename {
                before: before.clone(),
                now: app.name.to_string(),
            })
        });
        renamed.collect()
    }

    /// Gives peers with these identities, which are in the order of `config`, the names that they have there.
    pub(super) fn rename_peers(&mut self, config: &Config, identities: &[Identity]) -> Vec<Rename> {
        let known: BTreeMap<[u8; 32], &String> = self
            .peers
            .iter()
            .map(|(name, peer)| (peer.identity.public_key, name))
            .collect();
        let mut renames = Vec::new();
        for (peer, identity) in config.peers.iter().zip(identities) {
            let before = known.get(&identity.public_key).copied();
            let before = before.filter(|before| {
                before.as_str() != peer.name.as_str() && self.peers[*before].identity == *identity
            });
            renames.extend(before.map(|before| Rename {
                before: before.clone(),
                now: peer.name.to_string(),
            }));
        }
        // Two may have changed their names with each other.
        let take = |rename: &Rename| Some((rename.now.clone(), self.peers.remove(&rename.before)?));
        let moved: Vec<_> = renames.iter().filter_map(take).collect();
        self.peers.extend(moved);
        renames
    }
}
