//! Sorts IP flows into built-in classes, without rules for them.
//!
//! [`FlowClassifier`] sees packets of one tenant in both directions. It decides once per flow, from the first evidence
//! that it finds; the strongest counts: a port that one kind of traffic uses ([`ports`]), the server's name in a TLS
//! handshake ([`tls`]), the form of the first packets ([`media`]), the name by which the client asked for the server's
//! address ([`dns`], [`names`]), the DSCP, a common port. Later a flow may become bulk, by what it carries, and
//! nothing else ([`flow`]). Payloads are read and not kept, apart from the begin of a few TLS handshakes that span
//! packets. All tables are bounded, and forget what was used longest ago.
//!
//! What has no evidence has no class: the tenant's own application carries it.

mod cache;
mod dns;
mod flow;
mod flow_classifier;
mod known_names;
mod media;
mod names;
mod ports;
#[cfg(test)]
mod tests;
mod tls;

pub use flow_classifier::{Classification, Count, FlowClassifier, FlowFigures, Sorting};
pub use names::{DomainPattern, PATTERNS_MAX, PatternError, PatternId};

/// Kinds of traffic with different needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuiltInClass {
    /// Telephony and meetings, with their video.
    Voice,
    Games,
    /// Remote shells and desktops, names and time.
    Interactive,
    Web,
    /// Downloads, uploads, updates, streamed video, mail: the rate counts and not the delay.
    Bulk,
    Backup,
}

/// Why a flow is in its class, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// There is none.
    None,
    /// A port that many kinds of traffic use, as 443.
    CommonPort(u16),
    /// The DSCP of its first packet.
    Dscp(u8),
    /// The server's name, from a DNS answer: the pattern that it matches.
    Dns(&'static str),
    /// Its packets are those of RTP (RFC 3550).
    Media,
    /// A protocol above IP, as ICMP.
    Protocol(u8),
    /// The server's name, from the TLS handshake.
    Sni(&'static str),
    /// A port that one kind of traffic uses.
    Port(u16),
    /// It has carried as much at a stretch as only bulk traffic does.
    Volume,
}

impl BuiltInClass {
    pub const ALL: [Self; 6] = [
        Self::Voice,
        Self::Games,
        Self::Interactive,
        Self::Web,
        Self::Bulk,
        Self::Backup,
    ];

    /// The name of its applications.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Voice => "voice",
            Self::Games => "games",
            Self::Interactive => "interactive",
            Self::Web => "web",
            Self::Bulk => "bulk",
            Self::Backup => "backup",
        }
    }
}

impl Evidence {
    /// The kinds in words, in the order of their strength.
    pub const KINDS: [&'static str; 9] = [
        "none",
        "common_port",
        "dscp",
        "dns",
        "media",
        "protocol",
        "sni",
        "port",
        "volume",
    ];

    /// Its kind in one word.
    pub const fn kind(self) -> &'static str {
        Self::KINDS[self.strength()]
    }

    /// The place of its kind in [`KINDS`](Self::KINDS).
    const fn strength(self) -> usize {
        match self {
            Self::None => 0,
            Self::CommonPort(_) => 1,
            Self::Dscp(_) => 2,
            Self::Dns(_) => 3,
            Self::Media => 4,
            Self::Protocol(_) => 5,
            Self::Sni(_) => 6,
            Self::Port(_) => 7,
            Self::Volume => 8,
        }
    }
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("no evidence"),
            Self::CommonPort(port) | Self::Port(port) => write!(f, "port {port}"),
            Self::Protocol(number) => write!(f, "IP protocol {number}"),
            Self::Media => f.write_str("its packets are RTP"),
            Self::Dscp(dscp) => write!(f, "DSCP {dscp}"),
            Self::Dns(pattern) => write!(f, "DNS name {pattern}"),
            Self::Sni(pattern) => write!(f, "TLS server name {pattern}"),
            Self::Volume => f.write_str("it carries much at a stretch"),
        }
    }
}
