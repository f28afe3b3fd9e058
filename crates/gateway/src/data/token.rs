//! What a descriptor in the data thread's epoll set is.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Commands of the control thread.
    Wake,
    /// A WAN socket, by its `SocketId`.
    Wan(u16),
    Listener(u64),
    /// A flow of a UDP forward.
    Forward(u64),
    /// A listener of the message socket.
    MessageListener(u64),
    /// A client of the message socket.
    Client(u64),
    TcpListener(u64),
    /// A TCP connection of a client or to a server.
    Connection(u64),
    /// A tenant's TUN device.
    Tun(u64),
    /// Where clients of split connections are accepted.
    SplitListener(u64),
}

const KIND_SHIFT: u32 = 56;
const NUMBER_MASK: u64 = (1 << KIND_SHIFT) - 1;

pub(crate) const WAKE: u64 = 0;
/// The thread's own alarm, which is no descriptor to look at.
pub(crate) const ALARM: u64 = of(9, 0);

pub(crate) const fn wan(socket: u16) -> u64 {
    of(1, socket as u64)
}

pub(crate) const fn listener(number: u64) -> u64 {
    of(2, number)
}

pub(crate) const fn forward(number: u64) -> u64 {
    of(3, number)
}

pub(crate) const fn message_listener(number: u64) -> u64 {
    of(4, number)
}

pub(crate) const fn client(number: u64) -> u64 {
    of(5, number)
}

pub(crate) const fn tcp_listener(number: u64) -> u64 {
    of(6, number)
}

pub(crate) const fn connection(number: u64) -> u64 {
    of(7, number)
}

pub(crate) const fn tun(number: u64) -> u64 {
    of(8, number)
}

pub(crate) const fn split_listener(number: u64) -> u64 {
    of(10, number)
}

/// Numbers count up from zero and never reach 2^56.
const fn of(kind: u64, number: u64) -> u64 {
    kind << KIND_SHIFT | number & NUMBER_MASK
}

impl Token {
    /// What `token` stands for; `None` if nothing of ours.
    pub(crate) fn of(token: u64) -> Option<Self> {
        let number = token & NUMBER_MASK;
        Some(match token >> KIND_SHIFT {
            0 => Self::Wake,
            1 => Self::Wan(u16::try_from(number).ok()?),
            2 => Self::Listener(number),
            3 => Self::Forward(number),
            4 => Self::MessageListener(number),
            5 => Self::Client(number),
            6 => Self::TcpListener(number),
            7 => Self::Connection(number),
            8 => Self::Tun(number),
            10 => Self::SplitListener(number),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoll_tokens_round_trip() {
        assert_eq!(Token::of(WAKE), Some(Token::Wake));
        assert_eq!(Token::of(wan(7)), Some(Token::Wan(7)));
        assert_eq!(Token::of(listener(1)), Some(Token::Listener(1)));
        assert_eq!(Token::of(forward(2)), Some(Token::Forward(2)));
        assert_eq!(
            Token::of(message_listener(3)),
            Some(Token::MessageListener(3))
        );
        assert_eq!(Token::of(client(4)), Some(Token::Client(4)));
        assert_eq!(Token::of(tcp_listener(5)), Some(Token::TcpListener(5)));
        assert_eq!(Token::of(connection(6)), Some(Token::Connection(6)));
        assert_eq!(Token::of(tun(7)), Some(Token::Tun(7)));
        assert_eq!(Token::of(split_listener(8)), Some(Token::SplitListener(8)));
        assert_eq!(Token::of(u64::MAX), None);
    }
}
