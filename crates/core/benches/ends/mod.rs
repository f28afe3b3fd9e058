//! Two endpoints with one path to each other and one application, which benchmarks exchange packets between.

use std::{net::SocketAddr, time::Duration};

use keiro_core::{
    AppConfig, AppId, DeliveryClass, Endpoint, EndpointConfig, Instant, PathConfig, PathId,
    PathTerms, PeerConfig, PeerId, PrivateKey, SocketId, TenantId,
};
use keiro_units::Bandwidth;

pub(crate) const APP: AppId = AppId(7);

/// Both ends, and each one's number for the other.
pub(crate) fn configured(rate: Bandwidth, class: DeliveryClass) -> ([Endpoint; 2], [PeerId; 2]) {
    let key = |end: usize| PrivateKey::from_bytes([end as u8 + 1; 32]);
    let mut ends = [0, 1].map(|end| {
        let config = EndpointConfig::new(key(end));
        Endpoint::new(Instant::ZERO, config, [end as u8; 32])
    });
    let peers = [0, 1].map(|end| {
        let mut peer = PeerConfig::new(key(1 - end).public_key());
        peer.paths = vec![PathConfig {
            id: PathId(0),
            socket: SocketId(0),
            remote: Some(SocketAddr::from(([192, 0, 2, 2 - end as u8], 7600))),
            rate: Some(rate),
            mtu_max: 1500,
            probe_limit: None,
            terms: PathTerms::FREE,
        }];
        peer.apps = vec![AppConfig {
            id: APP,
            class,
            latency_target: Some(Duration::from_millis(20)),
            lifetime: None,
            paths: vec![PathId(0)],
            tenant: TenantId::ZERO,
            is_spread: false,
        }];
        ends[end].add_peer(Instant::ZERO, peer)
    });
    (ends, peers)
}
