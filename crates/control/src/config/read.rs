//! The schema: which tables and keys there are, and what each means.
//!
//! Reads one table after the other, resolves names to indices, and hands whole entries to
//! `check`, which looks at them together. Goes on after a problem to find the others; the result
//! is built only if there are none.

use std::{collections::BTreeMap, net::SocketAddr, ops::Range, path::PathBuf, time::Duration};

use keiro_config::{
    Located, Report, TableReader, ValueError, boolean, choice, file_name, nearest, quantity, shown,
    socket_address, string, type_name,
};
use keiro_units::{Bandwidth, ByteCount, Probability};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    App, AppIndex, CONFIG_ENTRIES_MAX, Class, Config, ConfigError, DEFAULT_CONTROL_SOCKET,
    DEFAULT_PRIVATE_KEY_FILE, DEFAULT_REASSEMBLY_MAX, DEFAULT_STATE_DIRECTORY, Destination,
    FILE_LIMITS, Forward, Gateway, Listener, MESSAGE_BYTES_MAX, MTU_MAX, MTU_MIN, NAME_BYTES_MAX,
    Name, Origin, PATH_RATE_MAX, PATH_RATE_MIN, Path, PathIndex, Peer, PeerIndex, Planner,
    RENAMED_KEYS, Scheduler, Transport,
    aggregation::{self, Aggregation},
    check,
    history::{self, History, HistorySpans},
    network::networks,
    store::{self, Store},
    tenant::{self, Fairness, Member, Tenant, TenantSpans},
};
use crate::{key::PublicKey, units::Text};

/// Times above this are refused: a mistaken unit is likelier. Ours.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The largest `probe_share`. Ours.
const PROBE_SHARE_MAX: f64 = 0.1;
/// The smallest `reassembly_max`: two of the longest messages, so that a long one finds room beside
/// a stream of short ones. Ours.
const REASSEMBLY_MIN: ByteCount = ByteCount::new(32 << 20);
/// `sockaddr_un.sun_path` without its final NUL (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// A UDP datagram's payload over IPv4 (RFC 768, RFC 791).
const DATAGRAM_BYTES_MAX: u64 = 65_507;

/// Entries with the spans of their values, before they are checked together.
///
/// An entry that is wrong is missing here and has a problem in the report.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) gateway: Option<DraftGateway>,
    pub(super) store: Store,
    pub(super) history: History,
    pub(super) aggregation: Aggregation,
    /// `None`: it is not in the file.
    pub(super) history_spans: Option<HistorySpans>,
    pub(super) paths: Vec<(Path, PathSpans)>,
    pub(super) peers: Vec<(Peer, PeerSpans)>,
    pub(super) apps: Vec<(App, Range<usize>)>,
    pub(super) listeners: Vec<(Listener, ListenerSpans)>,
    pub(super) forwards: Vec<(Forward, ForwardSpans)>,
    pub(super) fairness: Fairness,
    pub(super) tenants: Vec<(Tenant, TenantSpans)>,
}

pub(super) struct DraftGateway {
    pub(super) value: Gateway,
    pub(super) control_socket: Option<Range<usize>>,
    pub(super) message_socket: Option<Range<usize>>,
    pub(super) message_tcp: Option<Range<usize>>,
    pub(super) metrics: Option<Range<usize>>,
}

pub(super) struct PathSpans {
    pub(super) local: Range<usize>,
    pub(super) rate: Range<usize>,
}

pub(super) struct PeerSpans {
    pub(super) public_key: Range<usize>,
    pub(super) endpoints: BTreeMap<PathIndex, Range<usize>>,
}

pub(super) struct ListenerSpans {
    pub(super) local: Range<usize>,
    pub(super) member: Option<Located<Member>>,
}

pub(super) struct ForwardSpans {
    pub(super) app: Range<usize>,
    pub(super) to: Range<usize>,
    pub(super) member: Option<Located<Member>>,
}

pub(super) fn config(text: &str, file: &str) -> Result<Config, ConfigError> {
    FILE_LIMITS.check(text, file)?;
    let (mut document, mut report) = keiro_config::parse(text, file);
    keiro_config::apply_renames(&mut document, RENAMED_KEYS, &mut report);
    let mut reader = Reader {
        report,
        too_many: false,
    };
    let draft = reader.document(&document);
    let mut report = reader.report;
    if !report.has_syntax_errors() {
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
        fairness: draft.fairness,
        tenants: first(draft.tenants),
        warnings,
        origin,
    })
}

