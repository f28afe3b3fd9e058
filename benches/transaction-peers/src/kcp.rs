//! KCP in its fast mode, one session for each TCP connection.

use anyhow::Context;
use tokio_kcp::{KcpConfig, KcpListener, KcpNoDelayConfig, KcpStream};

use crate::{Relay, carry, connect, listen, ready, spawn};

/// The fast mode, and nothing waits for the next tick that could be sent or acknowledged now.
fn config() -> KcpConfig {
    KcpConfig {
        nodelay: KcpNoDelayConfig::fastest(),
        flush_write: true,
        flush_acks_input: true,
        stream: true,
        ..KcpConfig::default()
    }
}

pub(crate) async fn client(relay: &Relay) -> anyhow::Result<()> {
    let listener = listen(relay.listen).await?;
    let to = relay.connect;
    ready()?;
    loop {
        let (tcp, _) = listener.accept().await?;
        spawn(async move {
            tcp.set_nodelay(true)?;
            let session = KcpStream::connect(&config(), to).await?;
            carry(tcp, session).await;
            Ok(())
        });
    }
}

pub(crate) async fn server(relay: &Relay) -> anyhow::Result<()> {
    let mut listener = KcpListener::bind(config(), relay.listen)
        .await
        .with_context(|| format!("cannot listen at {}", relay.listen))?;
    let to = relay.connect;
    ready()?;
    loop {
        let (session, _) = listener.accept().await?;
        spawn(async move {
            carry(connect(to).await?, session).await;
            Ok(())
        });
    }
}
