//! Messages over the kernel's TCP or MPTCP: one connection for each application, TCP_NODELAY, a
//! length of four bytes (big endian) before every message. A length of zero is a greeting and
//! carries nothing.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use super::{MESSAGE_BYTES_MAX, MessageReceiver, MessageSender, Received, TrafficError};
use crate::lab::{Host, LabError};

/// Transport protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP as the hosts' sysctls have it.
    Tcp,
    /// Multipath TCP (RFC 8684); `ip mptcp` configures its paths.
    Mptcp,
}

/// The sending end of a connection.
#[derive(Debug)]
pub struct StreamSender {
    stream: TcpStream,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub struct StreamReceiver {
    stream: TcpStream,
    /// Kept open: MPTCP refuses further subflows to a port without a listener.
    _listener: Arc<Socket>,
    /// The part that is being read: the length if `body` is `None`.
    length: [u8; 4],
    body: Option<Vec<u8>>,
    filled: usize,
}

/// Time to establish a connection; ours: three tries of TCP's initial second, and paths of a second.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Options of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    pub protocol: Protocol,
    /// The congestion control, as in `sysctl net.ipv4.tcp_available_congestion_control`; `None` is the
    /// sending host's default, which it inherits from the machine.
    pub congestion: Option<String>,
    /// Source address.
    pub local: IpAddr,
    /// Destination address. Port 0 lets the kernel choose one.
    pub remote: SocketAddr,
    pub count: usize,
}

/// Establishes connections from host `from` to host `to`, and passes a greeting over each.
///
/// # Errors
/// [`TrafficError::Connect`], or a host cannot be entered.
pub fn connect(
    from: &Host,
    to: &Host,
    connections: &Connections,
) -> Result<Vec<(StreamSender, StreamReceiver)>, TrafficError> {
    let remote = connections.remote;
    let failed = |source| TrafficError::Connect { to: remote, source };
    let listener = enter(to, || listen(connections))?;
    let listener = Arc::new(listener.map_err(failed)?);
    let port = listener.local_addr().map_err(failed)?.as_socket();
    let remote = SocketAddr::new(remote.ip(), port.map_or(remote.port(), |port| port.port()));
    let opened = enter(from, || {
        let all = (0..connections.count).map(|_| open(connections, remote));
        all.collect::<io::Result<Vec<_>>>()
    })?;
    let mut pairs = Vec::new();
    for mut stream in opened.map_err(failed)? {
        // Connections may be accepted in another order, but all are alike.
        stream.write_all(&0_u32.to_be_bytes()).map_err(failed)?;
        let (accepted, _) = listener.accept().map_err(failed)?;
        let mut accepted = TcpStream::from(accepted);
        let greeted = accepted
            .set_read_timeout(Some(CONNECT_WAIT))
            .and_then(|()| accepted.read_exact(&mut [0; 4]));
        greeted.map_err(failed)?;
        let receiver = StreamReceiver::new(accepted, Arc::clone(&listener));
        pairs.push((StreamSender { stream }, receiver));
    }
    Ok(pairs)
}

fn enter<T: Send>(host: &Host, f: impl FnOnce() -> T + Send) -> Result<T, TrafficError> {
    host.run(f).map_err(|error| LabError::from(error).into())
}

fn socket(protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
    let protocol = match protocol {
        Protocol::Tcp => socket2::Protocol::TCP,
        Protocol::Mptcp => socket2::Protocol::MPTCP,
    };
    Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))
}

fn listen(connections: &Connections) -> io::Result<Socket> {
    let address = connections.remote;
    let socket = socket(connections.protocol, address)?;
    // On all addresses: an MPTCP subflow to another address than the first would be refused.
    let any = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::new(any, address.port()).into())?;
    socket.listen(i32::try_from(connections.count).unwrap_or(i32::MAX))?;
    socket.set_read_timeout(Some(CONNECT_WAIT))?;
    Ok(socket)
}

