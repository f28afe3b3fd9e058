//! `[network]`: the part of a gateway in a network of sites.

use std::path::PathBuf;

use keiro_config::{TableReader, file_name};

use super::{
    PeerEndpoint, PeerIndex,
    endpoint::peer_endpoints,
    entries::{Names, Reader},
    values::{text, value},
};

/// The part of a gateway in a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It has the registry, and its sites reach each other through it.
    Hub(Hub),
    /// It is a site. What there is at the other sites it learns from its hub.
    Branch { hub: PeerIndex },
    /// It serves the sites with a copy of the registry of the first hub, which alone is changed.
    SecondHub { first: PeerIndex },
}

/// `[network]` of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    /// The registry's file, read with [`crate::network::Registry::load`].
    pub registry: PathBuf,
    /// Where branches reach it, as invitations name it; may be empty.
    pub endpoint: Vec<PeerEndpoint>,
}

impl Reader<'_> {
    pub(super) fn membership(
        &mut self,
        mut fields: TableReader<'_, '_>,
        peers: &Names,
    ) -> Option<Membership> {
        let is_one = self.one_of(&fields, &["registry", "hub", "first_hub"], EXAMPLE);
        let r = &mut self.report;
        let registry = fields.optional(r, "registry", file_name);
        let endpoint = peer_endpoints(&mut fields, "endpoint", r);
        let hub = fields.optional(r, "hub", text);
        let first = fields.optional(r, "first_hub", text);
        fields.refuse_unknown_keys(r);
        if let (None, Some((_, at))) = (&registry, endpoint.first())
            && !fields.has("registry")
        {
            let message = "endpoint: only the first hub has one here";
            r.add(at, message, "write it into the [[peer]] of the hub");
        }
        if !is_one {
            return None;
        }
        if let Some(registry) = value(registry) {
            let endpoint = endpoint.into_iter().map(|(endpoint, _)| endpoint).collect();
            return Some(Membership::Hub(Hub { registry, endpoint }));
        }
        if let Some(first) = first {
            let first = PeerIndex(self.reference("first_hub", &first, peers)?);
            return Some(Membership::SecondHub { first });
        }
        let hub = self.reference("hub", &hub?, peers)?;
        Some(Membership::Branch {
            hub: PeerIndex(hub),
        })
    }
}

const EXAMPLE: &str = "\"/etc/keiro/network/registry.toml\" at the hub, hub = \"NAME\" at a branch, or first_hub = \"NAME\" at a second hub";
