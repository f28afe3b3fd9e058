//! Why a socket of the gateway is of no use: what is there, and what to try.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::fs::FileTypeExt,
    path::Path,
};

use crate::failure::Failure;

/// A socket of the gateway, as the user named it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Socket<'a> {
    /// Where it is asked.
    Control(&'a Path),
    /// Where it takes and gives messages.
    Message(&'a Path),
    /// The same over TCP.
    MessageTcp(SocketAddr),
}

impl Socket<'_> {
    /// It could not be connected to.
    pub(super) fn unreachable(self, error: io::Error) -> Failure {
        if error.kind() == ErrorKind::PermissionDenied {
            let hint = "as root, or as a member of the group that owns the socket (`socket_group` \
                        in the configuration)";
            return Failure::new(format!("you may not use {self}"))
                .because(error)
                .hint(hint);
        }
        if let Some(other) = self.instead() {
            return Failure::new(format!("{self} is {other}, not a socket")).hint(self.hint());
        }
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                self.no_gateway().because(self.in_words(&error))
            }
            _ => Failure::new(format!("cannot connect to {self}"))
                .because(error)
                .hint(self.hint()),
        }
    }

    /// A gateway that starts would be there: nothing is now, or a socket without a listener.
    pub(super) fn may_come(self, error: &io::Error) -> bool {
        let is_away = matches!(
            error.kind(),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused
        );
        is_away && self.instead().is_none()
    }

    /// The listener does not answer as a gateway does.
    pub(super) fn not_understood(self, why: impl fmt::Display) -> Failure {
        let what = self.what();
        Failure::new(format!("{self} does not answer as a gateway's {what} does"))
            .because(why)
            .hint(self.hint())
    }

    /// The listener closed the connection without an answer.
    pub(super) fn closed(self, error: impl fmt::Display) -> Failure {
        let question = format!("is {self} the gateway's {}? {}", self.what(), self.hint());
        Failure::new(error.to_string()).hint(question)
    }

    fn what(self) -> &'static str {
        match self {
            Self::Control(_) => "control socket",
            Self::Message(_) | Self::MessageTcp(_) => "message socket",
        }
    }

    /// What is there that is no socket.
    fn instead(self) -> Option<&'static str> {
        let (Self::Control(path) | Self::Message(path)) = self else {
            return None;
        };
        let kind = fs::metadata(path).ok()?.file_type();
        match () {
            () if kind.is_socket() => None,
            () if kind.is_dir() => Some("a directory"),
            () if kind.is_file() => Some("a file"),
            () => Some("something else"),
        }
    }

    fn in_words(self, error: &io::Error) -> String {
        match (self, error.kind()) {
            (Self::Control(_) | Self::Message(_), ErrorKind::ConnectionRefused) => {
                "the socket exists, but no gateway listens on it".to_owned()
            }
            _ => error.to_string(),
        }
    }

    fn no_gateway(self) -> Failure {
        match self {
            Self::Control(_) => Failure::new(format!("no gateway is running at {self}"))
                .hint("start it with `systemctl start keiro-gateway` or `keiro gateway --config FILE`")
                .hint("name its control socket with --socket if it is elsewhere"),
            Self::Message(_) | Self::MessageTcp(_) => {
                Failure::new(format!("no gateway takes messages at {self}"))
                    .hint("is one running? `keiro status`")
                    .hint(self.hint())
            }
        }
    }

    /// Where the right one is said.
    fn hint(self) -> &'static str {
        match self {
            Self::Control(_) => {
                "the configuration's `control_socket` says where it is; name it with --socket"
            }
            Self::Message(_) | Self::MessageTcp(_) => {
                "the configuration's `message_socket` or `message_tcp` says where; name it with \
                 --socket or --tcp"
            }
        }
    }
}

impl fmt::Display for Socket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(path) | Self::Message(path) => path.display().fmt(f),
            Self::MessageTcp(address) => address.fmt(f),
        }
    }
}