pub(super) fn open(connections: &Connections, remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(connections.protocol, remote)?;
    if let Some(congestion) = &connections.congestion {
        let set = socket.set_tcp_congestion(congestion.as_bytes());
        set.map_err(|error| {
            let message = format!("congestion control `{congestion}`: {error}");
            io::Error::new(error.kind(), message)
        })?;
    }
    socket.bind(&SocketAddr::new(connections.local, 0).into())?;
    socket.connect_timeout(&remote.into(), CONNECT_WAIT)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl StreamSender {
    /// The connection, for queries to the kernel.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl MessageSender for StreamSender {
    fn send(&mut self, body: Vec<u8>) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "message too long");
        let length = u32::try_from(body.len()).map_err(too_long)?.to_be_bytes();
        // In one call, so that the length does not travel in a packet of its own.
        let mut parts = [IoSlice::new(&length), IoSlice::new(&body)];
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}

impl StreamReceiver {
    fn new(stream: TcpStream, listener: Arc<Socket>) -> Self {
        Self {
            stream,
            _listener: listener,
            length: [0; 4],
            body: None,
            filled: 0,
        }
    }

    /// Reads available data into the current part; returns whether the part is full. `None` at the end.
    fn fill(&mut self) -> io::Result<Option<bool>> {
        let part = self.body.as_deref_mut().unwrap_or(&mut self.length);
        let read = self.stream.read(&mut part[self.filled..])?;
        if read == 0 {
            return Ok(None);
        }
        self.filled += read;
        Ok(Some(self.filled == part.len()))
    }

    /// Completes a full part: a message, or the length of the next one.
    fn take_part(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.filled = 0;
        if let Some(body) = self.body.take() {
            return Ok(Some(body));
        }
        let length = u32::from_be_bytes(self.length) as usize;
        if length > MESSAGE_BYTES_MAX {
            let message = format!("a message of {length} bytes; the bound is {MESSAGE_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.body = (length > 0).then(|| vec![0; length]);
        Ok(None)
    }
}

impl MessageReceiver for StreamReceiver {
    fn receive(&mut self, timeout: Duration) -> io::Result<Received> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::TimedOut);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.fill() {
                Ok(Some(true)) => {
                    if let Some(body) = self.take_part()? {
                        return Ok(Received::Message(body));
                    }
                }
                Ok(Some(false)) => {}
                Ok(None) if self.filled == 0 && self.body.is_none() => return Ok(Received::Ended),
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        return Ok(Received::TimedOut);
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (StreamSender, StreamReceiver) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let receiver = StreamReceiver::new(accepted, Arc::new(listener.into()));
        (StreamSender { stream }, receiver)
    }

    const WAIT: Duration = Duration::from_secs(10);

    #[test]
    fn messages_arrive_whole_and_in_order_then_the_end() {
        let (mut sender, mut receiver) = pair();
        for length in [1, 100, 30_000] {
            sender.send(vec![7; length]).unwrap();
        }
        sender.finish().unwrap();
        for length in [1, 100, 30_000] {
            let received = receiver.receive(WAIT).unwrap();
            assert_eq!(received, Received::Message(vec![7; length]));
        }
        assert_eq!(receiver.receive(WAIT).unwrap(), Received::Ended);
    }

    #[test]
    fn message_in_pieces_survives_timeouts() {
        let (mut sender, mut receiver) = pair();
        let frame = [0, 0, 0, 3, 1, 2, 3];
        for byte in &frame[..6] {
            sender.stream.write_all(&[*byte]).unwrap();
            let received = receiver.receive(Duration::from_millis(5)).unwrap();
            assert_eq!(received, Received::TimedOut);
        }
        sender.stream.write_all(&frame[6..]).unwrap();
        assert_eq!(
            receiver.receive(WAIT).unwrap(),
            Received::Message(vec![1, 2, 3])
        );
    }

    #[test]
    fn too_long_and_broken_off_messages_are_errors() {
        let (mut sender, mut receiver) = pair();
        sender.stream.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert_eq!(
            receiver.receive(WAIT).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        let (mut sender, mut receiver) = pair();
        sender.stream.write_all(&[0, 0, 0, 9, 1]).unwrap();
        sender.finish().unwrap();
        assert_eq!(
            receiver.receive(WAIT).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
