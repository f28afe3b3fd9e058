//! The command line of `keiro init asbr` and `keiro init egress`.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::Ipv6Net;

use super::*;

#[derive(Debug, Subcommand)]
pub(crate) enum InitRole {
    /// A border router of the egress suite, and its egress peers
    ///
    /// Prints the command for content servers.
    Asbr(InitAsbr),
    /// A content server of the egress suite
    Egress(InitEgress),
}

/// What both roles have.
#[derive(Args, Debug)]
pub(crate) struct InitBgp {
    /// The AS number of this network
    #[arg(long)]
    pub(crate) asn: u32,
    /// The BGP identifier; an IPv4 address of this machine unless given
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) router_id: Option<Ipv4Addr>,
    /// A route reflector, or a border router itself; repeat it for several
    #[arg(long = "reflector", value_name = "ADDRESS", required = true)]
    pub(crate) reflectors: Vec<IpAddr>,
    /// Replace a configuration that is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct InitAsbr {
    #[command(flatten)]
    pub(crate) common: InitBgp,
    /// The configuration to write
    #[arg(long, value_name = "FILE", default_value = "/etc/keiro/asbr.toml", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// The prefix of this router's segments, which no other router has
    #[arg(long, value_name = "PREFIX")]
    pub(crate) locator: Ipv6Net,
    /// A prefix of this network, announced to egress peers; repeat it for several
    #[arg(long, value_name = "PREFIX")]
    pub(crate) announce: Vec<IpNet>,
    /// An egress peer, as transit-a=65001@2001:db8:f:a::1; repeat it for several
    #[arg(long = "peer", value_name = "NAME=ASN@ADDRESS", required = true)]
    pub(crate) peers: Vec<InitPeer>,
    /// Turn on IPv6 forwarding, now and at the next start of the machine
    #[arg(long)]
    pub(crate) forwarding: bool,
}

#[derive(Args, Debug)]
pub(crate) struct InitEgress {
    #[command(flatten)]
    pub(crate) common: InitBgp,
    /// The configuration to write
    #[arg(long, value_name = "FILE", default_value = "/etc/keiro/egress.toml", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// An egress peer: the route target of its routes and the EPE address of this server, as
    /// transit-a=65000:1@2001:db8:a:e::a; repeat it for several
    #[arg(long = "peer", value_name = "NAME=TARGET@ADDRESS", required = true)]
    pub(crate) peers: Vec<InitEpe>,
}

/// An egress peer of a border router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InitPeer {
    pub(crate) name: String,
    pub(crate) asn: u32,
    pub(crate) address: IpAddr,
}

/// An egress peer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InitEpe {
    pub(crate) name: String,
    /// As in the configuration, `65000:1`.
    pub(crate) target: String,
    pub(crate) address: Ipv6Addr,
}

/// A name, and what stands before and after the `@`.
fn parts(text: &str) -> Option<(String, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    let (before, after) = rest.split_once('@')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let plain = !name.is_empty() && name.chars().all(is_plain);
    plain.then(|| (name.to_owned(), before, after))
}

impl FromStr for InitPeer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (name, asn, address) = parts(text)?;
            Some(Self {
                name,
                asn: asn.parse().ok()?,
                address: address.parse().ok()?,
            })
        };
        read().ok_or_else(|| {
            "write it as NAME=ASN@ADDRESS, for example transit-a=65001@2001:db8:f:a::1".to_owned()
        })
    }
}

impl FromStr for InitEpe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (name, target, address) = parts(text)?;
            let (administrator, number) = target.split_once(':')?;
            let of_as = administrator.parse::<u32>().is_ok();
            let of_address = administrator.parse::<Ipv4Addr>().is_ok();
            number.parse::<u32>().ok()?;
            (of_as || of_address).then_some(())?;
            Some(Self {
                name,
                target: target.to_owned(),
                address: address.parse().ok()?,
            })
        };
        read().ok_or_else(|| {
            "write it as NAME=TARGET@ADDRESS, for example transit-a=65000:1@2001:db8:a:e::a"
                .to_owned()
        })
    }
}
