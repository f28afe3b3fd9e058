//! What errors of a connection to a server mean.

use std::{io, net::TcpStream};

use keiro_core::ResetReason;

/// Whether the server has accepted, which the kernel knows before epoll reports it.
pub(super) fn is_connected(socket: &TcpStream) -> bool {
    socket.peer_addr().is_ok()
}

/// Whether `error` of a connection that was begun says that the server had accepted it, and has reset it
/// before we looked.
pub(super) fn is_reset_of_accepted(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

pub(super) fn reason_of(error: &io::Error) -> ResetReason {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ResetReason::Refused,
        // It had accepted before we looked.
        io::ErrorKind::ConnectionReset => ResetReason::Application,
        _ => ResetReason::Unreachable,
    }
}
