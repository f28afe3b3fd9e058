//! `keiro invite`, `keiro revoke`, `keiro rename` and `keiro sites`: the registry of a hub.

use std::{
    fmt,
    io::ErrorKind,
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ipnet::IpNet;
use keiro_control::{
    Config,
    config::{Membership, Name, PeerEndpoint},
    enrolment,
    invitation::{ID_BYTES, SECRET_BYTES, Secret, TOKEN_ENDPOINTS_MAX, Token},
    key::{PublicKey, load_private_key},
    network::{
        EditError, Invitation, InvitationId, Registry, RegistryEdit, Replica, SITE_NAME_BYTES_MAX,
    },
    protocol::{PeerSnapshot, PeerState, Request, Response, Timestamp, client::Client},
};
use serde::Serialize;

use super::{keys, query};
use crate::{
    args,
    failure::Failure,
    output::{self, message, table::Table},
};

/// An invitation that is over is kept for so long, so that who comes late learns why. Ours.
const EXPIRED_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest life of a token. Ours.
const EXPIRES_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long the gateway may take for one answer. Ours: to apply a registry takes less than a second.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// How long the peer of a removed site may still be there afterwards. Ours.
const GONE_TIME: Duration = Duration::from_secs(2);
const GONE_POLL: Duration = Duration::from_millis(50);

/// The hub whose registry is changed.
struct Hub {
    config: Config,
    registry: PathBuf,
    endpoints: Vec<PeerEndpoint>,
}

impl Hub {
    fn load(args: &args::HubFile) -> Result<Self, Failure> {
        if !args.config.exists() {
            let what = format!("{}: no such file", args.config.display());
            return Err(Failure::new(what).hint(
                "`keiro init --hub` makes this machine the hub of a network; at another, run this there",
            ));
        }
        let config = Config::load(&args.config)?;
        match &config.network {
            Some(Membership::Hub(hub)) => Ok(Self {
                registry: hub.registry.clone(),
                endpoints: hub.endpoint.clone(),
                config,
            }),
            Some(Membership::Branch { .. }) => Err(Failure::new(
                "this gateway is a branch; its hub has the registry",
            )
            .hint("run the command at the hub")),
            Some(Membership::SecondHub { first }) => {
                let first = &config[*first].name;
                Err(Failure::new(format!(
                    "this gateway is the second hub; `{first}` has the registry, and it is changed there alone"
                ))
                .hint(format!("run the command at `{first}`")))
            }
            None => Err(Failure::new(format!(
                "{} has no [network], so this gateway is no hub",
                args.config.display()
            ))
            .hint("`keiro init --hub` writes the configuration of one, or name the hub's with --config")),
        }
    }

    fn edit(&self) -> Result<RegistryEdit, Failure> {
        RegistryEdit::open(&self.registry).map_err(unwritten)
    }

    /// Lets the running gateway follow the registry, and checks that it has no peer with a key of `removed` then.
    fn apply(&self, removed: &[PublicKey]) -> Result<Applied, Failure> {
        let socket = &self.config.gateway.control_socket;
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused => Ok(Applied::AtStart),
                    _ => Err(unapplied(format!("{}: {error}", socket.display()))),
                };
            }
        };
        stream
            .set_read_timeout(Some(ANSWER_TIME))
            .map_err(unapplied)?;
        let mut client = Client::new(stream);
        let request = Request::FollowRegistry {};
        match client.request(&request).map_err(unapplied)? {
            Response::Done {} => {}
            other => return Err(query::unexpected(&other)),
        }
        let until = Instant::now() + GONE_TIME;
        while !removed.is_empty() {
            let request = Request::ShowPeer { name: None };
            let peers = match client.request(&request).map_err(unapplied)? {
                Response::Peers { peers } => peers,
                other => return Err(query::unexpected(&other)),
            };
            let Some(peer) = still_there(&peers, removed) else {
                break;
            };
            if Instant::now() >= until {
                return Err(unapplied(format!("it still has the peer `{}`", peer.name)));
            }
            thread::sleep(GONE_POLL);
        }
        Ok(Applied::Now)
    }
}

