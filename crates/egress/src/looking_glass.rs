//! The looking glass: received routes in pages, those that are not used with the reason.
//!
//! A page is bounded in routes and in destinations looked at, so that the event loop is not held up by a
//! filter that matches little. The client asks again with the cursor of the last page.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher, RouteTarget},
    attributes::Attributes,
    rib::{NeighbourId, Path, Source},
    speaker::Speaker,
};
use serde::{Deserialize, Serialize};

use crate::status::PathStatus;

/// Which routes are wanted. Conditions that are not set match every route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteQuery {
    /// Routes to this prefix and to parts of it.
    pub prefix: Option<IpNet>,
    /// The name of the neighbour that announced them.
    pub neighbour: Option<String>,
    /// `65000:1`.
    pub distinguisher: Option<String>,
    /// `65000:1`.
    pub target: Option<String>,
    /// A community `65000:100`, or a large community `65000:1:2`.
    pub community: Option<String>,
    /// Only those that are not used.
    pub unused: bool,
    /// Routes of a page, at most [`PAGE_MAX`]; it ends after all paths of its last destination.
    pub limit: usize,
    /// [`RoutesPage::next`] of the page before; `None`: the first page.
    pub after: Option<Cursor>,
}

/// A place between two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The neighbour whose denied routes are listed; `None`: accepted routes are.
    denied_of: Option<u16>,
    /// Of a VPN route.
    distinguisher: Option<u64>,
    /// The last destination looked at; `None`: before the first.
    prefix: Option<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesPage {
    pub routes: Vec<RouteStatus>,
    /// Where the next page begins; `None`: this is the last one.
    pub next: Option<Cursor>,
}

/// A received route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    pub prefix: IpNet,
    #[serde(flatten)]
    pub path: PathStatus,
    /// `65000:100`.
    pub communities: Vec<String>,
    /// `65000:1:2`.
    pub large_communities: Vec<String>,
    /// Route targets of a VPN route.
    pub targets: Vec<String>,
    /// The tables that use it; empty: none does.
    pub used_in: Vec<String>,
    /// Why it is not used; `None`: it is.
    pub unused: Option<String>,
}

/// The tables that use a path, or why none does.
pub type Usage = Result<Vec<String>, String>;

/// Whether a path is the best one, which the main table uses.
pub(crate) fn best_usage(speaker: &Speaker, destination: &Destination, path: &Path) -> Usage {
    if path.source == Source::Local {
        return Ok(vec!["originated here".to_owned()]);
    }
    if !path.reachable {
        return Err("its next hop cannot be reached".to_owned());
    }
    match speaker.rib().best(destination) {
        Some(best) if std::ptr::eq(best, path) => Ok(vec!["main table".to_owned()]),
        Some(best) => {
            let step = speaker.deciding_step(best, path);
            Err(format!("the best path has: {step}"))
        }
        None => Err("no path is usable".to_owned()),
    }
}

/// What a page is made from.
pub(crate) struct Received<'a> {
    pub(crate) speaker: &'a Speaker,
    /// Names of the neighbours; empty: it was removed.
    pub(crate) names: &'a [&'a str],
    pub(crate) usage: &'a dyn Fn(&Destination, &Path) -> Usage,
}

/// The parsed conditions.
struct Filter {
    prefix: Option<IpNet>,
    neighbour: Option<NeighbourId>,
    distinguisher: Option<RouteDistinguisher>,
    target: Option<RouteTarget>,
    community: Option<CommunityFilter>,
    unused: bool,
}

enum CommunityFilter {
    Standard(u32),
    Large([u32; 3]),
}

/// Most routes of a page. Ours.
pub const PAGE_MAX: usize = 1000;
/// Bytes of a page's JSON, about; an answer has at most twice as many. Ours.
const PAGE_BYTES_MAX: usize = 2 << 20;
/// A route without its AS path, with all of its communities, and a number of the AS path. Ours.
const ROUTE_BYTES: usize = 1024;
const NUMBER_BYTES: usize = 11;
/// Destinations that are looked at for a page: a few milliseconds. Ours.
const LOOKED_AT_MAX: usize = 10_000;

