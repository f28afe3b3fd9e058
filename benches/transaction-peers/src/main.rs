//! Relays TCP connections from one gateway to another over KCP or QUIC: what a user would take
//! instead of Keiro to keep small transactions fast on a line that loses packets. Or over bare
//! datagrams, to know what two relays cost that do nothing.
//!
//! `relay-client` accepts TCP connections and leads each to `relay-server`, which connects to the
//! server. Both print `ready` when they are, and run until they are ended. `experiments/aggregation`
//! starts them; README.md says how the protocols are set.

mod kcp;
mod quic;
mod udp;

use std::{io::Write, net::SocketAddr, path::PathBuf};

use anyhow::Context;
use clap::{Args, Parser, ValueEnum};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

#[derive(Parser)]
#[command(about, version)]
enum Role {
    /// Accept TCP connections and lead them to the other relay
    RelayClient(Relay),
    /// Take what the other relay sends and connect to the server
    RelayServer(Relay),
}

#[derive(Args, Clone)]
struct Relay {
    /// What the relays speak with each other
    #[arg(long, value_enum)]
    protocol: Protocol,
    /// Where to listen: for TCP as client, for UDP as server
    #[arg(long)]
    listen: SocketAddr,
    /// Where to connect: the other relay as client, the TCP server as server
    #[arg(long)]
    connect: SocketAddr,
    /// QUIC's certificate (DER), which the server writes and the client trusts
    #[arg(long)]
    certificate: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// One KCP session for each TCP connection
    Kcp,
    /// One QUIC connection, with a stream for each TCP connection
    QuicShared,
    /// One QUIC connection for each TCP connection
    QuicEach,
    /// Datagrams and nothing else, for a line that loses none
    UdpLossless,
}

fn main() -> anyhow::Result<()> {
    // One thread: the relay does little, and waking another one costs more than it does.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    use Protocol::{Kcp, QuicEach, QuicShared, UdpLossless};
    match Role::parse() {
        Role::RelayClient(relay) => match relay.protocol {
            Kcp => runtime.block_on(kcp::client(&relay)),
            QuicShared | QuicEach => runtime.block_on(quic::client(&relay)),
            UdpLossless => udp::client(&relay),
        },
        Role::RelayServer(relay) => match relay.protocol {
            Kcp => runtime.block_on(kcp::server(&relay)),
            QuicShared | QuicEach => runtime.block_on(quic::server(&relay)),
            UdpLossless => udp::server(&relay),
        },
    }
}

/// Says that connections are taken from now on.
fn ready() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    Ok(out.flush()?)
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen at {address}"))
}

async fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Carries bytes both ways until both ends have finished.
async fn carry(mut tcp: TcpStream, mut other: impl AsyncRead + AsyncWrite + Unpin) {
    if let Err(error) = tokio::io::copy_bidirectional(&mut tcp, &mut other).await {
        eprintln!("a connection ended: {error}");
    }
}

/// Does something about one connection; a failure is reported and concerns no other.
fn spawn(task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = task.await {
            eprintln!("a connection failed: {error:#}");
        }
    });
}