/// When a change of the registry takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Applied {
    Now,
    /// No gateway runs.
    AtStart,
}

fn still_there<'a>(peers: &'a [PeerSnapshot], removed: &[PublicKey]) -> Option<&'a PeerSnapshot> {
    let removed: Vec<String> = removed.iter().map(ToString::to_string).collect();
    peers.iter().find(|peer| removed.contains(&peer.public_key))
}

fn unapplied(why: impl fmt::Display) -> Failure {
    Failure::new("the registry is written, but the running gateway has not applied it")
        .because(why)
        .hint("until it has, it accepts what it accepted before")
        .hint("correct the cause, then `keiro reload`; `journalctl -u keiro-gateway` has the log")
}

fn unwritten(error: EditError) -> Failure {
    Failure::new("the registry is unchanged").because(error)
}

pub(super) fn invite(args: &args::Invite) -> Result<(), Failure> {
    let hub = Hub::load(&args.hub)?;
    let endpoints = endpoints(args, &hub)?;
    let expires_in = args.expires.0;
    if expires_in.is_zero() || expires_in > EXPIRES_MAX {
        let what = format!(
            "--expires {} is outside 1s to {}",
            args.expires,
            days(EXPIRES_MAX)
        );
        return Err(Failure::usage(what, "write 24h, for example"));
    }
    if args.name.as_str().len() > SITE_NAME_BYTES_MAX {
        let what = format!("`{}` has more than {SITE_NAME_BYTES_MAX} bytes", args.name);
        return Err(Failure::usage(what, "choose a shorter name"));
    }
    let private_key = load_private_key(&hub.config.gateway.private_key_file)?;
    let token = new_token(args, endpoints, keys::public_key(&private_key))?;
    let mut edit = hub.edit()?;
    let removal = make_room(&mut edit, &hub.config, args)?;
    let provisional = keys::public_key(&token.secret.provisional_key());
    let invitation = Invitation {
        id: token.id,
        public_key: provisional,
        preshared_key: token.secret.preshared_key(),
        prefixes: (!args.prefixes.is_empty()).then(|| args.prefixes.clone()),
        hub_endpoint: args.second_hub.clone(),
        expires: token.expires(),
        redeemed: None,
    };
    edit.put_invitation(&args.name, &invitation);
    edit.commit().map_err(unwritten)?;
    let name = &args.name;
    removal.report(name);
    let applied = hub.apply(&removal.keys);
    if let Ok(Applied::AtStart) = applied {
        message!(
            "keiro: warning: no gateway runs here yet; start it before the branch joins: `systemctl enable --now \
             keiro-gateway`"
        );
    }
    let until = enrolment::time(token.expires());
    let part = match args.second_hub[..] {
        [] => "invited",
        _ => "invited as the second hub",
    };
    message!("`{name}` is {part} until {until}. At the new site, as root:");
    message!("  keiro join TOKEN");
    message!(
        "with this token, which is a secret until then (`keiro revoke {name}` takes it back):"
    );
    output::text(format_args!("{token}\n"))?;
    // The token is good as soon as the gateway follows.
    applied?;
    Ok(())
}

/// Takes out what the invitation is to replace, and what is over.
fn make_room(
    edit: &mut RegistryEdit,
    config: &Config,
    args: &args::Invite,
) -> Result<Removal, Failure> {
    let now = SystemTime::now();
    let name = &args.name;
    if config.peer_named(name.as_str()).is_some() || *name == config.gateway.name {
        return Err(Failure::new(format!(
            "`{name}` is the name of the hub or of a [[peer]] in its configuration"
        ))
        .hint("choose another name"));
    }
    let registry = edit.registry();
    let removal = Removal::of(registry, name);
    if !args.replace {
        refuse_present(registry, &removal, name, now)?;
    }
    let mut others = registry.clone();
    others.sites.retain(|of, _| !removal.sites.contains(of));
    if !args.second_hub.is_empty()
        && let Some((second, _)) = &registry.second_hub
        && second != name
    {
        return Err(
            Failure::new(format!("the network has the second hub `{second}`"))
                .hint(format!("`keiro revoke {second}` removes it")),
        );
    }
    others.second_hub = others
        .second_hub
        .filter(|(of, _)| !removal.sites.contains(of));
    others
        .refuse_claim(config, &[], name, &args.prefixes)
        .or_else(|refusal| match args.prefixes[..] {
            [] => Ok(()),
            _ => Err(Failure::new("the branch cannot have these prefixes").because(refusal)),
        })?;
    removal.take_out(edit);
    edit.remove_expired(now.checked_sub(EXPIRED_KEPT).unwrap_or(UNIX_EPOCH));
    Ok(removal)
}

