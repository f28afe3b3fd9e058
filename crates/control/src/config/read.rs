//! The schema: which tables and keys there are, and what each means.
//!
//! Reads one table after the other, resolves names to indices, and hands whole entries to
//! `check`, which looks at them together. Goes on after a problem to find the others; the result
//! is built only if there are none.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::Range,
    path::PathBuf,
};

use keiro_config::{
    Located, TableReader, boolean, choice, file_name, quantity, socket_address, type_name,
};
use keiro_model::path_terms::{CostPerGb, PathRole};
use keiro_units::Probability;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::network_channel::RESERVED_PREFIX;

use super::{
    App, AppIndex, Budget, CONFIG_ENTRIES_MAX, Config, ConfigError, DEFAULT_CONTROL_SOCKET,
    DEFAULT_PRIVATE_KEY_FILE, DEFAULT_REASSEMBLY_MAX, DEFAULT_STATE_DIRECTORY, Destination,
    FILE_LIMITS, Forward, Gateway, Listener, Name, Origin, Path, PathIndex, PathOrigin, PathUse,
    Peer, PeerIndex, PeerOrigin, Planner, RENAMED_KEYS, Scheduler, Transport, aggregation,
    app_needs::app_needs,
    check,
    draft::{Draft, DraftGateway, ForwardSpans, ListenerSpans, PathSpans, PeerSpans},
    endpoint::peer_endpoints,
    entries::{EntryNames, Names, Reader},
    history, local, message_tls,
    network::networks,
    store, tenant,
    values::{
        ROLES, budget_day, cost_per_gb, default_probe_share, endpoint_address, group,
        local_address, monthly_budget, mtu, name, place, probe_share, public_key, rate, reassembly,
        socket_file_name, text, time, value, value_or,
    },
};

pub(super) fn config(text: &str, file: &str) -> Result<Config, ConfigError> {
    FILE_LIMITS.check(text, file)?;
    let (mut document, mut report) = keiro_config::parse(text, file);
    keiro_config::apply_renames(&mut document, RENAMED_KEYS, &mut report);
    let mut reader = Reader {
        report,
        too_many: false,
        has_network: false,
    };
    let mut draft = reader.document(&document);
    let mut report = reader.report;
    if !report.has_syntax_errors() {
        local::follow_endpoints(&mut draft);
        check::together(&draft, &mut report);
    }
    let origin = Origin {
        file: file.to_owned(),
        text: text.to_owned(),
        apps: draft.apps.iter().map(|(_, at)| at.clone()).collect(),
        forwards: draft
            .forwards
            .iter()
            .map(|(_, spans)| spans.to.clone())
            .collect(),
        message_tls: draft
            .message_tls
            .as_ref()
            .map(|(_, spans)| spans.clone())
            .unwrap_or_default(),
        message_clients: draft
            .message_clients
            .iter()
            .map(|(_, spans)| spans.token_file.clone())
            .collect(),
    };
    let warnings = report.finish()?;
    let Some(gateway) = draft.gateway else {
        unreachable!("a missing [gateway] is a problem, and there are none");
    };
    Ok(Config {
        gateway: gateway.value,
        store: draft.store,
        history: draft.history,
        aggregation: draft.aggregation,
        paths: first(draft.paths),
        peers: first(draft.peers),
        apps: first(draft.apps),
        listeners: first(draft.listeners),
        forwards: first(draft.forwards),
        message_tls: draft.message_tls.map(|(tls, _)| tls),
        message_clients: first(draft.message_clients),
        fairness: draft.fairness,
        tenants: first(draft.tenants),
        network: draft.network,
        warnings,
        origin,
    })
}

