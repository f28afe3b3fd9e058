//! `keiro invite`, `keiro revoke` and `keiro sites`: the registry of a hub.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipnet::IpNet;
use keiro_control::{
    Config,
    config::{Membership, Name, PeerEndpoint},
    enrolment,
    invitation::{ID_BYTES, SECRET_BYTES, Secret, TOKEN_ENDPOINTS_MAX, Token},
    key::{PublicKey, load_private_key},
    network::{EditError, Invitation, InvitationId, Registry, RegistryEdit, SITE_NAME_BYTES_MAX},
    protocol::{PeerSnapshot, PeerState, Request, Response, Timestamp},
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

/// The hub whose registry is changed.
struct Hub {
    config: Config,
    registry: PathBuf,
    endpoints: Vec<PeerEndpoint>,
}

impl Hub {
    fn load(args: &args::HubFile) -> Result<Self, Failure> {
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

    /// Lets the running gateway follow the registry.
    fn reload(&self) {
        let socket = &self.config.gateway.control_socket;
        let answer = query::connect(socket).map(|mut client| client.request(&Request::Reload {}));
        match answer {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                message!(
                    "keiro: warning: the registry is written, but the gateway refuses it: {error}"
                );
            }
            Err(_) => {
                message!(
                    "keiro: warning: no gateway runs here yet; start it before the branch joins: `systemctl enable \
                     --now keiro-gateway`"
                );
            }
        }
    }
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
    make_room(&mut edit, &hub.config, args)?;
    let provisional = keys::public_key(&token.secret.provisional_key());
    let invitation = Invitation {
        id: token.id,
        public_key: provisional,
        preshared_key: token.secret.preshared_key(),
        prefixes: (!args.prefixes.is_empty()).then(|| args.prefixes.clone()),
        expires: token.expires(),
        redeemed: None,
    };
    edit.put_invitation(&args.name, &invitation);
    edit.commit().map_err(unwritten)?;
    hub.reload();
    let name = &args.name;
    let until = enrolment::time(token.expires());
    message!("`{name}` is invited until {until}. At the new site, as root:");
    message!("  keiro join TOKEN");
    message!(
        "with this token, which is a secret until then (`keiro revoke {name}` takes it back):"
    );
    output::text(format_args!("{token}\n"))
}

/// Takes out what the invitation is to replace, and what is over.
fn make_room(edit: &mut RegistryEdit, config: &Config, args: &args::Invite) -> Result<(), Failure> {
    let now = SystemTime::now();
    let name = &args.name;
    if config.peer_named(name.as_str()).is_some() || *name == config.gateway.name {
        return Err(Failure::new(format!(
            "`{name}` is the name of the hub or of a [[peer]] in its configuration"
        ))
        .hint("choose another name"));
    }
    let registry = edit.registry();
    let is_site = registry.sites.contains_key(name);
    let waits =
        |invitation: &Invitation| invitation.redeemed.is_none() && !is_over(invitation, now);
    let is_invited = registry.invitations.get(name).is_some_and(waits);
    if (is_site || is_invited) && !args.replace {
        let what = match is_site {
            true => format!("`{name}` is a site already"),
            false => format!("`{name}` is invited already"),
        };
        return Err(Failure::new(what).hint(
            "--replace makes a new token, and refuses the key or token of before from now on",
        ));
    }
    registry
        .refuse_claim(config, &[], name, &args.prefixes)
        .or_else(|refusal| match args.prefixes[..] {
            [] => Ok(()),
            _ => Err(Failure::new("the branch cannot have these prefixes").because(refusal)),
        })?;
    remove(edit, name);
    edit.remove_expired(now.checked_sub(EXPIRED_KEPT).unwrap_or(UNIX_EPOCH));
    Ok(())
}

fn is_over(invitation: &Invitation, now: SystemTime) -> bool {
    now >= invitation.expires
}

/// Removes a site with the invitation by which it came, and the invitation of this name; `false`: there was neither.
fn remove(edit: &mut RegistryEdit, name: &Name) -> bool {
    let key = edit.registry().sites.get(name).map(|site| site.public_key);
    let invitations = edit.registry().invitations.iter();
    let came_by = |of: &Invitation| of.redeemed.as_ref().map(|redeemed| redeemed.by);
    let theirs: Vec<Name> = invitations
        .filter(|(of, invitation)| *of == name || key.is_some() && came_by(invitation) == key)
        .map(|(of, _)| of.clone())
        .collect();
    let mut is_removed = edit.remove_site(name);
    for invitation in &theirs {
        is_removed |= edit.remove_invitation(invitation);
    }
    is_removed
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
    if !remove(&mut edit, name) {
        return Err(
            Failure::new(format!("there is no site or invitation `{name}`"))
                .hint("`keiro sites` lists them"),
        );
    }
    edit.commit().map_err(unwritten)?;
    hub.reload();
    message!("`{name}` is not of the network any more");
    Ok(())
}

/// A site, or one that is invited.
#[derive(Debug, Serialize)]
struct SiteRow {
    name: String,
    state: SiteState,
    public_key: Option<String>,
    prefixes: Vec<String>,
    /// How long it has been up or down; `None`: the gateway does not run, or it is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_seconds: Option<f64>,
    /// When the invitation ends or has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
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
}

impl SiteState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Unknown => "unknown",
            Self::Invited => "invited",
            Self::Expired => "expired",
        }
    }
}

