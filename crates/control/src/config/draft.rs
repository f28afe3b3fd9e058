//! A configuration that is being read, with the spans of its values.

use std::{collections::BTreeMap, ops::Range};

use keiro_config::Located;

use super::{
    App, Forward, Gateway, Listener, Path, PathIndex, Peer,
    aggregation::Aggregation,
    history::{History, HistorySpans},
    membership::Membership,
    message_tls::{MessageClient, MessageClientSpans, MessageTls, MessageTlsSpans},
    store::Store,
    tenant::{Fairness, Member, Tenant, TenantSpans},
};

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
    pub(super) message_tls: Option<(MessageTls, MessageTlsSpans)>,
    pub(super) message_clients: Vec<(MessageClient, MessageClientSpans)>,
    pub(super) fairness: Fairness,
    pub(super) tenants: Vec<(Tenant, TenantSpans)>,
    pub(super) network: Option<Membership>,
}

pub(super) struct DraftGateway {
    pub(super) value: Gateway,
    pub(super) control_socket: Option<Range<usize>>,
    pub(super) readonly_socket: Option<Range<usize>>,
    pub(super) message_socket: Option<Range<usize>>,
    pub(super) message_tcp: Option<Range<usize>>,
    pub(super) metrics: Option<Range<usize>>,
}

pub(super) struct PathSpans {
    pub(super) local: Range<usize>,
    pub(super) rate: Option<Range<usize>>,
    pub(super) role: Option<Range<usize>>,
}

pub(super) struct PeerSpans {
    pub(super) public_key: Range<usize>,
    /// Of each entry of `endpoint`.
    pub(super) endpoint: Vec<Range<usize>>,
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