impl Reader<'_> {
    fn document(&mut self, table: &DeTable<'_>) -> Draft {
        let mut root = TableReader::new("the file", 0..0, table, &self.report);
        let gateway = root.table(&mut self.report, "gateway", "[gateway]");
        let store = root.table(&mut self.report, "store", "[store]");
        let history = root.table(&mut self.report, "history", "[history]");
        let aggregation = root.table(&mut self.report, "aggregation", "[aggregation]");
        let fairness = root.table(&mut self.report, "fairness", "[fairness]");
        let message_tls = root.table(&mut self.report, "message_tls", "[message_tls]");
        let network = root.table(&mut self.report, "network", "[network]");
        self.has_network = network.is_some();
        let tenants = root.raw("tenant");
        let mut left = CONFIG_ENTRIES_MAX;
        let mut paths = self.entries(&mut root, "path", "[[path]]", &mut left);
        let mut peers = self.entries(&mut root, "peer", "[[peer]]", &mut left);
        let mut apps = self.entries(&mut root, "app", "[[app]]", &mut left);
        let listeners = self.entries(&mut root, "listener", "[[listener]]", &mut left);
        let forwards = self.entries(&mut root, "forward", "[[forward]]", &mut left);
        let mut clients =
            self.entries(&mut root, "message_client", "[[message_client]]", &mut left);
        let is_auto = gateway.as_ref().is_some_and(|fields| fields.has("uplinks"));
        self.refuse_emptiness(&root, is_auto);

        let names = EntryNames {
            paths: self.names(&mut paths, "[[path]]"),
            peers: self.names(&mut peers, "[[peer]]"),
            apps: self.names(&mut apps, "[[app]]"),
        };
        let history = history.map(|fields| history::history(fields, &mut self.report));
        let (history, history_spans) = history.unzip();
        let aggregation =
            aggregation.and_then(|fields| aggregation::aggregation(fields, &mut self.report));
        let mut draft = Draft {
            gateway: gateway.and_then(|g| self.gateway(g)),
            history: history.unwrap_or_default(),
            aggregation: aggregation.unwrap_or_default(),
            history_spans,
            store: store
                .and_then(|s| store::store(s, &mut self.report))
                .unwrap_or_default(),
            ..Draft::default()
        };
        for (fields, name) in paths.into_iter().zip(&names.paths.names) {
            draft.paths.extend(self.path(fields, name.clone()));
        }
        for (fields, name) in peers.into_iter().zip(&names.peers.names) {
            draft
                .peers
                .extend(self.peer(fields, name.clone(), &names.paths, &mut left));
        }
        for (fields, name) in apps.into_iter().zip(&names.apps.names) {
            draft.apps.extend(self.app(fields, name.clone(), &names));
        }
        for fields in listeners {
            draft.listeners.extend(self.listener(fields, &names.apps));
        }
        for fields in forwards {
            draft.forwards.extend(self.forward(fields, &names.apps));
        }
        draft.message_tls =
            message_tls.and_then(|fields| message_tls::message_tls(fields, &mut self.report));
        let client_names = self.names(&mut clients, "[[message_client]]").names;
        for (fields, name) in clients.into_iter().zip(client_names) {
            let client = self.message_client(fields, name, &names.apps);
            draft.message_clients.extend(client);
        }
        draft.network = network.and_then(|fields| self.membership(fields, &names.peers));
        if let Some(fields) = fairness {
            draft.fairness = tenant::fairness(fields, &mut self.report);
        }
        let max = draft.fairness.tenants_max;
        draft.tenants = self.tenants(tenants, &names, max, &mut left);
        draft
    }

    fn refuse_emptiness(&mut self, root: &TableReader<'_, '_>, is_auto: bool) {
        let (gateway, path) = (root.has("gateway"), root.has("path") || is_auto);
        // An unknown table is likely to be the one that is missing.
        if root.refuse_unknown_keys(&mut self.report) || self.report.has_syntax_errors() {
            return;
        }
        if !gateway {
            let hint = "add [gateway] with name = \"...\", or let `keiro init` write a file";
            self.report.add(&(0..0), "the file has no [gateway]", hint);
        }
        if !path {
            let hint =
                "add one per uplink with name and interface, or uplinks = \"auto\" to [gateway]";
            self.report.add(&(0..0), "the file has no [[path]]", hint);
        }
    }

    fn gateway(&mut self, mut fields: TableReader<'_, '_>) -> Option<DraftGateway> {
        let r = &mut self.report;
        let name = fields.required(r, "name", "\"tokyo\"", name);
        let private_key_file = fields.optional(r, "private_key_file", file_name);
        let control_socket = fields.optional(r, "control_socket", socket_file_name);
        let readonly_socket = fields.optional(r, "readonly_socket", socket_file_name);
        let message_socket = fields.optional(r, "message_socket", socket_file_name);
        let message_tcp = fields.optional(r, "message_tcp", socket_address);
        let metrics = fields.optional(r, "metrics", socket_address);
        let metrics_public = fields.optional(r, "metrics_public", boolean);
        let state_directory = fields.optional(r, "state_directory", file_name);
        let scheduler = fields.optional(r, "scheduler", |v| choice(v, SCHEDULERS));
        let planner = fields.optional(r, "planner", |v| choice(v, PLANNERS));
        let tolerance = fields.optional(r, "tolerance", quantity::<Probability>);
        let probe_share = fields.optional(r, "probe_share", probe_share);
        let socket_group = fields.optional(r, "socket_group", group);
        let readonly_group = fields.optional(r, "readonly_group", group);
        let auto_uplinks = self.auto_uplinks(&mut fields);
        let r = &mut self.report;
        fields.refuse_unknown_keys(r);
        let control_at = place(&control_socket);
        let control_socket = value_or(control_socket, DEFAULT_CONTROL_SOCKET);
        Some(DraftGateway {
            control_socket: control_at,
            readonly_socket: place(&readonly_socket),
            message_socket: place(&message_socket),
            message_tcp: place(&message_tcp),
            metrics: place(&metrics),
            value: Gateway {
                name: name?.value,
                private_key_file: value_or(private_key_file, DEFAULT_PRIVATE_KEY_FILE),
                readonly_socket: value(readonly_socket)
                    .unwrap_or_else(|| beside_control_socket(&control_socket)),
                control_socket,
                readonly_group: value(readonly_group),
                message_socket: value(message_socket),
                message_tcp: value(message_tcp),
                metrics: value(metrics),
                metrics_public: value(metrics_public).unwrap_or(false),
                state_directory: value_or(state_directory, DEFAULT_STATE_DIRECTORY),
                scheduler: value(scheduler).unwrap_or_default(),
                planner: value(planner).unwrap_or_default(),
                tolerance: value(tolerance).unwrap_or(Probability::ZERO),
                probe_share: value(probe_share).unwrap_or_else(default_probe_share),
                socket_group: value(socket_group),
                auto_uplinks,
            },
        })
    }

    fn path(
        &mut self,
        mut fields: TableReader<'_, '_>,
        name: Option<Name>,
    ) -> Option<(Path, PathSpans)> {
        let local = self.local(&mut fields);
        let r = &mut self.report;
        let rate = fields.optional(r, "rate", rate);
        let delay = fields.optional(r, "delay", time);
        let mtu_max = fields.optional(r, "mtu_max", mtu);
        let metered = fields.optional(r, "metered", boolean);
        let budget = fields.optional(r, "monthly_budget", monthly_budget);
        let day = fields.optional(r, "budget_day", budget_day);
        let role = fields.optional(r, "role", |v| choice(v, ROLES));
        let cost = fields.optional(r, "cost_per_gb", cost_per_gb);
        fields.refuse_unknown_keys(r);
        if let (None, Some(day)) = (&budget, &day) {
            let message = "budget_day: without monthly_budget nothing begins anew";
            r.add(&day.at, message, "write monthly_budget, or remove it");
        }
        let local = local?;
        let path = Path {
            name: name?,
            origin: PathOrigin::Written,
            local: local.value,
            rate: rate.as_ref().map(|rate| rate.value),
            delay: value(delay),
            mtu_max: value(mtu_max),
            is_metered: value(metered).unwrap_or(false),
            budget: value(budget).map(|bytes| Budget {
                bytes,
                day: value(day).unwrap_or(1),
            }),
            role: role.as_ref().map_or(PathRole::Primary, |role| role.value),
            cost: value(cost).unwrap_or(CostPerGb::ZERO),
        };
        let spans = PathSpans {
            local: local.at,
            rate: rate.map(|rate| rate.at),
            role: role.map(|role| role.at),
        };
        Some((path, spans))
    }

    fn peer(
        &mut self,
        mut fields: TableReader<'_, '_>,
        name: Option<Name>,
        paths: &Names,
        left: &mut usize,
    ) -> Option<(Peer, PeerSpans)> {
        let r = &mut self.report;
        let example = "\"what `keiro pubkey` prints at the peer\"";
        let public_key = fields.required(r, "public_key", example, public_key);
        let preshared_key_file = fields.optional(r, "preshared_key_file", file_name);
        let reassembly_max = fields.optional(r, "reassembly_max", reassembly);
        let endpoints = fields.raw("endpoints");
        let endpoint = peer_endpoints(&mut fields, "endpoint", r);
        fields.refuse_unknown_keys(r);
        let endpoints = match endpoints {
            Some(endpoints) => self.endpoints(endpoints, paths, left),
            None => BTreeMap::new(),
        };
        let (endpoint, endpoint_spans) = endpoint.into_iter().unzip();
        let public_key = public_key?;
        let spans = PeerSpans {
            public_key: public_key.at,
            endpoint: endpoint_spans,
            endpoints: endpoints
                .iter()
                .map(|(path, e)| (*path, e.at.clone()))
                .collect(),
        };
        let peer = Peer {
            name: name?,
            public_key: public_key.value,
            origin: PeerOrigin::Written,
            preshared_key: None,
            preshared_key_file: value(preshared_key_file),
            endpoints: endpoints
                .into_iter()
                .map(|(path, e)| (path, e.value))
                .collect(),
            endpoint,
            further_paths: BTreeSet::new(),
            reassembly_max: value(reassembly_max).unwrap_or(DEFAULT_REASSEMBLY_MAX),
        };
        Some((peer, spans))
    }

    fn endpoints(
        &mut self,
        endpoints: &Spanned<DeValue<'_>>,
        paths: &Names,
        left: &mut usize,
    ) -> BTreeMap<PathIndex, Located<SocketAddr>> {
        let mut found = BTreeMap::new();
        let DeValue::Table(table) = endpoints.get_ref() else {
            let message = format!("endpoints: this is {}", type_name(endpoints.get_ref()));
            let hint = "write endpoints = { path1 = \"198.51.100.1:7600\" }";
            self.report.add(&endpoints.span(), message, hint);
            return found;
        };
        for (path, address) in table {
            if !self.take_entry(&path.span(), left) {
                break;
            }
            let written = Located {
                value: path.get_ref().to_string(),
                at: path.span(),
            };
            let index = self.reference("endpoints", &written, paths);
            match endpoint_address(address.get_ref()) {
                Ok(value) => {
                    let at = address.span();
                    found.extend(index.map(|i| (PathIndex(i), Located { value, at })));
                }
                Err(complaint) => complaint.add_to(&mut self.report, &address.span(), "endpoints"),
            }
        }
        found
    }

    fn app(
        &mut self,
        mut fields: TableReader<'_, '_>,
        name: Option<Name>,
        names: &EntryNames,
    ) -> Option<(App, Range<usize>)> {
        let at = fields.span_of("name");
        let r = &mut self.report;
        let needs = app_needs(&mut fields, r);
        if name
            .as_ref()
            .is_some_and(|name| name.as_str().starts_with(RESERVED_PREFIX))
        {
            let message =
                format!("name: names that begin with `{RESERVED_PREFIX}` are Keiro's own");
            r.add(&at, message, "choose another name");
        }
        let peer = fields.required(r, "peer", "\"...\"", text);
        let path = fields.optional(r, "path", text);
        fields.refuse_unknown_keys(r);
        if let (Some(path), Some(PathUse::Spread)) = (&path, needs.map(|needs| needs.paths)) {
            let message = "path: an application with `paths = \"spread\"` uses all paths";
            r.add(&path.at, message, "remove `path` or `paths`");
        }
        let peer = peer.and_then(|p| self.reference("peer", &p, &names.peers));
        let path = path.and_then(|p| self.reference("path", &p, &names.paths));
        let app = App {
            path: path.map(PathIndex),
            ..App::with_needs(name?, PeerIndex(peer?), &needs?)
        };
        Some((app, at))
    }

    fn listener(
        &mut self,
        mut fields: TableReader<'_, '_>,
        apps: &Names,
    ) -> Option<(Listener, ListenerSpans)> {
        let app = fields.required(&mut self.report, "app", "\"...\"", text);
        let keys = [Transport::Udp, Transport::Tcp, Transport::Tproxy];
        let mut found = None;
        if self.one_of(&fields, &keys.map(Transport::as_str), "\"127.0.0.1:5005\"") {
            for transport in keys {
                let key = transport.as_str();
                let local = fields.optional(&mut self.report, key, local_address);
                found = local.map(|local| (transport, local)).or(found);
            }
        }
        fields.allow(&keys.map(Transport::as_str));
        let member = tenant::member(&mut fields, &mut self.report);
        fields.refuse_unknown_keys(&mut self.report);
        let app = app.and_then(|a| self.reference("app", &a, apps));
        let (transport, local) = found?;
        Some((
            Listener {
                app: AppIndex(app?),
                transport,
                local: local.value,
                member: member.as_ref().map(|member| member.value.clone()),
            },
            ListenerSpans {
                local: local.at,
                member,
            },
        ))
    }

    /// Whether exactly one of `keys` is there; says so if not.
    pub(super) fn one_of(
        &mut self,
        fields: &TableReader<'_, '_>,
        keys: &[&'static str],
        example: &str,
    ) -> bool {
        let there: Vec<&str> = keys.iter().copied().filter(|key| fields.has(key)).collect();
        match there[..] {
            [_] => return true,
            [] => fields.report_missing(&mut self.report, keys, example),
            [first, second, ..] => {
                let message = format!("{first} and {second}: only one of them");
                let at = fields.span_of(second);
                self.report
                    .add(&at, message, "write another entry for the other");
            }
        }
        false
    }

    fn forward(
        &mut self,
        mut fields: TableReader<'_, '_>,
        apps: &Names,
    ) -> Option<(Forward, ForwardSpans)> {
        let app = fields.required(&mut self.report, "app", "\"...\"", text);
        let keys = ["udp", "tcp", "tcp_networks"];
        let mut found = None;
        if self.one_of(&fields, &keys, "\"10.0.0.9:5005\"") {
            let r = &mut self.report;
            let udp = fields.optional(r, "udp", socket_address);
            let tcp = fields.optional(r, "tcp", socket_address);
            let networks = fields.optional(r, "tcp_networks", networks);
            found = udp
                .map(|udp| (Destination::Udp(udp.value), udp.at))
                .or_else(|| tcp.map(|tcp| (Destination::Tcp(tcp.value), tcp.at)))
                .or_else(|| networks.map(|n| (Destination::Networks(n.value), n.at)));
        }
        let allow_local = fields.optional(&mut self.report, "allow_local", boolean);
        fields.allow(&keys);
        let member = tenant::member(&mut fields, &mut self.report);
        fields.refuse_unknown_keys(&mut self.report);
        let (app, (to, at)) = (app?, found?);
        let index = self.reference("app", &app, apps)?;
        let forward = Forward {
            app: AppIndex(index),
            to,
            allow_local: value(allow_local).unwrap_or(false),
            member: member.as_ref().map(|member| member.value.clone()),
        };
        Some((
            forward,
            ForwardSpans {
                app: app.at,
                to: at,
                member,
            },
        ))
    }
}

const SCHEDULERS: &[(&str, Scheduler)] =
    &[("deadline", Scheduler::Deadline), ("fifo", Scheduler::Fifo)];
const PLANNERS: &[(&str, Planner)] = &[
    ("frugal", Planner::Frugal),
    ("exact", Planner::Exact),
    ("off", Planner::Off),
];
fn first<T, U>(pairs: Vec<(T, U)>) -> Vec<T> {
    pairs.into_iter().map(|(value, _)| value).collect()
}

/// `control-readonly.sock` beside `control.sock`, so that two gateways of one machine do not want one file.
fn beside_control_socket(control_socket: &std::path::Path) -> PathBuf {
    let mut name = control_socket.file_stem().unwrap_or_default().to_owned();
    name.push("-readonly");
    if let Some(extension) = control_socket.extension() {
        name.push(".");
        name.push(extension);
    }
    control_socket.with_file_name(name)
}
