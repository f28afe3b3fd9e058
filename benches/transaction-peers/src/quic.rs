//! QUIC: a stream for each TCP connection, on one connection for all or on one for each.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig,
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use tokio::{io::join, net::TcpStream};

use crate::{Protocol, Relay, carry, connect, listen, ready, spawn};

/// The name in the certificate.
const NAME: &str = "relay";

/// Streams at a time; more than any experiment has clients.
const STREAMS_MAX: u32 = 4096;

/// Acknowledgements are sent after this at the latest, instead of after 25 ms: what is lost is
/// noticed as early as QUIC can.
const ACK_DELAY_MAX: Duration = Duration::from_millis(1);

/// Below the idle timeout of 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

fn transport() -> Arc<TransportConfig> {
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(ACK_DELAY_MAX));
    let mut transport = TransportConfig::default();
    transport
        .ack_frequency_config(Some(acks))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(STREAMS_MAX.into());
    Arc::new(transport)
}

pub(crate) async fn client(relay: &Relay) -> anyhow::Result<()> {
    let certificate = fs::read(&relay.certificate)
        .with_context(|| format!("cannot read {}", relay.certificate.display()))?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let any: SocketAddr = match relay.connect {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let mut endpoint = Endpoint::client(any)?;
    endpoint.set_default_client_config(config);
    let to = relay.connect;
    let shared = match relay.protocol {
        Protocol::QuicShared => Some(endpoint.connect(to, NAME)?.await?),
        _ => None,
    };
    let listener = listen(relay.listen).await?;
    ready()?;
    loop {
        let (tcp, _) = listener.accept().await?;
        let (endpoint, shared) = (endpoint.clone(), shared.clone());
        spawn(async move {
            tcp.set_nodelay(true)?;
            let connection = match shared {
                Some(shared) => shared,
                None => endpoint.connect(to, NAME)?.await?,
            };
            relay_over(tcp, &connection).await
        });
    }
}

/// Leads a TCP connection over a stream of its own.
async fn relay_over(tcp: TcpStream, connection: &Connection) -> anyhow::Result<()> {
    let (send, receive) = connection.open_bi().await?;
    carry(tcp, join(receive, send)).await;
    Ok(())
}

pub(crate) async fn server(relay: &Relay) -> anyhow::Result<()> {
    let own = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = own.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, relay.listen)
        .with_context(|| format!("cannot listen at {}", relay.listen))?;
    fs::write(&relay.certificate, &certificate)
        .with_context(|| format!("cannot write {}", relay.certificate.display()))?;
    let to = relay.connect;
    ready()?;
    while let Some(incoming) = endpoint.accept().await {
        spawn(async move {
            let connection = incoming.await?;
            // Ends with the connection.
            while let Ok((send, receive)) = connection.accept_bi().await {
                spawn(async move {
                    carry(connect(to).await?, join(receive, send)).await;
                    Ok(())
                });
            }
            Ok(())
        });
    }
    Ok(())
}
