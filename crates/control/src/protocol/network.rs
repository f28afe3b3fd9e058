//! Answers to `show_network`.

use serde::{Deserialize, Serialize};

/// The network as one of its branches sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NetworkSnapshot {
    /// The branch itself.
    pub site: String,
    /// The other sites, by name.
    pub sites: Vec<NetworkSiteSnapshot>,
}

/// Another site, and how packets reach it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NetworkSiteSnapshot {
    pub name: String,
    /// Which way packets for it take.
    pub route: SiteRoute,
    /// The hub that passes them on; absent: none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// Why they take this way, in a few words.
    pub why: String,
    /// Before this time no direct session is asked for; absent: one is there, is tried, or is asked for with the next
    /// packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_seconds: Option<f64>,
    /// Networks behind it.
    pub prefixes: Vec<String>,
}

/// Which way packets for another site take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SiteRoute {
    /// A session with the site itself.
    Direct,
    /// A hub passes them on.
    Relayed,
    /// There is neither such a session nor one with a hub.
    Unreachable,
    /// A way of a newer gateway.
    #[serde(other)]
    Unknown,
}