/// Lists a page.
///
/// # Errors
/// A condition is malformed or names something unknown; the text says which.
pub(crate) fn page(of: &Received<'_>, query: &RouteQuery) -> Result<RoutesPage, String> {
    let filter = Filter::parse(query, of.names)?;
    let mut limits = Limits {
        routes_max: query.limit.clamp(1, PAGE_MAX),
        left: LOOKED_AT_MAX,
        weighed: 0,
        bytes: 0,
    };
    let mut page = RoutesPage {
        routes: Vec::new(),
        next: None,
    };
    let mut denied_of = query.after.and_then(|cursor| cursor.denied_of);
    // A cursor is the client's word.
    if denied_of.is_some_and(|id| usize::from(id) >= of.names.len()) {
        return Ok(page);
    }
    let mut after = query.after.and_then(|cursor| cursor.destination());
    loop {
        let to = &mut page.routes;
        let last = match denied_of {
            None => filter.accepted(of, after, &mut limits, to),
            Some(id) => filter.denied(of, NeighbourId(id), after, &mut limits, to),
        };
        if last.is_some() {
            page.next = Some(Cursor::at(denied_of, last));
            return Ok(page);
        }
        after = None;
        let following = denied_of.map_or(0, |id| id + 1);
        if usize::from(following) >= of.names.len() {
            return Ok(page);
        }
        denied_of = Some(following);
    }
}

/// What is left of a page's bounds.
struct Limits {
    routes_max: usize,
    /// Destinations that may be looked at.
    left: usize,
    /// The routes whose size is known, and that size.
    weighed: usize,
    bytes: usize,
}

impl Limits {
    /// Counts a destination that was looked at.
    fn is_reached(&mut self, routes: &[RouteStatus]) -> bool {
        self.left = self.left.saturating_sub(1);
        for route in &routes[self.weighed..] {
            self.bytes += ROUTE_BYTES + NUMBER_BYTES * route.path.as_path.len();
        }
        self.weighed = routes.len();
        self.left == 0 || routes.len() >= self.routes_max || self.bytes >= PAGE_BYTES_MAX
    }
}

impl Cursor {
    fn at(denied_of: Option<u16>, destination: Option<Destination>) -> Self {
        Self {
            denied_of,
            distinguisher: destination
                .and_then(|destination| destination.distinguisher())
                .map(|rd| rd.0),
            prefix: destination.map(|destination| destination.prefix()),
        }
    }

    fn destination(&self) -> Option<Destination> {
        match (self.distinguisher, self.prefix?) {
            (Some(rd), prefix) => Some(Destination::vpn(RouteDistinguisher(rd), prefix)),
            (None, prefix) => Some(Destination::unicast(prefix)),
        }
    }
}

impl Filter {
    fn parse(query: &RouteQuery, names: &[&str]) -> Result<Self, String> {
        let neighbour = query.neighbour.as_deref().map(|name| {
            let place = names
                .iter()
                .position(|known| *known == name && !name.is_empty());
            let place = place.and_then(|place| u16::try_from(place).ok());
            place.map(NeighbourId).ok_or_else(|| {
                let known: Vec<&str> = names
                    .iter()
                    .copied()
                    .filter(|name| !name.is_empty())
                    .collect();
                format!(
                    "no neighbour is called `{name}`; there are: {}",
                    known.join(", ")
                )
            })
        });
        let rd = query.distinguisher.as_deref().map(|text| {
            text.parse()
                .map_err(|error| format!("route distinguisher `{text}`: {error}"))
        });
        let target = query.target.as_deref().map(|text| {
            text.parse()
                .map_err(|error| format!("route target `{text}`: {error}"))
        });
        Ok(Self {
            prefix: query.prefix.map(|prefix| prefix.trunc()),
            neighbour: neighbour.transpose()?,
            distinguisher: rd.transpose()?,
            target: target.transpose()?,
            community: query.community.as_deref().map(community).transpose()?,
            unused: query.unused,
        })
    }