pub(super) struct Reader<'t> {
    pub(super) report: Report<'t>,
    /// That there are too many entries is in the report, or need not be.
    too_many: bool,
}

/// The names of one kind of entry, in file order, also of entries that are otherwise wrong: what
/// refers to them is not wrong too.
pub(super) struct Names {
    header: &'static str,
    names: Vec<Option<Name>>,
    index: BTreeMap<Name, usize>,
    /// Some have no name that is one.
    nameless: bool,
}

/// The names that entries refer to.
pub(super) struct EntryNames {
    pub(super) paths: Names,
    pub(super) peers: Names,
    pub(super) apps: Names,
}

pub(super) type Entries<'d, 'i> = Vec<TableReader<'d, 'i>>;

impl Reader<'_> {
    fn document(&mut self, table: &DeTable<'_>) -> Draft {
        let mut root = TableReader::new("the file", 0..0, table, &self.report);
        let gateway = root.table(&mut self.report, "gateway", "[gateway]");
        let store = root.table(&mut self.report, "store", "[store]");
        let history = root.table(&mut self.report, "history", "[history]");
        let aggregation = root.table(&mut self.report, "aggregation", "[aggregation]");
        let fairness = root.table(&mut self.report, "fairness", "[fairness]");
        let tenants = root.raw("tenant");
        let mut left = CONFIG_ENTRIES_MAX;
        let mut paths = self.entries(&mut root, "path", "[[path]]", &mut left);
        let mut peers = self.entries(&mut root, "peer", "[[peer]]", &mut left);
        let mut apps = self.entries(&mut root, "app", "[[app]]", &mut left);
        let listeners = self.entries(&mut root, "listener", "[[listener]]", &mut left);
        let forwards = self.entries(&mut root, "forward", "[[forward]]", &mut left);
        self.refuse_emptiness(&root);

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
        if let Some(fields) = fairness {
            draft.fairness = tenant::fairness(fields, &mut self.report);
        }
        let max = draft.fairness.tenants_max;
        draft.tenants = self.tenants(tenants, &names, max, &mut left);
        draft
    }

    fn refuse_emptiness(&mut self, root: &TableReader<'_, '_>) {
        let (gateway, path) = (root.has("gateway"), root.has("path"));
        // An unknown table is likely to be the one that is missing.
        if root.refuse_unknown_keys(&mut self.report) || self.report.has_syntax_errors() {
            return;
        }
        if !gateway {
            let hint = "add [gateway] with name = \"...\", or let `keiro init` write a file";
            self.report.add(&(0..0), "the file has no [gateway]", hint);
        }
        if !path {
            let hint = "add one per uplink with name, local and rate";
            self.report.add(&(0..0), "the file has no [[path]]", hint);
        }
    }

    /// The tables under `key`, as many as there may still be entries.
    pub(super) fn entries<'d, 'i>(
        &mut self,
        root: &mut TableReader<'d, 'i>,
        key: &'static str,
        header: &'static str,
        left: &mut usize,
    ) -> Entries<'d, 'i> {
        let tables = root.tables(&mut self.report, key, header).into_iter();
        tables
            .take_while(|table| self.take_entry(&table.span(), left))
            .collect()
    }

    pub(super) fn take_entry(&mut self, at: &Range<usize>, left: &mut usize) -> bool {
        if *left > 0 {
            *left -= 1;
            return true;
        }
        if !self.too_many {
            self.too_many = true;
            let message = format!(
                "more than {CONFIG_ENTRIES_MAX} entries; endpoints, tenants, their rules, their peers and \
                 the prefixes behind these count too"
            );
            let hint = "share the load between several gateways";
            self.report.add(at, message, hint);
        }
        false
    }

    /// Leaves out the problem of too many entries, since a narrower limit has been reported.
    pub(super) fn suppress_entry_limit(&mut self) {
        self.too_many = true;
    }

    fn names(&mut self, entries: &mut Entries<'_, '_>, header: &'static str) -> Names {
        let mut names = Names {
            header,
            names: Vec::new(),
            index: BTreeMap::new(),
            nameless: false,
        };
        let mut spans: BTreeMap<Name, Range<usize>> = BTreeMap::new();
        for fields in entries {
            let name = fields.required(&mut self.report, "name", "\"...\"", name);
            let Some(Located { value: name, at }) = name else {
                names.nameless = true;
                names.names.push(None);
                continue;
            };
            if let Some(earlier) = spans.get(&name) {
                let line = self.report.line(earlier);
                let message = format!("another {header} is named `{name}` (line {line})");
                self.report.add(&at, message, "give each its own name");
            } else {
                spans.insert(name.clone(), at);
                names.index.insert(name.clone(), names.names.len());
            }
            names.names.push(Some(name));
        }
        names
    }

    /// The index of the entry that a key names.
    pub(super) fn reference(
        &mut self,
        key: &str,
        written: &Located<String>,
        names: &Names,
    ) -> Option<usize> {
        let found = Name::new(&written.value)
            .ok()
            .and_then(|n| names.index.get(&n).copied());
        // An entry whose own name is wrong may be the one that is meant.
        if found.is_none() && !self.report.has_syntax_errors() && !names.nameless {
            let message = format!(
                "{key}: there is no {} named `{}`",
                names.header,
                shown(&written.value)
            );
            let hint = match self.report.is_full() {
                true => String::new(),
                false => names.hint(&written.value),
            };
            self.report.add(&written.at, message, &hint);
        }
        found
    }

    fn gateway(&mut self, mut fields: TableReader<'_, '_>) -> Option<DraftGateway> {
        let r = &mut self.report;
        let name = fields.required(r, "name", "\"tokyo\"", name);
        let private_key_file = fields.optional(r, "private_key_file", file_name);
        let control_socket = fields.optional(r, "control_socket", socket_file_name);
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
        fields.refuse_unknown_keys(r);
        Some(DraftGateway {
            control_socket: place(&control_socket),
            message_socket: place(&message_socket),
            message_tcp: place(&message_tcp),
            metrics: place(&metrics),
            value: Gateway {
                name: name?.value,
                private_key_file: value_or(private_key_file, DEFAULT_PRIVATE_KEY_FILE),
                control_socket: value_or(control_socket, DEFAULT_CONTROL_SOCKET),
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
            },
        })
    }

    fn path(
        &mut self,
        mut fields: TableReader<'_, '_>,
        name: Option<Name>,
    ) -> Option<(Path, PathSpans)> {
        let r = &mut self.report;
        let local = fields.required(r, "local", "\"192.0.2.1:7600\"", local_address);
        let rate = fields.required(r, "rate", "\"100Mbit\"", rate);
        let delay = fields.optional(r, "delay", time);
        let mtu_max = fields.optional(r, "mtu_max", mtu);
        fields.refuse_unknown_keys(r);
        let (local, rate) = (local?, rate?);
        let path = Path {
            name: name?,
            local: local.value,
            rate: rate.value,
            delay: value(delay),
            mtu_max: value(mtu_max),
        };
        let spans = PathSpans {
            local: local.at,
            rate: rate.at,
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
        fields.refuse_unknown_keys(r);
        let endpoints = match endpoints {
            Some(endpoints) => self.endpoints(endpoints, paths, left),
            None => BTreeMap::new(),
        };
        let public_key = public_key?;
        let spans = PeerSpans {
            public_key: public_key.at,
            endpoints: endpoints
                .iter()
                .map(|(path, e)| (*path, e.at.clone()))
                .collect(),
        };
        let peer = Peer {
            name: name?,
            public_key: public_key.value,
            preshared_key_file: value(preshared_key_file),
            endpoints: endpoints
                .into_iter()
                .map(|(path, e)| (path, e.value))
                .collect(),
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
        let class = fields.required(r, "class", "\"message\"", |v| choice(v, CLASSES));
        let peer = fields.required(r, "peer", "\"...\"", text);
        let latency_target = fields.optional(r, "latency_target", positive_time);
        let lifetime = fields.optional(r, "lifetime", positive_time);
        let length = fields.optional(r, "length", length);
        let interval = fields.optional(r, "interval", positive_time);
        let path = fields.optional(r, "path", text);
        fields.refuse_unknown_keys(r);
        let peer = peer.and_then(|p| self.reference("peer", &p, &names.peers));
        let path = path.and_then(|p| self.reference("path", &p, &names.paths));
        let class = class?.value;
        self.refuse_contradictions(class, &latency_target, &lifetime, &length);
        let app = App {
            name: name?,
            class,
            peer: PeerIndex(peer?),
            latency_target: value(latency_target),
            lifetime: value(lifetime),
            length: value(length),
            interval: value(interval),
            path: path.map(PathIndex),
        };
        Some((app, at))
    }

    fn refuse_contradictions(
        &mut self,
        class: Class,
        latency_target: &Option<Located<Duration>>,
        lifetime: &Option<Located<Duration>>,
        length: &Option<Located<ByteCount>>,
    ) {
        let r = &mut self.report;
        if let (Class::Datagram | Class::Stream, Some(lifetime)) = (class, lifetime) {
            let message = match class {
                Class::Stream => "lifetime: streams have none, all of their bytes arrive",
                _ => "lifetime: datagrams have none, they are sent once",
            };
            r.add(
                &lifetime.at,
                message,
                "remove it, or write class = \"message\"",
            );
        }
        if let (Some(latency_target), Some(lifetime)) = (latency_target, lifetime)
            && lifetime.value < latency_target.value
        {
            let (lifetime_text, target_text) = (Text(lifetime.value), Text(latency_target.value));
            let message = format!(
                "lifetime: {lifetime_text} is shorter than the latency target {target_text}, so messages \
                 would be given up in time"
            );
            r.add(
                &lifetime.at,
                message,
                "make lifetime at least as long as latency_target, or remove it",
            );
        }
        if let (Class::Datagram, Some(length)) = (class, length)
            && length.value.get() > DATAGRAM_BYTES_MAX
        {
            let message = format!("length: a datagram has at most {DATAGRAM_BYTES_MAX}B");
            r.add(
                &length.at,
                message,
                "write class = \"message\" for longer ones",
            );
        }
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
    fn one_of(
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

impl Names {
    fn hint(&self, written: &str) -> String {
        if self.index.is_empty() {
            return format!("add {} with this name", self.header);
        }
        if let Some(near) = nearest(written, self.index.keys().map(Name::as_str)) {
            return format!("did you mean `{near}`?");
        }
        let mut known: Vec<_> = self
            .index
            .keys()
            .take(NAMES_SHOWN_MAX)
            .map(Name::as_str)
            .collect();
        if self.index.len() > NAMES_SHOWN_MAX {
            known.push("...");
        }
        format!("there are {}", known.join(", "))
    }
}

/// Names in a hint. Ours: one line.
const NAMES_SHOWN_MAX: usize = 8;

const SCHEDULERS: &[(&str, Scheduler)] =
    &[("deadline", Scheduler::Deadline), ("fifo", Scheduler::Fifo)];
const PLANNERS: &[(&str, Planner)] = &[
    ("frugal", Planner::Frugal),
    ("exact", Planner::Exact),
    ("greedy", Planner::Greedy),
    ("off", Planner::Off),
];
const CLASSES: &[(&str, Class)] = &[
    ("message", Class::Message),
    ("datagram", Class::Datagram),
    ("stream", Class::Stream),
];

fn text(value: &DeValue<'_>) -> Result<String, ValueError> {
    string(value).map(str::to_owned)
}

pub(super) fn name(value: &DeValue<'_>) -> Result<Name, ValueError> {
    Name::new(string(value)?).map_err(|e| {
        let text = e.to_string();
        let (message, hint) = text
            .split_once("; ")
            .unwrap_or((&text, "choose another name"));
        ValueError::new(message, hint)
    })
}

fn group(value: &DeValue<'_>) -> Result<String, ValueError> {
    let text = string(value)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-$".contains(c);
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(allowed) {
        return Err(ValueError::new(
            format!("`{}` is not a group's name", shown(text)),
            "`getent group` lists them",
        ));
    }
    Ok(text.to_owned())
}

fn socket_file_name(value: &DeValue<'_>) -> Result<PathBuf, ValueError> {
    let path = file_name(value)?;
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(ValueError::new(
            format!("a socket's file name has at most {SOCKET_PATH_BYTES_MAX} bytes, not {bytes}"),
            "choose a shorter directory such as /run/keiro",
        ));
    }
    Ok(path)
}

fn public_key(value: &DeValue<'_>) -> Result<PublicKey, ValueError> {
    string(value)?.parse().map_err(|e: crate::key::KeyError| {
        ValueError::new(e.to_string(), "copy what `keiro pubkey` prints at the peer")
    })
}

/// An address that a socket of this gateway can be bound to.
fn local_address(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    let address = socket_address(value)?;
    if address.ip().is_multicast() || is_broadcast(&address) {
        return Err(ValueError::new(
            format!("`{address}` is a group's address"),
            "write an address of this machine",
        ));
    }
    Ok(address)
}

/// An address at which one peer can be reached.
fn endpoint_address(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    let address = socket_address(value)?;
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || is_broadcast(&address) {
        return Err(ValueError::new(
            format!("`{address}` is not one machine's address"),
            "write the peer's address on this path",
        ));
    }
    Ok(address)
}

pub(super) fn is_broadcast(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V4(v4) if v4.ip().is_broadcast())
}

fn rate(value: &DeValue<'_>) -> Result<Bandwidth, ValueError> {
    let rate: Bandwidth = quantity(value)?;
    let what = match rate {
        Bandwidth::ZERO => "nothing could be sent at a rate of 0".to_owned(),
        rate if rate < PATH_RATE_MIN => format!("{} is less than any uplink carries", Text(rate)),
        rate if rate > PATH_RATE_MAX => format!("{} is more than any uplink carries", Text(rate)),
        rate => return Ok(rate),
    };
    Err(ValueError::new(
        what,
        "write what the uplink carries, as in \"100Mbit\"",
    ))
}

fn time(value: &DeValue<'_>) -> Result<Duration, ValueError> {
    let time: Duration = quantity(value)?;
    if time > TIME_MAX {
        return Err(ValueError::new(
            format!("{} is more than {}", Text(time), Text(TIME_MAX)),
            "is the unit the right one?",
        ));
    }
    Ok(time)
}

pub(super) fn positive_time(value: &DeValue<'_>) -> Result<Duration, ValueError> {
    let time = time(value)?;
    if time.is_zero() {
        return Err(ValueError::new(
            "must be more than 0",
            "remove it to leave it open",
        ));
    }
    Ok(time)
}

/// Default of `probe_share`.
fn default_probe_share() -> Probability {
    Probability::from_ratio(5, 1000).unwrap_or(Probability::ZERO)
}

fn probe_share(value: &DeValue<'_>) -> Result<Probability, ValueError> {
    let share: Probability = quantity(value)?;
    if share.get() > PROBE_SHARE_MAX {
        return Err(ValueError::new(
            "more than a tenth of a path for measuring it",
            "write 0% to 10%",
        ));
    }
    Ok(share)
}

fn mtu(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, ByteCount::new(MTU_MIN), ByteCount::new(MTU_MAX))
}

fn reassembly(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, REASSEMBLY_MIN, ByteCount::new(1 << 40))
}

fn length(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, ByteCount::new(1), ByteCount::new(MESSAGE_BYTES_MAX))
}

pub(super) fn in_range(
    value: &DeValue<'_>,
    min: ByteCount,
    max: ByteCount,
) -> Result<ByteCount, ValueError> {
    let bytes: ByteCount = quantity(value)?;
    if bytes < min || bytes > max {
        return Err(ValueError::new(
            format!("{} is out of range", Text(bytes)),
            format!("write {} to {}", Text(min), Text(max)),
        ));
    }
    Ok(bytes)
}

pub(super) fn value<T>(found: Option<Located<T>>) -> Option<T> {
    found.map(|found| found.value)
}

fn value_or(found: Option<Located<PathBuf>>, default: &str) -> PathBuf {
    value(found).unwrap_or_else(|| PathBuf::from(default))
}

fn place<T>(found: &Option<Located<T>>) -> Option<Range<usize>> {
    found.as_ref().map(|found| found.at.clone())
}

fn first<T, U>(pairs: Vec<(T, U)>) -> Vec<T> {
    pairs.into_iter().map(|(value, _)| value).collect()
}
