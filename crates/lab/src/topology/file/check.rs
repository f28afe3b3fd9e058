//! Checks of a topology that involve several keys.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use keiro_config::{LocatedError, Report, nearest};
use toml::Spanned;

use super::{
    super::{
        Emulation, End, HOSTS_MAX, HostPlan, LINKS_MAX, LinkPlan, Prefix, PrefixError, Route,
        Topology, WIRE, is_name,
    },
    DirectionFile, EndFile, HostFile, LinkFile, Recordings, RouteFile, SysctlValue, TopologyFile,
};

/// Makes a topology of a file.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) recordings: Recordings,
    /// The host and the link of each address.
    addresses: BTreeMap<IpAddr, (String, String)>,
}

impl Checker {
    /// The topology; `None` if a problem was reported.
    pub(super) fn topology(
        &mut self,
        parsed: TopologyFile,
        report: &mut Report<'_>,
    ) -> Option<Topology> {
        let lab_name = parsed
            .name
            .map(|lab| name(lab, "laboratory", LAB_NAME_BYTES_MAX));
        let lab_name = report.keep(lab_name.transpose());
        for (what, number, max) in [
            ("hosts", parsed.host.len(), HOSTS_MAX),
            ("links", parsed.link.len(), LINKS_MAX),
        ] {
            if number > max {
                let message = format!("{number} {what}");
                report.add(&(0..0), message, &format!("at most {max} are possible"));
                return None;
            }
        }
        if parsed.host.is_empty() {
            report.add(
                &(0..0),
                "no hosts",
                "write at least one, as in [host.tokyo]",
            );
        }
        let mut host_files = BTreeMap::new();
        for (key, host) in parsed.host {
            let named = report.keep(host_name(key));
            host_files.extend(named.map(|name| (name, host)));
        }
        // The following checks name hosts, of which those with problems would be missing.
        if !report.is_empty() {
            return None;
        }
        let mut links = BTreeMap::new();
        for (key, link) in parsed.link {
            let named = report.keep(name(key, "link", LINK_NAME_BYTES_MAX));
            if let Some(name) = named
                && let Some(plan) = report.keep(self.link(&name, link, &host_files))
            {
                links.insert(name, plan);
            }
        }
        // Routes need all links.
        if !report.is_empty() {
            return None;
        }
        let mut hosts = BTreeMap::new();
        for (name, file) in host_files {
            let plan = report.keep(host(&name, file, &links));
            hosts.extend(plan.map(|plan| (name, plan)));
        }
        Some(Topology {
            name: lab_name?,
            hosts,
            links,
        })
    }

    fn link(
        &mut self,
        name: &str,
        link: LinkFile,
        hosts: &BTreeMap<String, HostFile>,
    ) -> Result<LinkPlan, LocatedError> {
        let mtu = match link.mtu {
            None => MTU_DEFAULT,
            Some(mtu) if MTU_RANGE.contains(mtu.get_ref()) => mtu.into_inner(),
            Some(mtu) => {
                let (low, high) = (MTU_RANGE.start, MTU_RANGE.end - 1);
                let message = format!("an mtu is a number from {low} to {high}");
                return Err(LocatedError::new(mtu.span(), message));
            }
        };
        let b_host_span = link.b.host.span();
        let a = self.end(name, link.a, hosts)?;
        let b = self.end(name, link.b, hosts)?;
        if a.host == b.host {
            let message = format!("both ends of link `{name}` are at host `{}`", a.host);
            return Err(LocatedError::new(b_host_span, message));
        }
        let emulation = emulation(
            link.emulated,
            link.each_way.as_ref(),
            link.a_to_b.as_ref(),
            link.b_to_a.as_ref(),
            &mut self.recordings,
        )?;
        Ok(LinkPlan {
            mtu,
            a,
            b,
            emulation,
        })
    }

    fn end(
        &mut self,
        link: &str,
        end: EndFile,
        hosts: &BTreeMap<String, HostFile>,
    ) -> Result<End, LocatedError> {
        if !hosts.contains_key(end.host.get_ref()) {
            let known = hosts.keys().map(String::as_str);
            let message = unknown("host", end.host.get_ref(), known);
            return Err(LocatedError::new(end.host.span(), message));
        }
        let host = end.host.into_inner();
        let mut addresses = Vec::new();
        for address in end.addresses {
            let span = address.span();
            let prefix = address.into_inner().0;
            let ip = prefix.address();
            if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() {
                let message = format!("{ip} cannot be a host's address on a link");
                return Err(LocatedError::new(span, message));
            }
            if let Some((host, link)) = self.addresses.get(&ip) {
                let message = format!("{ip} is already host `{host}`'s on link `{link}`");
                return Err(LocatedError::new(span, message));
            }
            self.addresses.insert(ip, (host.clone(), link.to_owned()));
            addresses.push(prefix);
        }
        Ok(End { host, addresses })
    }
}