    /// Takes accepted routes after a destination; `Some`: the page is full, the last one looked at.
    fn accepted(
        &self,
        of: &Received<'_>,
        after: Option<Destination>,
        limits: &mut Limits,
        to: &mut Vec<RouteStatus>,
    ) -> Option<Destination> {
        let mut last = after;
        'seek: loop {
            let from = self.seek(last.unwrap_or(FIRST))?;
            let all = of.speaker.rib().from(from);
            for (destination, paths) in all.filter(|(at, _)| Some(**at) != after) {
                let again = last == Some(*destination);
                last = Some(*destination);
                if self.wants(destination) {
                    for path in paths {
                        self.add(of, destination, path, to);
                    }
                } else if !again && self.seek(*destination) != last {
                    continue 'seek;
                }
                if limits.is_reached(to) {
                    return last;
                }
            }
            return None;
        }
    }

    /// The least destination from `from` on that may match; `None`: there is none. What lies between is
    /// passed over: with a prefix, one distinguisher at a time.
    fn seek(&self, from: Destination) -> Option<Destination> {
        let least_rd = self.distinguisher.unwrap_or(RouteDistinguisher(0));
        let [vpn6, vpn4] = Destination::first_of_vpn(least_rd);
        let Some(rd) = from.distinguisher() else {
            let only_vpn = self.distinguisher.is_some() || self.target.is_some();
            return match only_vpn {
                true => self.seek(vpn6),
                false => self.seek_prefix(from, [vpn6, vpn4]),
            };
        };
        let is_ipv4 = from.family() == Family::Vpn4;
        if rd < least_rd {
            return self.seek(if is_ipv4 { vpn4 } else { vpn6 });
        }
        match self.distinguisher.is_some_and(|wanted| rd > wanted) {
            true if is_ipv4 => None,
            true => self.seek(vpn4),
            false => self.seek_prefix(from, [vpn6, vpn4]),
        }
    }

    /// The same where only the prefix is a condition; `vpns`: the least VPN route that matches, of each family.
    fn seek_prefix(&self, from: Destination, vpns: [Destination; 2]) -> Option<Destination> {
        let Some(prefix) = self.prefix else {
            return Some(from);
        };
        let of_family = |[vpn6, vpn4]: [Destination; 2]| match prefix {
            IpNet::V4(_) => vpn4,
            IpNet::V6(_) => vpn6,
        };
        let at = from.prefix();
        if at.addr().is_ipv4() != prefix.addr().is_ipv4() {
            let firsts = [Destination::unicast(prefix), of_family(vpns)];
            let next = firsts.into_iter().find(|first| *first > from)?;
            return self.seek(next);
        }
        let passed = at.addr() > prefix.broadcast();
        match (from.distinguisher(), passed) {
            (None, false) => Some(Destination::unicast(at.max(prefix))),
            (None, true) => self.seek(of_family(vpns)),
            (Some(rd), false) => Some(Destination::vpn(rd, at.max(prefix))),
            (Some(rd), true) => {
                let next = RouteDistinguisher(rd.0.checked_add(1)?);
                self.seek(of_family(Destination::first_of_vpn(next)))
            }
        }
    }

    /// Takes denied routes of a neighbour after a destination; `Some`: the page is full.
    fn denied(
        &self,
        of: &Received<'_>,
        id: NeighbourId,
        after: Option<Destination>,
        limits: &mut Limits,
        to: &mut Vec<RouteStatus>,
    ) -> Option<Destination> {
        let asked = self.neighbour.is_none_or(|wanted| wanted == id);
        if !asked || of.names[usize::from(id.0)].is_empty() {
            return None;
        }
        let mut last = None;
        for (destination, path) in of.speaker.denied(id, after) {
            // With several paths of one destination the page ends after the last.
            if last.is_some_and(|last| last != destination) && limits.is_reached(to) {
                return last;
            }
            last = Some(destination);
            if self.wants(&destination) && self.matches(&path.attributes) {
                to.push(RouteStatus {
                    unused: Some("denied by the import policy".to_owned()),
                    ..RouteStatus::of(of, &destination, &path, &path)
                });
            }
        }
        None
    }

    fn add(
        &self,
        of: &Received<'_>,
        destination: &Destination,
        path: &Path,
        to: &mut Vec<RouteStatus>,
    ) {
        let from = match path.source {
            Source::Local => None,
            Source::Neighbour(id) => Some(id),
        };
        let by = self.neighbour.is_none_or(|wanted| from == Some(wanted));
        if !by || !self.matches(&path.attributes) {
            return;
        }
        let (used_in, unused) = match (of.usage)(destination, path) {
            Ok(_) if self.unused => return,
            Ok(used_in) => (used_in, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let paths = of.speaker.rib().paths(destination);
        let best = paths.first().unwrap_or(path);
        to.push(RouteStatus {
            used_in,
            unused,
            ..RouteStatus::of(of, destination, best, path)
        });
    }

    fn wants(&self, destination: &Destination) -> bool {
        let prefix = destination.prefix();
        self.prefix.is_none_or(|wanted| wanted.contains(&prefix))
            && self
                .distinguisher
                .is_none_or(|wanted| destination.distinguisher() == Some(wanted))
            && (self.target.is_none() || destination.is_vpn())
    }

    fn matches(&self, attributes: &Attributes) -> bool {
        let target = |wanted| attributes.route_targets().any(|target| target == wanted);
        let community = match &self.community {
            None => true,
            Some(CommunityFilter::Standard(wanted)) => attributes.communities.contains(wanted),
            Some(CommunityFilter::Large(wanted)) => attributes.large.contains(wanted),
        };
        community && self.target.is_none_or(target)
    }
}

impl RouteStatus {
    fn of(of: &Received<'_>, destination: &Destination, best: &Path, path: &Path) -> Self {
        let attributes = &path.attributes;
        let standard = attributes.communities.iter();
        let large = attributes.large.iter();
        let mut status = PathStatus::of(of.speaker, of.names, destination.prefix(), best, path);
        if let Some(rd) = destination.distinguisher() {
            status.distinguisher = Some(rd.to_string());
        }
        Self {
            prefix: destination.prefix(),
            path: status,
            communities: standard
                .take(COMMUNITIES_MAX)
                .map(|one| format!("{}:{}", one >> 16, one & 0xffff))
                .collect(),
            large_communities: large
                .take(COMMUNITIES_MAX)
                .map(|[a, b, c]| format!("{a}:{b}:{c}"))
                .collect(),
            targets: attributes
                .route_targets()
                .take(COMMUNITIES_MAX)
                .map(|target| target.to_string())
                .collect(),
            used_in: Vec::new(),
            unused: None,
        }
    }
}

/// The least destination.
const FIRST: Destination = Destination::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
/// Communities of a route that are shown. Ours.
const COMMUNITIES_MAX: usize = 64;

fn community(text: &str) -> Result<CommunityFilter, String> {
    let wrong =
        || format!("community `{text}`: write it as 65000:100, or a large one as 65000:1:2");
    let parts: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
    match parts.map_err(|_| wrong())?[..] {
        [asn, value] => {
            let asn = u16::try_from(asn).map_err(|_| wrong())?;
            let value = u16::try_from(value).map_err(|_| wrong())?;
            Ok(CommunityFilter::Standard(
                u32::from(asn) << 16 | u32::from(value),
            ))
        }
        [a, b, c] => Ok(CommunityFilter::Large([a, b, c])),
        _ => Err(wrong()),
    }
}
