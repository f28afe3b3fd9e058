//! The schema of a registry: which tables and keys there are, and what each means.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ipnet::IpNet;
use keiro_config::{Located, Report, TableReader, ValueError, boolean, shown, string, type_name};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
    value::{Datetime, Offset},
};
use zeroize::Zeroizing;

use super::{
    INVITATIONS_MAX, Invitation, InvitationId, NETWORK_APPS_MAX, Origin, Redemption, Registry,
    SECOND_HUBS_MAX, SITE_NAME_BYTES_MAX, SITE_PREFIXES_MAX, SITES_MAX, SecondHub, Site, SiteSpans,
    check,
    draft::{Draft, DraftApp, InvitationSpans},
    text::{LIMITS, without_secrets},
};
use crate::{
    config::{
        ConfigError, Name, PeerEndpoint, app_needs, name, peer_endpoints, prefixes, public_key,
        value,
    },
    key::{KeyError, PresharedKey, PublicKey},
};

/// See [`Registry::parse`].
pub(super) fn registry(text: &str, file: &str) -> Result<Registry, ConfigError> {
    LIMITS.check(text, file)?;
    // The report shows lines of the text, so it is on a text without secrets.
    let shown = without_secrets(text);
    let (_, mut report) = keiro_config::parse(&shown, file);
    let (document, _) = keiro_config::parse(text, file);
    let draft = read(&document, &mut report);
    if !report.has_syntax_errors() {
        check::together(&draft, &mut report);
    }
    report.finish()?;
    let Some(tenant) = draft.tenant else {
        unreachable!("a missing tenant is a problem, and there are none");
    };
    let (sites, spans): (BTreeMap<_, _>, BTreeMap<_, _>) = draft
        .sites
        .into_iter()
        .map(|(name, (site, spans))| ((name.clone(), site), (name, spans)))
        .unzip();
    let (second_hub, second_spans) = draft
        .second_hub
        .map(|(name, hub, spans)| ((name, hub), spans))
        .unzip();
    let (apps, invitations) = (draft.apps.into_iter(), draft.invitations.into_iter());
    Ok(Registry {
        tenant: tenant.value,
        direct: draft.direct,
        apps: apps.map(|app| (app.name, app.needs)).collect(),
        sites,
        second_hub,
        invitations: invitations.map(|(name, (of, _))| (name, of)).collect(),
        origin: Origin {
            file: file.to_owned(),
            text: shown,
            secret_text: Arc::new(Zeroizing::new(text.to_owned())),
            tenant: tenant.at,
            sites: spans,
            second_hub: second_spans,
        },
    })
}

fn read(document: &DeTable<'_>, report: &mut Report<'_>) -> Draft {
    let mut root = TableReader::new("the registry", 0..0, document, report);
    let network = root.table(report, "network", "[network]");
    let apps = root.raw("app");
    let hubs = root.raw("hub");
    let sites = root.raw("site");
    let invitations = root.raw("invitation");
    let has_unknown = root.refuse_unknown_keys(report);
    if network.is_none() && !root.has("network") && !has_unknown && !report.has_syntax_errors() {
        let hint = "add [network] with tenant = \"...\", a tenant of the gateway's file";
        report.add(&(0..0), "the registry has no [network]", hint);
    }
    let mut direct = true;
    let tenant = network.and_then(|mut fields| {
        let tenant = fields.required(report, "tenant", "\"office\"", name);
        direct = value(fields.optional(report, "direct", boolean)).unwrap_or(true);
        fields.refuse_unknown_keys(report);
        tenant
    });
    let mut draft = Draft {
        tenant,
        direct,
        apps: Vec::new(),
        sites: BTreeMap::new(),
        second_hub: None,
        invitations: BTreeMap::new(),
    };
    for (name, mut fields) in entries(&APPS, apps, report) {
        let needs = app_needs(&mut fields, report);
        fields.refuse_unknown_keys(report);
        draft.apps.extend(needs.map(|needs| DraftApp {
            at: name.at,
            name: name.value,
            needs,
        }));
    }
    draft.apps.sort_by_key(|app| app.at.start);
    for (name, fields) in entries(&HUBS, hubs, report) {
        let hub = second_hub(name.at, fields, report);
        draft.second_hub = hub.map(|(hub, spans)| (name.value, hub, spans));
    }
    for (name, fields) in entries(&SITES, sites, report) {
        let site = site(name.at, fields, report);
        draft.sites.extend(site.map(|site| (name.value, site)));
    }
    for (name, fields) in entries(&INVITATIONS, invitations, report) {
        let invitation = invitation(fields, report);
        draft
            .invitations
            .extend(invitation.map(|found| (name.value, found)));
    }
    draft
}