/// Refuses to invite what is there already.
fn refuse_present(
    registry: &Registry,
    removal: &Removal,
    name: &Name,
    now: SystemTime,
) -> Result<(), Failure> {
    let waits =
        |invitation: &Invitation| invitation.redeemed.is_none() && !is_over(invitation, now);
    let what = match () {
        () if registry.sites.contains_key(name) => format!("`{name}` is a site already"),
        () if registry.is_second_hub(name) => format!("`{name}` is the second hub already"),
        () if registry.invitations.get(name).is_some_and(waits) => {
            format!("`{name}` is invited already")
        }
        () => match removal.others(name).next() {
            Some(site) => {
                return Err(Failure::new(format!(
                    "site `{site}` has joined with the invitation of `{name}`"
                ))
                .hint("--replace makes a new token and removes that site; another name keeps it"));
            }
            None => return Ok(()),
        },
    };
    Err(Failure::new(what)
        .hint("--replace makes a new token, and refuses the key or token of before from now on"))
}

fn is_over(invitation: &Invitation, now: SystemTime) -> bool {
    now >= invitation.expires
}

/// What is removed with a name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Removal {
    /// And the second hub.
    sites: Vec<Name>,
    invitations: Vec<Name>,
    /// Those of the sites and invitations.
    keys: Vec<PublicKey>,
}

impl Removal {
    /// The site and the invitation of this name, the site that has used the invitation under whatever name, and the
    /// invitations by which these sites came.
    fn of(registry: &Registry, name: &Name) -> Self {
        let mut removal = Self::default();
        let used_by = registry.invitations.get(name).and_then(used_by);
        for (of, site) in registry.members() {
            if of == name || Some(site.public_key) == used_by {
                removal.sites.push(of.clone());
                removal.keys.push(site.public_key);
            }
        }
        let of_sites = removal.keys.clone();
        for (of, invitation) in &registry.invitations {
            if of == name || used_by_one_of(invitation, &of_sites) {
                removal.invitations.push(of.clone());
                removal.keys.push(invitation.public_key);
            }
        }
        removal
    }

    fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.invitations.is_empty()
    }

    /// Sites of other names than this.
    fn others(&self, name: &Name) -> impl Iterator<Item = &Name> {
        self.sites.iter().filter(move |site| *site != name)
    }

    fn take_out(&self, edit: &mut RegistryEdit) {
        for site in &self.sites {
            edit.remove_site(site);
            edit.remove_second_hub(site);
        }
        for invitation in &self.invitations {
            edit.remove_invitation(invitation);
        }
    }

    /// Names what is removed beside the name itself.
    fn report(&self, name: &Name) {
        for site in self.others(name) {
            message!(
                "site `{site}`, which had joined with the invitation of `{name}`, is removed too"
            );
        }
    }
}

/// The key of the site that has used an invitation.
fn used_by(invitation: &Invitation) -> Option<PublicKey> {
    invitation.redeemed.as_ref().map(|redeemed| redeemed.by)
}

fn used_by_one_of(invitation: &Invitation, keys: &[PublicKey]) -> bool {
    used_by(invitation).is_some_and(|key| keys.contains(&key))
}

fn endpoints(args: &args::Invite, hub: &Hub) -> Result<Vec<PeerEndpoint>, Failure> {
    let found = match args.endpoints[..] {
        [] => &hub.endpoints,
        _ => &args.endpoints,
    };
    if found.is_empty() {
        return Err(Failure::new("where branches reach this hub is not known")
            .hint("add --endpoint HOST:PORT, or `endpoint` to [network] of the configuration"));
    }
    match args.endpoints.len() > TOKEN_ENDPOINTS_MAX {
        true => Err(Failure::usage(
            format!("{} endpoints, more than {TOKEN_ENDPOINTS_MAX}", found.len()),
            "keep those that branches reach best",
        )),
        false => Ok(found.iter().take(TOKEN_ENDPOINTS_MAX).cloned().collect()),
    }
}

