//! Why a gateway gave no data, in words, and what to try.

use std::{
    io::{self, ErrorKind},
    path::Path,
};

use keiro_control::protocol::{ErrorCode, client::ClientError};

/// What is wrong, and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) next: String,
}

impl Fault {
    pub(crate) fn new(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            next: next.into(),
        }
    }

    /// The socket cannot be connected to.
    pub(super) fn unreachable(socket: &Path, error: &io::Error) -> Self {
        let socket = socket.display();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Self::new(
                format!("no gateway is running at {socket}"),
                "`systemctl status keiro-gateway` and `journalctl -u keiro-gateway` say why; name its control socket with --socket if it is elsewhere",
            ),
            ErrorKind::PermissionDenied => Self::new(
                format!("`keiro-web` may not use {socket}"),
                "run it as a member of the group that owns the socket (`SupplementaryGroups=` of its unit), or name the gateway's `readonly_socket` with --socket: its group may look and change nothing",
            ),
            _ => Self::new(
                format!("{socket} cannot be used: {error}"),
                "the configuration's `control_socket` says where the socket is; name it with --socket",
            ),
        }
    }

    /// The gateway did not answer a request.
    pub(super) fn unanswered(error: &ClientError) -> Self {
        match error {
            ClientError::Refused(refused) => {
                let hint = refused.hint.clone().unwrap_or_default();
                let next = match refused.code {
                    ErrorCode::Forbidden => {
                        "run `keiro-web` as a member of the group that owns the socket (`SupplementaryGroups=` of its unit)".to_owned()
                    }
                    _ => hint,
                };
                Self::new(refused.message.clone(), next)
            }
            ClientError::Io(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                Self::new(
                    "the gateway does not answer in time",
                    "`journalctl -u keiro-gateway` and `top` on that machine may say why; the question is repeated",
                )
            }
            ClientError::Io(_) | ClientError::Closed => Self::new(
                "the gateway closed the connection",
                "it may be restarting: `journalctl -u keiro-gateway` says why; the question is repeated",
            ),
            ClientError::TooLong(_) | ClientError::NotUnderstood(_) => Self::new(
                format!("the gateway's answer cannot be read: {error}"),
                "install `keiro-web` and the gateway from one version",
            ),
        }
    }
}