/// Tables under names.
struct Kind {
    key: &'static str,
    header: &'static str,
    max: usize,
}

const APPS: Kind = Kind {
    key: "app",
    header: "[app.NAME]",
    max: NETWORK_APPS_MAX,
};
const HUBS: Kind = Kind {
    key: "hub",
    header: "[hub] NAME",
    max: SECOND_HUBS_MAX,
};
const SITES: Kind = Kind {
    key: "site",
    header: "[site] NAME",
    max: SITES_MAX,
};
const INVITATIONS: Kind = Kind {
    key: "invitation",
    header: "[invitation] NAME",
    max: INVITATIONS_MAX,
};

fn entries<'d, 'i>(
    kind: &Kind,
    value: Option<&'d Spanned<DeValue<'i>>>,
    report: &mut Report<'_>,
) -> Vec<(Located<Name>, TableReader<'d, 'i>)> {
    let Kind { key, header, max } = *kind;
    let Some(value) = value else {
        return Vec::new();
    };
    let DeValue::Table(table) = value.get_ref() else {
        let message = format!("{key}: this is {}", type_name(value.get_ref()));
        report.add(
            &value.span(),
            message,
            &format!("write [{key}], once, with one entry per name"),
        );
        return Vec::new();
    };
    if let Some((beyond, _)) = table.iter().nth(max) {
        let message = format!(
            "{} entries in [{key}], more than the limit of {max}",
            table.len()
        );
        report.add(&beyond.span(), message, "remove those that are not used");
    }
    let mut found = Vec::new();
    for (written, entry) in table.iter().take(max) {
        let at = written.span();
        let name = match site_name(written.get_ref()) {
            Ok(name) => name,
            Err(complaint) => {
                complaint.add_to(report, &at, key);
                continue;
            }
        };
        let DeValue::Table(table) = entry.get_ref() else {
            let message = format!("{key}.{name}: this is {}", type_name(entry.get_ref()));
            report.add(&at, message, &format!("write {name} = {{ ... }}"));
            continue;
        };
        let fields = TableReader::new(header, at.clone(), table, report);
        found.push((Located { value: name, at }, fields));
    }
    found
}

/// A name that is short enough to stand beside another one.
fn site_name(text: &str) -> Result<Name, ValueError> {
    let name = Name::new(text).map_err(|error| ValueError::new(error.to_string(), ""))?;
    match text.len() <= SITE_NAME_BYTES_MAX {
        true => Ok(name),
        false => Err(ValueError::new(
            format!("`{}` has {} bytes", shown(text), text.len()),
            format!("choose a name of at most {SITE_NAME_BYTES_MAX}"),
        )),
    }
}