fn emulation(
    emulated: bool,
    each_way: Option<&Spanned<DirectionFile>>,
    a_to_b: Option<&Spanned<DirectionFile>>,
    b_to_a: Option<&Spanned<DirectionFile>>,
    recordings: &mut Recordings,
) -> Result<Option<Emulation>, LocatedError> {
    for section in [each_way, a_to_b, b_to_a].into_iter().flatten() {
        let checked = section.get_ref().check();
        checked.map_err(|message| LocatedError::new(section.span(), message))?;
    }
    let fallback = each_way.map_or_else(DirectionFile::default, |d| d.get_ref().clone());
    let mut direction = |own: Option<&Spanned<DirectionFile>>| {
        let written = own.map_or_else(DirectionFile::default, |d| d.get_ref().clone());
        let complete = written.or(fallback.clone()).config(recordings);
        complete.map_err(|message| {
            let span = own.or(each_way).map_or(0..0, Spanned::span);
            LocatedError::new(span, message)
        })
    };
    let (a_to_b, there) = direction(a_to_b)?;
    let (b_to_a, back) = direction(b_to_a)?;
    let emulation = Emulation {
        a_to_b,
        b_to_a,
        recordings: [there, back],
    };
    Ok((emulated || emulation != Emulation::default()).then_some(emulation))
}

fn host(
    name: &str,
    host: HostFile,
    links: &BTreeMap<String, LinkPlan>,
) -> Result<HostPlan, LocatedError> {
    let routes = host
        .routes
        .into_iter()
        .map(|entry| route(name, &entry, links))
        .collect::<Result<_, _>>()?;
    let mut sysctls = BTreeMap::new();
    for (key, value) in host.sysctl {
        if !is_namespace_sysctl(key.get_ref()) {
            let message = format!(
                "`{}` is not a sysctl of a network namespace; those begin with `net.`, as in \
                 \"net.ipv4.ip_forward\"",
                key.get_ref()
            );
            return Err(LocatedError::new(key.span(), message));
        }
        let value = match value {
            SysctlValue::Text(text) => text,
            SysctlValue::Number(number) => number.to_string(),
            SysctlValue::Switch(on) => u8::from(on).to_string(),
        };
        sysctls.insert(key.into_inner(), value);
    }
    Ok(HostPlan { routes, sysctls })
}

fn route(
    host: &str,
    route: &RouteFile,
    links: &BTreeMap<String, LinkPlan>,
) -> Result<Route, LocatedError> {
    let via = *route.via.get_ref();
    let to = match route.to.get_ref().as_str() {
        "default" => Prefix::everything_like(via),
        text => text
            .parse()
            .map_err(|error: PrefixError| LocatedError::new(route.to.span(), error.to_string()))?,
    };
    if !to.is_network() {
        let message = format!("{to} is an address in a network; a route leads to a network");
        return Err(LocatedError::new(route.to.span(), message));
    }
    if to.address().is_ipv4() != via.is_ipv4() {
        let message = format!("{to} and {via} are of different address families");
        return Err(LocatedError::new(route.via.span(), message));
    }
    let hop = links.iter().find(|(_, link)| {
        let near = link.end(host).map_or(&[][..], |end| &end.addresses);
        let far = link.far_end(host).map_or(&[][..], |end| &end.addresses);
        far.iter().any(|prefix| prefix.address() == via)
            && near.iter().any(|prefix| prefix.contains(via))
    });
    let Some((link, _)) = hop else {
        let hops: Vec<_> = links
            .values()
            .filter_map(|link| link.far_end(host))
            .flat_map(|end| &end.addresses)
            .map(|prefix| prefix.address().to_string())
            .collect();
        let message = format!(
            "{via} is no neighbour of host `{host}` in a network of its own; its neighbours \
             are {}",
            if hops.is_empty() {
                "none".into()
            } else {
                hops.join(", ")
            }
        );
        return Err(LocatedError::new(route.via.span(), message));
    };
    Ok(Route {
        to,
        via,
        link: link.clone(),
    })
}

fn host_name(key: Spanned<String>) -> Result<String, LocatedError> {
    let at = key.span();
    let name = name(key, "host", HOST_NAME_BYTES_MAX)?;
    if name == WIRE {
        let message = format!(
            "no host may be called `{name}`; the laboratory's namespace for emulated links has this name"
        );
        return Err(LocatedError::new(at, message));
    }
    Ok(name)
}

fn name(name: Spanned<String>, what: &str, length_max: usize) -> Result<String, LocatedError> {
    if is_name(name.get_ref(), length_max) {
        return Ok(name.into_inner());
    }
    let message = format!(
        "`{}` cannot be the name of a {what}: use at most {length_max} lower-case letters, \
         digits and hyphens, beginning with a letter",
        name.get_ref()
    );
    Err(LocatedError::new(name.span(), message))
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(name, known.clone()) {
        Some(near) => format!("there is no {what} `{name}`; did you mean `{near}`?"),
        None => {
            let list: Vec<_> = known.collect();
            format!(
                "there is no {what} `{name}`; there are: {}",
                list.join(", ")
            )
        }
    }
}

/// `net.` and further parts of letters, digits, underscores and hyphens. Nothing leads out of
/// `/proc/sys/net`, where every value belongs to the namespace.
fn is_namespace_sysctl(key: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    key.starts_with("net.") && key.split('.').all(part)
}

pub(crate) const LAB_NAME_BYTES_MAX: usize = 64;
const HOST_NAME_BYTES_MAX: usize = 64;
/// A network device's name has 15 bytes (`IFNAMSIZ` minus one); the wire's devices add two.
const LINK_NAME_BYTES_MAX: usize = 13;
const MTU_DEFAULT: u32 = 1500;
/// From IPv6's minimum (RFC 8200 §5) to the maximum of the emulator's frames.
const MTU_RANGE: Range<u32> = 1280..9001;