fn new_token(
    args: &args::Invite,
    hub_endpoints: Vec<PeerEndpoint>,
    hub_key: PublicKey,
) -> Result<Token, Failure> {
    let mut id = [0; ID_BYTES];
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut id)
        .and_then(|()| getrandom::fill(&mut secret))
        .map_err(|error| {
            Failure::new("the operating system gives no random numbers").because(error)
        })?;
    let expires = SystemTime::now() + args.expires.0;
    let expires = expires.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Token {
        id: InvitationId(id),
        secret: Secret::from_bytes(secret),
        hub_key,
        hub_endpoints,
        expires_unix_seconds: expires.as_secs(),
        site: args.name.clone(),
    })
}

pub(super) fn revoke(args: &args::Revoke) -> Result<(), Failure> {
    let hub = Hub::load(&args.hub)?;
    let mut edit = hub.edit()?;
    let name = &args.name;
    let removal = Removal::of(edit.registry(), name);
    if removal.is_empty() {
        return Err(
            Failure::new(format!("there is no site or invitation `{name}`"))
                .hint("`keiro sites` lists them"),
        );
    }
    removal.take_out(&mut edit);
    edit.commit().map_err(unwritten)?;
    removal.report(name);
    match hub.apply(&removal.keys)? {
        Applied::Now => message!("`{name}` is not of the network any more"),
        Applied::AtStart => message!(
            "`{name}` is not in the registry any more; no gateway runs here, so this takes effect when it starts"
        ),
    }
    Ok(())
}

pub(super) fn rename(args: &args::Rename) -> Result<(), Failure> {
    let hub = Hub::load(&args.hub)?;
    let args::Rename { name, new, .. } = args;
    let mut edit = hub.edit()?;
    refuse_new_name(edit.registry(), &hub.config, name, new)?;
    if !edit.rename(name, new) {
        return Err(Failure::new(format!("there is no site `{name}`"))
            .hint("`keiro sites` lists them; an invitation is renamed by `keiro revoke` and `keiro invite`"));
    }
    edit.commit().map_err(unwritten)?;
    match hub.apply(&[])? {
        Applied::Now => message!(
            "`{name}` is `{new}` here; the other sites follow within seconds, and its sessions go on"
        ),
        Applied::AtStart => message!(
            "`{name}` is `{new}` in the registry; no gateway runs here, so this takes effect when it starts, and the \
             history until then stays under the name `{name}`"
        ),
    }
    Ok(())
}

/// Refuses a name that a site must not have, or that another one has.
fn refuse_new_name(
    registry: &Registry,
    config: &Config,
    name: &Name,
    new: &Name,
) -> Result<(), Failure> {
    if new.as_str().len() > SITE_NAME_BYTES_MAX {
        let what = format!("`{new}` has more than {SITE_NAME_BYTES_MAX} bytes");
        return Err(Failure::usage(what, "choose a shorter name"));
    }
    let came_by = |invitation: &Invitation| {
        let mut members = registry.members();
        let site = members.find(|(of, _)| *of == name);
        site.is_some_and(|(_, site)| used_by(invitation) == Some(site.public_key))
    };
    let owner = match () {
        () if *name == config.gateway.name => {
            return Err(Failure::new(format!("`{name}` is this hub itself")).hint(
                "write another `name` in [gateway] of its configuration and restart it; branches keep the name that \
                 their own files have",
            ));
        }
        () if registry.members().any(|(of, _)| of == new) => "another site",
        () if registry.invitations.get(new).is_some_and(|of| !came_by(of)) => "an invitation",
        () if config.peer_named(new.as_str()).is_some() => "a [[peer]] of the hub",
        () if *new == config.gateway.name => "the hub itself",
        () => return Ok(()),
    };
    Err(Failure::new(format!("`{new}` is the name of {owner}")).hint("choose another name"))
}