#[derive(Serialize)]
struct AllSites {
    sites: Vec<SiteRow>,
}

pub(super) fn sites(args: &args::Sites) -> Result<(), Failure> {
    let hub = Hub::load(&args.hub)?;
    let registry = Registry::load(&hub.registry)?;
    let peers = peers(&hub);
    let sites = rows(&registry, &peers, SystemTime::now());
    output::allow_closed_reader(match args.json {
        true => output::json(&AllSites { sites }),
        false => output::text(text(&sites)),
    })
}

/// Of the running gateway; empty if it does not run.
fn peers(hub: &Hub) -> Vec<PeerSnapshot> {
    let socket = &hub.config.gateway.control_socket;
    let Ok(mut client) = query::connect(socket) else {
        return Vec::new();
    };
    match client.request(&Request::ShowPeer { name: None }) {
        Ok(Response::Peers { peers }) => peers,
        Ok(_) | Err(_) => Vec::new(),
    }
}

fn rows(registry: &Registry, peers: &[PeerSnapshot], now: SystemTime) -> Vec<SiteRow> {
    let texts = |prefixes: &[IpNet]| prefixes.iter().map(ToString::to_string).collect();
    let site = |(name, site): (&Name, &keiro_control::network::Site)| {
        let key = site.public_key.to_string();
        let peer = peers.iter().find(|peer| peer.public_key == key);
        SiteRow {
            name: name.to_string(),
            state: match peer.map(|peer| peer.state) {
                Some(PeerState::Up) => SiteState::Up,
                Some(_) => SiteState::Down,
                None => SiteState::Unknown,
            },
            public_key: Some(key),
            prefixes: texts(&site.prefixes),
            state_seconds: peer.map(|peer| peer.state_seconds),
            expires: None,
        }
    };
    let invited = registry.invitations.iter();
    let invited = invited.filter(|(_, invitation)| invitation.redeemed.is_none());
    let invited = invited.map(|(name, invitation)| SiteRow {
        name: name.to_string(),
        state: match is_over(invitation, now) {
            true => SiteState::Expired,
            false => SiteState::Invited,
        },
        public_key: None,
        prefixes: texts(invitation.prefixes.as_deref().unwrap_or_default()),
        state_seconds: None,
        expires: Some(Timestamp(invitation.expires)),
    });
    registry.sites.iter().map(site).chain(invited).collect()
}

fn text(sites: &[SiteRow]) -> String {
    if sites.is_empty() {
        return "no site yet; `keiro invite NAME` invites one\n".to_owned();
    }
    let mut table = Table::new(&["site", "state", "since", "prefixes"]);
    for site in sites {
        let since = match (&site.expires, site.state_seconds) {
            (Some(Timestamp(expires)), _) => format!("until {}", enrolment::time(*expires)),
            (None, Some(seconds)) => for_how_long(seconds),
            (None, None) => "-".to_owned(),
        };
        let prefixes = match site.prefixes.is_empty() {
            true => "any".to_owned(),
            false => site.prefixes.join(", "),
        };
        table.row([
            site.name.clone(),
            site.state.as_str().to_owned(),
            since,
            prefixes,
        ]);
    }
    table.to_string()
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