fn site(
    at: Range<usize>,
    mut fields: TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<(Site, SiteSpans)> {
    let public_key = fields.required(report, "public_key", "\"...\"", public_key);
    let preshared_key = fields.required(report, "preshared_key", "\"...\"", preshared_key);
    let claimed = fields.required(report, "prefixes", "[\"10.1.0.0/24\"]", some_prefixes);
    let wire_name = fields.optional(report, "wire_name", |value| site_name(string(value)?));
    fields.refuse_unknown_keys(report);
    let (public_key, claimed) = (public_key?, claimed?.value);
    let spans = SiteSpans {
        name: at,
        public_key: public_key.at,
        prefixes: claimed.iter().map(|prefix| prefix.at.clone()).collect(),
    };
    let site = Site {
        public_key: public_key.value,
        preshared_key: preshared_key?.value,
        prefixes: plain(claimed),
        wire_name: value(wire_name),
    };
    Some((site, spans))
}

fn second_hub(
    at: Range<usize>,
    mut fields: TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<(SecondHub, SiteSpans)> {
    let endpoint = endpoints(&mut fields, "endpoint", report);
    if !fields.has("endpoint") {
        let hint = "add endpoint = \"hub2.example.net:7600\", where branches reach it";
        report.add(&at, "hub: it has no `endpoint`", hint);
    }
    let (site, spans) = site(at, fields, report)?;
    Some((SecondHub { site, endpoint }, spans))
}

fn endpoints(
    fields: &mut TableReader<'_, '_>,
    key: &'static str,
    report: &mut Report<'_>,
) -> Vec<PeerEndpoint> {
    let found = peer_endpoints(fields, key, report).into_iter();
    found.map(|(endpoint, _)| endpoint).collect()
}

fn invitation(
    mut fields: TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<(Invitation, InvitationSpans)> {
    let id = fields.required(report, "id", "\"0123456789abcdef\"", invitation_id);
    let key = fields.required(report, "public_key", "\"...\"", public_key);
    let preshared_key = fields.required(report, "preshared_key", "\"...\"", preshared_key);
    let allowed = fields.optional(report, "prefixes", some_prefixes);
    let hub_endpoint = endpoints(&mut fields, "hub_endpoint", report);
    let expires = fields.required(report, "expires", "2026-11-30T12:00:00Z", time);
    let redeemed = redemption(&mut fields, report);
    fields.refuse_unknown_keys(report);
    let (id, key) = (id?, key?);
    let spans = InvitationSpans {
        id: id.at,
        public_key: key.at,
    };
    let invitation = Invitation {
        id: id.value,
        public_key: key.value,
        preshared_key: preshared_key?.value,
        prefixes: value(allowed).map(plain),
        hub_endpoint,
        expires: expires?.value,
        redeemed,
    };
    Some((invitation, spans))
}

/// All of its keys, or none.
fn redemption(fields: &mut TableReader<'_, '_>, report: &mut Report<'_>) -> Option<Redemption> {
    const KEYS: [&str; 3] = ["redeemed_by", "redeemed_at", "redeemed_from"];
    let by: Option<Located<PublicKey>> = fields.optional(report, KEYS[0], public_key);
    let at = fields.optional(report, KEYS[1], time);
    let from = fields.optional(report, KEYS[2], address);
    let there = KEYS.iter().find(|key| fields.has(key));
    let missing = KEYS.iter().find(|key| !fields.has(key));
    if let (Some(there), Some(missing)) = (there, missing) {
        let message = format!("{there}: without {missing}");
        let hint = format!("write {}, or none of them", KEYS.join(", "));
        report.add(&fields.span_of(there), message, &hint);
    }
    Some(Redemption {
        by: by?.value,
        at: at?.value,
        from: from?.value,
    })
}

fn plain(prefixes: Vec<Located<IpNet>>) -> Vec<IpNet> {
    prefixes.into_iter().map(|prefix| prefix.value).collect()
}

fn some_prefixes(value: &DeValue<'_>) -> Result<Vec<Located<IpNet>>, ValueError> {
    let found = prefixes(value)?;
    match found.len() {
        1..=SITE_PREFIXES_MAX => Ok(found),
        count => Err(ValueError::new(
            format!("{count} prefixes"),
            format!("write 1 to {SITE_PREFIXES_MAX}"),
        )),
    }
}

fn preshared_key(value: &DeValue<'_>) -> Result<PresharedKey, ValueError> {
    string(value)?.parse().map_err(|error: KeyError| {
        ValueError::new(
            error.to_string(),
            "`keiro invite NAME --replace` makes a new one",
        )
    })
}

fn invitation_id(value: &DeValue<'_>) -> Result<InvitationId, ValueError> {
    let text = string(value)?;
    InvitationId::parse(text).ok_or_else(|| {
        ValueError::new(
            format!("`{}` is not the number of an invitation", shown(text)),
            "write its 16 hexadecimal digits, or make a new one with `keiro invite`",
        )
    })
}

fn address(value: &DeValue<'_>) -> Result<IpAddr, ValueError> {
    let text = string(value)?;
    let of_socket = || text.parse::<SocketAddr>().map(|address| address.ip());
    text.parse::<IpAddr>()
        .or_else(|_| of_socket())
        .map_err(|_| {
            let message = format!("`{}` is not an IP address", shown(text));
            ValueError::new(message, "write \"192.0.2.1\" or \"2001:db8::1\"")
        })
}

/// A time with its offset from UTC.
fn time(value: &DeValue<'_>) -> Result<SystemTime, ValueError> {
    const HINT: &str = "write it in UTC and without quotes, as in 2026-11-30T12:00:00Z";
    let DeValue::Datetime(written) = value else {
        return Err(ValueError::new(
            format!("this is {}", type_name(value)),
            HINT,
        ));
    };
    system_time(written).ok_or_else(|| {
        ValueError::new(
            format!("`{written}` is not a point in time from 1970 on"),
            HINT,
        )
    })
}

fn system_time(written: &Datetime) -> Option<SystemTime> {
    let (date, time, offset) = (written.date?, written.time?, written.offset?);
    let text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year,
        date.month,
        date.day,
        time.hour,
        time.minute,
        time.second.unwrap_or(0),
    );
    let at = humantime::parse_rfc3339(&text).ok()?;
    let east = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => minutes,
    };
    let shift = Duration::from_secs(u64::from(east.unsigned_abs()) * 60);
    let at = match east >= 0 {
        true => at.checked_sub(shift),
        false => at.checked_add(shift),
    };
    at.filter(|at| *at >= SystemTime::UNIX_EPOCH)
}
