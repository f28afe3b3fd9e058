//! What a descriptor in the epoll set of the TLS thread is.

/// What is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Commands of the control thread.
    Wake,
    Listener(u64),
    /// A connection's side of the client.
    Client(u64),
    /// A connection's side of the message socket.
    Gateway(u64),
}

pub(super) const WAKE: u64 = 0;

pub(super) const fn listener(number: u64) -> u64 {
    number << 2 | 1
}

pub(super) const fn client(number: u64) -> u64 {
    number << 2 | 2
}

pub(super) const fn gateway(number: u64) -> u64 {
    number << 2 | 3
}

impl Token {
    pub(super) const fn of(token: u64) -> Self {
        let number = token >> 2;
        match token & 3 {
            0 => Self::Wake,
            1 => Self::Listener(number),
            2 => Self::Client(number),
            _ => Self::Gateway(number),
        }
    }
}
