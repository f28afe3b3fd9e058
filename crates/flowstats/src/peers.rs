//! Names of egress peers, by the segments that lead to them.

use std::{borrow::Cow, collections::BTreeMap, net::Ipv6Addr, str::FromStr};

use crate::FURTHER;

/// One name of a segment, written `NAME=SEGMENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The egress peer's name.
    pub name: String,
    pub sid: Ipv6Addr,
}

#[derive(Clone, Debug, Default)]
pub struct Peers(BTreeMap<Ipv6Addr, String>);

/// Text that is no [`Peer`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// There is no name or no segment.
    #[error("`{0}` is not NAME=SEGMENT, as in transit-a=fd00:51d::a")]
    Form(String),
    /// The segment is none.
    #[error("`{0}` is no IPv6 address")]
    Address(String),
}

impl FromStr for Peer {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, sid) = parts.ok_or_else(|| PeerError::Form(text.into()))?;
        Ok(Self {
            name: name.into(),
            sid: sid.parse().map_err(|_| PeerError::Address(sid.into()))?,
        })
    }
}

impl FromIterator<Peer> for Peers {
    fn from_iter<T: IntoIterator<Item = Peer>>(all: T) -> Self {
        Self(all.into_iter().map(|peer| (peer.sid, peer.name)).collect())
    }
}

impl Peers {
    /// What a segment is called: its peer's name, itself where it has none, and `best path` for
    /// packets without a segment, which go where ordinary routes lead.
    pub fn name(&self, sid: Option<Ipv6Addr>) -> Cow<'_, str> {
        match sid {
            None => BEST_PATH.into(),
            Some(FURTHER) => "further segments".into(),
            Some(sid) => match self.0.get(&sid) {
                Some(name) => name.into(),
                None => sid.to_string().into(),
            },
        }
    }
}

const BEST_PATH: &str = "best path";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_without_a_name_are_called_by_their_address() {
        let peers: Peers = ["transit-a=fd00::a".parse().unwrap()].into_iter().collect();
        assert_eq!(peers.name(Some("fd00::a".parse().unwrap())), "transit-a");
        assert_eq!(peers.name(Some("fd00::b".parse().unwrap())), "fd00::b");
        assert_eq!(peers.name(None), "best path");
        assert!("fd00::a".parse::<Peer>().is_err());
        assert!("a=b".parse::<Peer>().is_err());
    }
}
