//! What the gateways of a network exchange beside users' traffic: JSON documents, one per message of an
//! application that every gateway with `[network]` has.
//!
//! Only the forms are here. Who may send what, and what follows from it, is the gateway's.

#[cfg(test)]
mod tests;
mod texts;

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    config::Name,
    key::{PresharedKey, PublicKey},
    network::{PublicRegistry, REPLICA_BYTES_MAX, Replica},
};

/// The application of the documents. No name in a configuration may begin with [`RESERVED_PREFIX`].
pub const NETWORK_APP: &str = "keiro.network";
/// Names of applications that begin so are Keiro's own.
pub const RESERVED_PREFIX: &str = "keiro.";
/// Bytes of a document; a longer one is refused.
pub const DOCUMENT_BYTES_MAX: usize = REPLICA_BYTES_MAX;
/// Bytes of a document of a gateway that joins; a longer one is refused.
pub const ENROL_BYTES_MAX: usize = 64 << 10;
/// Prefixes of one site; more are refused. Ours.
pub const SITE_PREFIXES_MAX: usize = 64;

/// One message. Fields that a reader does not know are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Document {
    /// From a gateway that joins, to the hub.
    Enrol(Enrol),
    /// The hub has the gateway as a site.
    Enrolled(Box<Enrolled>),
    /// The hub does not have it.
    EnrolRefused(EnrolRefused),
    /// From the hub to a site: what there is at all sites.
    Registry(Box<PublicRegistry>),
    /// From the first hub to the second: the registry itself, with the sites' keys.
    RegistryCopy(Box<Replica>),
    /// From one hub to the other: which sites have a session with it.
    SitesUp(SitesUp),
    /// From a branch to a hub: it has packets for another site.
    DirectWanted(DirectWanted),
    /// From a hub to two branches: each may begin a session with the other.
    Direct(Box<Direct>),
    /// Of a newer release.
    #[serde(other)]
    Unknown,
}

/// Which other site a branch has packets for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectWanted {
    pub site: Name,
}

/// What one branch needs for a session with another, beside its key, which the registry has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direct {
    /// The other one.
    pub site: Name,
    /// Drawn by the hub for these two and this time.
    #[serde(with = "texts::preshared_key")]
    pub preshared_key: PresharedKey,
    /// Where the hub sees it.
    pub endpoint: Vec<std::net::SocketAddr>,
}

/// The sites that have a session with a hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SitesUp {
    pub sites: BTreeSet<Name>,
}

/// What a gateway asks for that joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrol {
    /// Its own key, which the provisional one gives way to.
    #[serde(with = "texts::one")]
    pub public_key: PublicKey,
    pub name: Name,
    /// The networks behind it.
    #[serde(with = "texts::list")]
    pub prefixes: Vec<IpNet>,
}

/// What a site needs beside what its token has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    pub name: Name,
    /// As the hub calls itself.
    pub hub: Name,
    /// From now on between hub and site, instead of the one of the token.
    #[serde(with = "texts::preshared_key")]
    pub preshared_key: PresharedKey,
    /// The tenant that the sites' packets belong to.
    pub tenant: Name,
    pub tenant_id: u32,
    /// Networks behind the site, as the hub has noted them.
    #[serde(with = "texts::list")]
    pub prefixes: Vec<IpNet>,
    /// It is the second hub and no branch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_second_hub: bool,
    /// An address of the hub's device in that tenant, which answers pings; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_address: Option<std::net::IpAddr>,
    /// The hub's clock.
    pub hub_unix_seconds: u64,
}

/// Why a gateway is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolRefused {
    pub reason: EnrolRefusedReason,
    /// In words, with what to do.
    pub text: String,
    /// The hub's clock.
    pub hub_unix_seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrolRefusedReason {
    /// The invitation is over, by the hub's clock.
    Expired,
    /// Another gateway has joined with it.
    Used,
    /// The hub does not have the invitation any more.
    Revoked,
    /// Another site or peer has the name.
    NameTaken,
    /// A prefix is not permitted, or another site's.
    Prefix,
    /// The key is that of another site or of the hub.
    KeyTaken,
    /// The hub cannot write its registry now.
    Unavailable,
    /// The request is not understood.
    Malformed,
    /// A reason of a newer release.
    #[serde(other)]
    Unknown,
}

impl EnrolRefusedReason {
    /// As in the documents, for events and log lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Used => "used",
            Self::Revoked => "revoked",
            Self::NameTaken => "name_taken",
            Self::Prefix => "prefix",
            Self::KeyTaken => "key_taken",
            Self::Unavailable => "unavailable",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
        }
    }
}

/// Why bytes are no document.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("the document has {0} bytes, more than {DOCUMENT_BYTES_MAX}")]
    TooLong(usize),
    #[error("the document is not understood: {0}")]
    NotUnderstood(#[from] serde_json::Error),
}

impl Document {
    /// Reads a message.
    ///
    /// # Errors
    /// It is too long or has another form.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return Err(DocumentError::TooLong(bytes.len()));
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    /// The message.
    ///
    /// # Errors
    /// It is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DocumentError> {
        let bytes = serde_json::to_vec(self)?;
        match bytes.len() {
            length if length > DOCUMENT_BYTES_MAX => Err(DocumentError::TooLong(length)),
            _ => Ok(bytes),
        }
    }
}
