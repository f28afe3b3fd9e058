//! Arguments of the commands that send and receive messages.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use clap::{Args, ValueHint};
use keiro_control::units::Text;

use super::count;
use crate::names;

/// Where applications hand messages over.
#[derive(Args, Debug)]
pub(crate) struct MessageSocket {
    /// The gateway's message socket
    #[arg(long, value_name = "PATH", default_value = "/run/keiro/message.sock", value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
    /// Use the message socket over TCP at this address instead
    #[arg(long, value_name = "ADDRESS", conflicts_with = "socket")]
    pub(crate) tcp: Option<std::net::SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct Send {
    /// The application
    #[arg(add = names::apps())]
    pub(crate) app: String,
    #[command(flatten)]
    pub(crate) socket: MessageSocket,
    /// The message; standard input unless given
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Make every line a message of its own
    #[arg(long)]
    pub(crate) lines: bool,
    /// Send the message this often
    #[arg(long, value_name = "N", default_value = "1", value_parser = count, conflicts_with = "lines")]
    pub(crate) count: NonZeroU64,
    /// Time from one message to the next, for example 100ms
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(crate) interval: Text<Duration>,
    /// Print one line of JSON for every message that is through
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Receive {
    /// The application
    #[arg(add = names::apps())]
    pub(crate) app: String,
    #[command(flatten)]
    pub(crate) socket: MessageSocket,
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) count: Option<NonZeroU64>,
    /// Write every message to a file of its own in this directory: 1, 2, 3, …
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Print one line of JSON about every message instead of the message
    #[arg(long)]
    pub(crate) json: bool,
}
