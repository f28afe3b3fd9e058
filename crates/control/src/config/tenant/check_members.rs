//! Checks that listeners and forwards agree with the tenants that they name.

use std::{collections::BTreeMap, ops::Range};

use ipnet::IpNet;
use keiro_config::{Located, Report};

use super::{Member, Tenant};
use crate::config::{AppIndex, Destination, Name, draft::Draft};

/// Checks the tenants of listeners and forwards. Not called if an entry is missing for being wrong,
/// because indices do not hold then.
pub(super) fn check(draft: &Draft, report: &mut Report<'_>) {
    let mut of_apps = BTreeMap::new();
    for (listener, spans) in &draft.listeners {
        let member = spans.member.as_ref();
        agree(&mut of_apps, listener.app, member, &spans.local, report);
        if let Some(tenant) = belongs(draft, listener.app, member, report) {
            let v6 = listener.local.is_ipv6();
            if !tenant
                .prefixes
                .iter()
                .any(|p| matches!(p, IpNet::V6(_)) == v6)
            {
                let version = if v6 { "IPv6" } else { "IPv4" };
                let message = format!("tenant `{}` has no {version} prefixes", tenant.name);
                let hint = "listen at an address of the other version, or add prefixes";
                report.add(&spans.local, message, hint);
            }
        }
    }
    for (forward, spans) in &draft.forwards {
        let member = spans.member.as_ref();
        agree(&mut of_apps, forward.app, member, &spans.to, report);
        if let Some(tenant) = belongs(draft, forward.app, member, report) {
            destinations(tenant, &forward.to, &spans.to, report);
        }
    }
}

type Of<'a> = (Option<&'a Name>, &'a Range<usize>);

/// All entries of an application are of one tenant.
fn agree<'a>(
    of_apps: &mut BTreeMap<AppIndex, Of<'a>>,
    app: AppIndex,
    member: Option<&'a Located<Member>>,
    place: &'a Range<usize>,
    report: &mut Report<'_>,
) {
    let name = member.map(|member| &member.value.tenant);
    let at = member.map_or(place, |member| &member.at);
    let (earlier, earlier_at) = *of_apps.entry(app).or_insert((name, at));
    if earlier != name {
        let line = report.line(earlier_at);
        let whose = |name: Option<&Name>| name.map_or("none".to_owned(), |n| format!("`{n}`"));
        let message = format!(
            "tenant: {} here and {} in line {line}, for one application",
            whose(name),
            whose(earlier)
        );
        report.add(at, message, "an application is of one tenant");
    }
}

/// The tenant of an entry, if all is well with it.
fn belongs<'a>(
    draft: &'a Draft,
    app: AppIndex,
    member: Option<&Located<Member>>,
    report: &mut Report<'_>,
) -> Option<&'a Tenant> {
    let Located { value: member, at } = member?;
    let mut tenants = draft.tenants.iter().map(|(tenant, _)| tenant);
    let Some(tenant) = tenants.find(|tenant| tenant.name == member.tenant) else {
        let message = format!("tenant: no [tenant.{}]", member.tenant);
        report.add(at, message, "name a tenant of this file, or add it");
        return None;
    };
    let app = &draft.apps[app.0].0;
    if !tenant.peers.iter().any(|peer| peer.peer == app.peer) {
        let message = format!(
            "tenant: `{}` names no networks behind the peer of `{}`",
            tenant.name, app.name
        );
        let hint = format!("add [tenant.{}.peer.PEER] for it", tenant.name);
        report.add(at, message, &hint);
        return None;
    }
    interface(tenant, member.interface.as_deref(), at, report).then_some(tenant)
}

fn interface(
    tenant: &Tenant,
    written: Option<&str>,
    at: &Range<usize>,
    report: &mut Report<'_>,
) -> bool {
    let (name, has) = (&tenant.name, &tenant.interfaces);
    let wrong = match (written, &has[..]) {
        (Some(written), _) if has.iter().any(|name| name == written) => return true,
        (None, [_]) => return true,
        (None, []) if tenant.table.is_none() => return true,
        (Some(written), _) => format!("interface: `{written}` is none of tenant `{name}`"),
        (None, []) => format!("tenant: `{name}` has a table, but no interface here to use"),
        (None, _) => format!("tenant: `{name}` has several interfaces"),
    };
    let hint = match &has[..] {
        [] => "name it in the tenant's interfaces".to_owned(),
        _ => format!("write interface = \"...\", one of {}", has.join(", ")),
    };
    report.add(at, wrong, &hint);
    false
}

/// A tenant's forward leads into the tenant's own networks.
fn destinations(tenant: &Tenant, to: &Destination, at: &Range<usize>, report: &mut Report<'_>) {
    let within = |wanted: IpNet| tenant.prefixes.iter().any(|own| own.contains(&wanted));
    let outside = match to {
        Destination::Udp(to) | Destination::Tcp(to) => {
            (!within(IpNet::from(to.ip()))).then(|| to.to_string())
        }
        Destination::Networks(networks) => {
            let mut networks = networks.iter();
            let outside = networks.find(|network| !within(network.addresses()));
            outside.map(ToString::to_string)
        }
    };
    if let Some(outside) = outside {
        let message = format!(
            "{}: {outside} is not in the prefixes of tenant `{}`",
            to.key(),
            tenant.name
        );
        report.add(at, message, "a forward of a tenant leads into its networks");
    }
}