/// A site, or one that is invited.
#[derive(Debug, Serialize)]
struct SiteRow {
    name: String,
    state: SiteState,
    /// At the other one of two hubs; absent: there is none, or it is an invitation.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_at_other_hub: Option<SiteState>,
    public_key: Option<String>,
    prefixes: Vec<String>,
    /// How long it has been up or down; `None`: the gateway does not run, or it is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_seconds: Option<f64>,
    /// When the invitation ends or has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
    /// The site that has joined with this invitation under another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum SiteState {
    Up,
    Down,
    /// The gateway does not run, or has not taken the registry over.
    Unknown,
    Invited,
    Expired,
    /// An invitation whose site has another name.
    Used,
}

impl SiteState {
    fn of(peer: Option<&PeerSnapshot>) -> Self {
        match peer.map(|peer| peer.state) {
            Some(PeerState::Up) => Self::Up,
            Some(_) => Self::Down,
            None => Self::Unknown,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Unknown => "unknown",
            Self::Invited => "invited",
            Self::Expired => "expired",
            Self::Used => "used",
        }
    }
}

#[derive(Serialize)]
struct AllSites {
    sites: Vec<SiteRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_hub: Option<OtherHub>,
}

/// The other one of two hubs.
#[derive(Debug, Serialize)]
struct OtherHub {
    name: String,
    state: SiteState,
    /// How long it has been up or down; `None`: the gateway does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_seconds: Option<f64>,
    /// Since when this gateway, the second hub, has its copy of the registry; absent: it is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    copied: Option<Timestamp>,
}

impl OtherHub {
    fn new(name: &Name, peers: &[PeerSnapshot], copied: Option<SystemTime>) -> Self {
        let peer = peers.iter().find(|peer| peer.name == name.as_str());
        Self {
            name: name.to_string(),
            state: SiteState::of(peer),
            state_seconds: peer.map(|peer| peer.state_seconds),
            copied: copied.map(Timestamp),
        }
    }
}

pub(super) fn sites(args: &args::Sites) -> Result<(), Failure> {
    let config = Config::load(&args.hub.config)?;
    let peers = peers(&config);
    let (registry, other_hub) = match &config.network {
        Some(Membership::SecondHub { first }) => {
            let (registry, copied) = copy(&config)?;
            let other = OtherHub::new(&config[*first].name, &peers, Some(copied));
            (registry, Some(other))
        }
        _ => {
            let registry = Registry::load(&Hub::load(&args.hub)?.registry)?;
            let second = registry.second_hub.as_ref();
            let other = second.map(|(name, _)| OtherHub::new(name, &peers, None));
            (registry, other)
        }
    };
    let sites = rows(&registry, &peers, other_hub.is_some(), SystemTime::now());
    output::allow_closed_reader(match args.json {
        true => output::json(&AllSites { sites, other_hub }),
        false => output::text(text(&sites, other_hub.as_ref())),
    })
}

/// What a second hub has kept of the first one's registry, and since when.
fn copy(config: &Config) -> Result<(Registry, SystemTime), Failure> {
    let missing = || {
        Failure::new("this gateway is the second hub, and has no copy of the registry yet")
            .hint("it gets one as soon as it has reached the first hub: `keiro status` shows whether it has")
    };
    let kept = Replica::load(&config.gateway.state_directory)
        .map_err(|error| Failure::new("the copy of the registry cannot be used").because(error))?;
    let (replica, copied) = kept.ok_or_else(missing)?;
    let registry = replica.registry().cloned().ok_or_else(missing)?;
    Ok((registry, copied))
}

/// Of the running gateway; empty if it does not run.
fn peers(config: &Config) -> Vec<PeerSnapshot> {
    let socket = &config.gateway.control_socket;
    let Ok(mut client) = query::connect(socket) else {
        return Vec::new();
    };
    match client.request(&Request::ShowPeer { name: None }) {
        Ok(Response::Peers { peers }) => peers,
        Ok(_) | Err(_) => Vec::new(),
    }
}

