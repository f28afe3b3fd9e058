//! The message socket for clients on other hosts: TCP with TLS, and a token for each client.
//!
//! A thread of its own terminates TLS, so that handshakes and encryption take none of the data thread's time.
//! For every client that it accepts it gives the data thread one end of a pair of sockets, where the same
//! protocol goes on: the message socket serves these connections like local ones, with the same bounds on
//! messages and their memory. This thread adds what only concerns other hosts: tokens, what each client may
//! do, limits per client and network, and time limits.
//!
//! - [`server`] is the thread, [`connection`] one connection.
//! - [`clients`] has tokens, permissions and figures, [`framing`] the frames that figures and limits come from.
//! - [`sources`] limits networks before they show a token.
//! - [`attach`] hands connections over to the data thread.

pub(crate) mod attach;
mod clients;
mod connection;
mod framing;
mod refusals;
mod server;
mod sources;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod view;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        mpsc::{Sender, channel, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use keiro_control::config::{Config, ConfigError};
use keiro_linux::{
    epoll::Waker,
    tcp::{Listener, Mode},
};

use self::{
    attach::{Attach, Attached},
    clients::{ClientFigures, ClientSettings},
    refusals::Refusals,
    server::{Command, Server},
};
use crate::privileges::Privileges;

/// What the configuration says, with the files that it names.
#[derive(Clone)]
pub(crate) struct Settings {
    tls: Arc<rustls::ServerConfig>,
    clients: ClientSettings,
}

/// Everything in numbers.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) clients: Vec<ClientFigures>,
    /// By reason.
    pub(crate) closed_connections: BTreeMap<&'static str, u64>,
    pub(crate) opening_connections: u64,
}

impl Default for Figures {
    /// Those of a gateway without `[message_tls]`.
    fn default() -> Self {
        Self {
            clients: Vec::new(),
            closed_connections: Refusals::default().counts(),
            opening_connections: 0,
        }
    }
}

/// Sockets that listen, opened while the process may.
pub(crate) struct Opened {
    listeners: Vec<Listener>,
    settings: Settings,
}

/// The control thread's end.
pub(crate) struct MessageTlsServer {
    /// `None` once it stops.
    commands: Option<Sender<Command>>,
    wake: Arc<Waker>,
    join: Option<JoinHandle<()>>,
}

/// How long the control thread waits for figures. Ours: far longer than a turn of the thread.
const FIGURES_TIME: Duration = Duration::from_millis(500);

/// Reads certificate, key and tokens; `None`: the configuration has no `[message_tls]`.
///
/// # Errors
/// What is wrong with them, at the place of the configuration that names them.
pub(crate) fn settings(config: &Config) -> Result<Option<Settings>, ConfigError> {
    let Some(tls) = &config.message_tls else {
        return Ok(None);
    };
    let clients = ClientSettings::load(config);
    let tls = tls::server_config(config, tls)?;
    Ok(Some(Settings {
        tls: Arc::new(tls),
        clients: clients?,
    }))
}

/// What keeps the files that `[message_tls]` and its clients name from being used here; `None`: nothing.
pub fn problem(config: &Config) -> Option<ConfigError> {
    settings(config).err()
}

/// Opens the listening sockets.
///
/// # Errors
/// Why one cannot be opened.
pub(crate) fn open(config: &Config) -> anyhow::Result<Option<Opened>> {
    let (Some(tls), Some(settings)) = (&config.message_tls, settings(config)?) else {
        return Ok(None);
    };
    let listen = |address: &std::net::SocketAddr| {
        Listener::bind(*address, Mode::Plain)
            .with_context(|| format!("{}: message_tls: listen", config.file()))
    };
    Ok(Some(Opened {
        listeners: tls
            .listen
            .iter()
            .map(listen)
            .collect::<anyhow::Result<_>>()?,
        settings,
    }))
}

impl MessageTlsServer {
    /// Starts the thread. Returns also what the data thread takes its connections from.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub(crate) fn start(opened: Opened, privileges: Privileges) -> io::Result<(Self, Attached)> {
        let (attach, attached) = attach::channel()?;
        let server = Self::start_with(opened, attach, privileges)?;
        Ok((server, attached))
    }

    fn start_with(opened: Opened, attach: Attach, privileges: Privileges) -> io::Result<Self> {
        let wake = Arc::new(Waker::new()?);
        let (sender, commands) = channel();
        let Opened {
            listeners,
            settings,
        } = opened;
        let server = Server::new(Arc::clone(&wake), commands, attach, listeners, settings)?;
        let join = privileges.start_without("message TLS", move || {
            thread::Builder::new()
                .name("message-tls".into())
                .spawn(move || server.run())
        })?;
        Ok(Self {
            commands: Some(sender),
            wake,
            join: Some(join),
        })
    }

    /// Another configuration; `None`: it has no `[message_tls]`, and so no clients.
    pub(crate) fn apply_settings(&self, settings: Option<Settings>) {
        self.send(match settings {
            Some(settings) => Command::ApplySettings(settings),
            // The listeners stay until the restart.
            None => Command::Close,
        });
    }

    /// What is counted; `None`: the thread is gone or does not answer.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let (reply, figures) = sync_channel(1);
        self.send(Command::Figures(reply));
        figures.recv_timeout(FIGURES_TIME).ok()
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Fails only if the thread has ended, which was logged.
            let _ = commands.send(command);
            self.wake.wake();
        }
    }
}

impl Drop for MessageTlsServer {
    fn drop(&mut self) {
        self.commands = None;
        self.wake.wake();
        if let Some(join) = self.join.take() {
            let _ = join.join();
        }
    }
}