fn rows(
    registry: &Registry,
    peers: &[PeerSnapshot],
    has_other_hub: bool,
    now: SystemTime,
) -> Vec<SiteRow> {
    let texts = |prefixes: &[IpNet]| prefixes.iter().map(ToString::to_string).collect();
    let site = |(name, site): (&Name, &keiro_control::network::Site)| {
        let key = site.public_key.to_string();
        let peer = peers.iter().find(|peer| peer.public_key == key);
        SiteRow {
            name: name.to_string(),
            state: SiteState::of(peer),
            state_at_other_hub: has_other_hub.then(|| {
                match peer.and_then(|peer| peer.up_at_other_hub) {
                    Some(true) => SiteState::Up,
                    Some(false) => SiteState::Down,
                    None => SiteState::Unknown,
                }
            }),
            public_key: Some(key),
            prefixes: texts(&site.prefixes),
            state_seconds: peer.map(|peer| peer.state_seconds),
            expires: None,
            used_by: None,
        }
    };
    let invited = |(name, invitation): (&Name, &Invitation)| {
        let (state, used_by) = match used_by(invitation) {
            Some(key) => (SiteState::Used, Some(other_name(registry, name, key)?)),
            None if is_over(invitation, now) => (SiteState::Expired, None),
            None => (SiteState::Invited, None),
        };
        let expires = Timestamp(invitation.expires);
        Some(SiteRow {
            name: name.to_string(),
            state,
            state_at_other_hub: None,
            public_key: None,
            prefixes: texts(invitation.prefixes.as_deref().unwrap_or_default()),
            state_seconds: None,
            expires: (state != SiteState::Used).then_some(expires),
            used_by,
        })
    };
    let invitations = registry.invitations.iter().filter_map(invited);
    registry.sites.iter().map(site).chain(invitations).collect()
}

/// The name of the site with this key, if it is not that of the invitation.
fn other_name(registry: &Registry, invitation: &Name, key: PublicKey) -> Option<String> {
    let mut sites = registry.members();
    let (name, _) = sites.find(|(_, site)| site.public_key == key)?;
    (name != invitation).then(|| name.to_string())
}

fn text(sites: &[SiteRow], other_hub: Option<&OtherHub>) -> String {
    let other = other_hub.map_or(String::new(), other_hub_text);
    if sites.is_empty() {
        return format!("no site yet; `keiro invite NAME` invites one\n{other}");
    }
    let at_other = other_hub.map(|hub| format!("at {}", hub.name));
    let mut columns = vec!["site", "state"];
    columns.extend(at_other.as_deref());
    columns.extend(["since", "prefixes"]);
    let mut table = Table::new(&columns);
    for site in sites {
        let since = match (&site.used_by, &site.expires, site.state_seconds) {
            (Some(other), _, _) => format!("by {other}"),
            (None, Some(Timestamp(expires)), _) => format!("until {}", enrolment::time(*expires)),
            (None, None, Some(seconds)) => for_how_long(seconds),
            (None, None, None) => "-".to_owned(),
        };
        let prefixes = match site.prefixes.is_empty() {
            true => "any".to_owned(),
            false => site.prefixes.join(", "),
        };
        let mut cells = vec![site.name.clone(), site.state.as_str().to_owned()];
        if other_hub.is_some() {
            let state = site.state_at_other_hub.map_or("-", SiteState::as_str);
            cells.push(state.to_owned());
        }
        cells.extend([since, prefixes]);
        table.row(cells);
    }
    format!("{table}{other}")
}

/// A line about the other one of two hubs.
fn other_hub_text(hub: &OtherHub) -> String {
    let OtherHub {
        name,
        state,
        state_seconds,
        copied,
    } = hub;
    let state = state.as_str();
    let since = match state_seconds {
        Some(seconds) => format!("{state} for {}", for_how_long(*seconds)),
        None => state.to_owned(),
    };
    match copied {
        None => format!("second hub {name}: {since}\n"),
        Some(Timestamp(copied)) => format!(
            "first hub {name}: {since}; this gateway, the second hub, has had its copy of the registry since {}, and \
             only {name} changes it\n",
            enrolment::time(*copied)
        ),
    }
}

/// Seconds, minutes, hours or days, whatever is short.
fn for_how_long(seconds: f64) -> String {
    match seconds.max(0.0) as u64 {
        s @ 0..=119 => format!("{s} s"),
        s @ 120..=7199 => format!("{} min", s / 60),
        s @ 7200..=172_799 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

fn days(time: Duration) -> String {
    format!("{}h", time.as_secs() / 3600)
}

#[cfg(test)]
mod tests {
    use keiro_control::PresharedKey;

    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey::from_bytes([byte; 32])
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    /// `evil` has joined with the invitation of `tokyo`, `kyoto` with its own, and `nara` is invited.
    fn registry() -> Registry {
        let secret = PresharedKey::from_bytes([9; 32]).to_base64();
        let secret = secret.as_str();
        let site = |name: &str, byte: u8| {
            let key = key(byte);
            format!(
                "{name} = {{ public_key = \"{key}\", preshared_key = \"{secret}\", prefixes = \
                 [\"10.{byte}.0.0/24\"] }}\n"
            )
        };
        let invitation = |name: &str, byte: u8, by: Option<u8>| {
            let public_key = key(byte);
            let redeemed = by.map_or(String::new(), |by| {
                format!(
                    ", redeemed_by = \"{}\", redeemed_at = 2026-01-01T00:00:00Z, redeemed_from = \"192.0.2.1\"",
                    key(by)
                )
            });
            format!(
                "{name} = {{ id = \"00000000000000{byte:02x}\", public_key = \"{public_key}\", preshared_key = \
                 \"{secret}\", expires = 2026-01-02T00:00:00Z{redeemed} }}\n"
            )
        };
        let text = format!(
            "[network]\ntenant = \"office\"\n[site]\n{}{}[invitation]\n{}{}{}",
            site("evil", 1),
            site("kyoto", 2),
            invitation("tokyo", 11, Some(1)),
            invitation("kyoto", 12, Some(2)),
            invitation("nara", 13, None),
        );
        Registry::parse(&text, "registry.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_site_goes_with_its_invitation_and_the_other_way_round() {
        let removed = |of: &str| Removal::of(&registry(), &name(of));
        let expected = |sites: &[&str], invitations: &[&str], keys: &[u8]| Removal {
            sites: sites.iter().copied().map(name).collect(),
            invitations: invitations.iter().copied().map(name).collect(),
            keys: keys.iter().copied().map(key).collect(),
        };
        let of_thief = expected(&["evil"], &["tokyo"], &[1, 11]);
        assert_eq!(removed("tokyo"), of_thief);
        assert_eq!(removed("evil"), of_thief);
        assert_eq!(removed("kyoto"), expected(&["kyoto"], &["kyoto"], &[2, 12]));
        assert_eq!(removed("nara"), expected(&[], &["nara"], &[13]));
        assert!(removed("osaka").is_empty());
        let others: Vec<Name> = of_thief.others(&name("tokyo")).cloned().collect();
        assert_eq!(others, [name("evil")]);
    }

    #[test]
    fn used_invitations_are_listed_where_the_site_has_another_name() {
        let rows = rows(&registry(), &[], false, UNIX_EPOCH);
        let listed: Vec<(&str, &str)> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.state.as_str()))
            .collect();
        assert_eq!(
            listed,
            [
                ("evil", "unknown"),
                ("kyoto", "unknown"),
                ("nara", "invited"),
                ("tokyo", "used"),
            ]
        );
        let text = text(&rows, None);
        assert!(text.contains("by evil"), "{text}");
    }

    #[test]
    fn an_invitation_that_another_name_has_used_is_not_replaced_unasked() {
        let registry = registry();
        let refused = |of: &str| {
            let name = name(of);
            let removal = Removal::of(&registry, &name);
            let failure = refuse_present(&registry, &removal, &name, UNIX_EPOCH).err();
            failure.map(|failure| failure.message("keiro").to_string())
        };
        assert!(refused("tokyo").unwrap().contains("`evil`"));
        assert!(refused("kyoto").unwrap().contains("a site already"));
        assert!(refused("nara").unwrap().contains("invited already"));
        assert!(refused("osaka").is_none());
    }
}
