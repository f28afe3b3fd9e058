# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sends and receives messages through a Keiro gateway, from any host. Standard library only.

    with keiro.Sender("192.0.2.1:7602", "orders", token=TOKEN, ca="message-cert.pem") as sender:
        sender.send(b"a message")
        for outcome in sender.outcomes():
            print(outcome)

    with keiro.Receiver("192.0.2.2:7602", "orders", token=TOKEN, ca="message-cert.pem") as receiver:
        for message in receiver:
            print(message.id, message.body)

An address is HOST:PORT of the gateway's `[message_tls]`. On the gateway's own host it may be the file name
of its `message_socket`, without token and ca. docs/message-socket.md describes the protocol.

A connection is for one thread. Python 3.8 or newer.
"""

import selectors
import socket
import ssl
import struct
import time
from collections import deque, namedtuple

VERSION = 2
TOKEN_VERSION = 1
BODY_BYTES_MAX = 16 << 20
_READ_BYTES = 64 << 10
_OUTCOMES = {0: "delivered", 1: "expired", 2: "refused", 3: "unknown"}
_REASONS = {
    1: "QueueFull", 2: "DuplicateId", 3: "AppRemoved", 4: "PeerGone", 5: "Stopping", 6: "TooLong",
    7: "NoReceiver", 8: "PeerRefused", 9: "UnknownToPeer",
}
_UNKNOWN = {1: "PeerRestarted", 2: "PeerGone", 3: "Stopping"}
_REFUSALS = {
    1: "BadHello", 2: "Version", 3: "UnknownApp", 4: "NotAvailable", 5: "Busy", 6: "Forbidden",
    7: "Stopping", 8: "BadToken",
}

Message = namedtuple("Message", "id body")
Message.__doc__ = "A message. The sender chose its id."
Outcome = namedtuple("Outcome", "id name reason delay")
Outcome.__doc__ = """What became of message `id`: name is delivered, expired, refused or unknown.

reason says why it was refused or is unknown, else it is None; delay is in seconds, 0 then."""


class Error(Exception):
    """The connection cannot be used any further."""


class Refused(Error):
    """The gateway refused the connection; `reason` is for programs, the text for people."""

    def __init__(self, reason, text):
        super().__init__(f"the gateway refused the connection ({reason}): {text}")
        self.reason = reason


class Closed(Error):
    """The gateway or the network ended the connection. Outcomes that are missing will not come."""


def token_header(token):
    """The bytes with which a connection over TLS begins."""
    bytes_ = token.strip().encode()
    if not 1 <= len(bytes_) <= 255:
        raise ValueError("a token has 1 to 255 bytes")
    return b"KEIT" + struct.pack(">BB", TOKEN_VERSION, len(bytes_)) + bytes_


def hello(role, app):
    """The hello of a sender (role 1) or a receiver (role 2)."""
    name = app.encode()
    if not 1 <= len(name) <= 64:
        raise ValueError("an application's name has 1 to 64 bytes")
    return b"KEIM" + struct.pack(">BBB", VERSION, role, len(name)) + name


def message_header(id_, length):
    """What goes before a message's body."""
    if not 1 <= length <= BODY_BYTES_MAX:
        raise ValueError(f"a message has 1 to {BODY_BYTES_MAX} bytes, not {length}")
    return struct.pack(">IQ", length, id_)


def parse_ack(bytes_):
    """The outcome in the 18 bytes of an ack."""
    id_, outcome, reason, delay = struct.unpack(">QBBQ", bytes_)
    name = _OUTCOMES.get(outcome, "unknown")
    reasons = {2: _REASONS, 3: _UNKNOWN}.get(outcome)
    text = reasons.get(reason, str(reason)) if reasons else None
    return Outcome(id_, name, text, delay / 1e9)


class _Connection:
    """A socket that never waits unless it is asked to, with what was read and what is to be written."""

    def __init__(self, address, role, app, token, ca, server_name, timeout):
        self._input = bytearray()
        self._output = bytearray()
        self._ended = False
        if address.startswith("/"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(timeout)
            self._socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            host = host.strip("[]")
            plain = socket.create_connection((host, int(port)), timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = ssl.create_default_context(cafile=ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            self._socket = context.wrap_socket(plain, server_hostname=server_name or host)
            if token is None:
                raise ValueError("a connection over TLS needs a token")
            self._output += token_header(token)
        self._socket.setblocking(False)
        self._output += hello(role, app)
        try:
            self._open(time.monotonic() + timeout)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the connection. Outcomes that are missing will not come."""
        self._socket.close()

    def _open(self, until):
        magic, version, status, length = struct.unpack(">4sBBH", self._read_exactly(8, until))
        if magic != b"KEIM" or not 1 <= version <= VERSION:
            raise Error("this is not the message port of a Keiro gateway, or it has another version")
        text = bytes(self._read_exactly(length, until)).decode(errors="replace")
        if status:
            raise Refused(_REFUSALS.get(status, str(status)), text)

    def _read_exactly(self, count, until=None):
        while len(self._input) < count:
            if self._ended:
                raise Closed("the gateway closed the connection; its log says why")
            if not self._move(until):
                raise TimeoutError("the gateway does not answer")
        bytes_ = self._input[:count]
        del self._input[:count]
        return bytes_

    def _move(self, until=None):
        """Reads and writes what is possible, and waits until something is; False: the time has passed."""
        wants_read = wants_write = moved = False
        if self._output:
            try:
                moved = self._write() > 0
            except (BlockingIOError, ssl.SSLWantWriteError):
                wants_write = True
            except ssl.SSLWantReadError:
                pass
        try:
            if not self._ended:
                bytes_ = self._socket.recv(_READ_BYTES)
                self._ended = not bytes_
                self._input += bytes_
                moved = True
        except (BlockingIOError, ssl.SSLWantReadError):
            wants_read = True
        except ssl.SSLWantWriteError:
            wants_write = True
        except OSError as error:
            raise Closed(f"the connection failed: {error}") from error
        if moved:
            return True
        if not wants_read and not wants_write:
            raise Closed("the gateway closed the connection; its log says why")
        left = None if until is None else max(0.0, until - time.monotonic())
        events = wants_read * selectors.EVENT_READ | wants_write * selectors.EVENT_WRITE
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, events)
            return bool(selector.select(left))

    def _write(self):
        try:
            count = self._socket.send(self._output)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            raise Closed(f"the connection failed: {error}") from error
        del self._output[:count]
        return count


class Sender(_Connection):
    """Sends messages of one application and gets an outcome for each."""

    def __init__(self, address, app, token=None, ca=None, server_name=None, timeout=10.0):
        self._next = 1
        self._missing = set()
        self._found = deque()
        super().__init__(address, 1, app, token, ca, server_name, timeout)

    def send(self, body):
        """Hands one message over and returns its id; waits while the gateway takes none."""
        body = memoryview(body).cast("B")
        id_ = self._next
        header = message_header(id_, len(body))
        self._next += 1
        self._missing.add(id_)
        self._output += header
        self._output += body
        while self._output:
            self._move()
            self._take_acks()
        return id_

    def unfinished(self):
        """How many messages have no outcome yet."""
        return len(self._missing)

    def outcome(self, timeout=None):
        """The next outcome, in the order in which they become known; None: not within `timeout` seconds,
        or every message has its outcome."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._found:
            if not self._missing:
                return None
            if self._ended:
                raise Closed(f"the gateway closed; {len(self._missing)} messages have no outcome")
            if not self._move(until):
                return None
            self._take_acks()
        return self._found.popleft()

    def outcomes(self):
        """Outcomes until every message has one."""
        while self._found or self._missing:
            yield self.outcome()

    def _take_acks(self):
        while len(self._input) >= 18:
            outcome = parse_ack(self._read_exactly(18))
            self._missing.discard(outcome.id)
            self._found.append(outcome)


class Receiver(_Connection):
    """Receives the messages of one application. A message counts as delivered once the gateway has written it
    to this connection."""

    def __init__(self, address, app, token=None, ca=None, server_name=None, timeout=10.0):
        self._header = None
        super().__init__(address, 2, app, token, ca, server_name, timeout)

    def __iter__(self):
        while True:
            message = self.receive()
            if message is None:
                return
            yield message

    def receive(self, timeout=None):
        """The next message; None: the gateway has ended the connection. TimeoutError: none came within
        `timeout` seconds, and the next call goes on."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._header is None:
            while not self._input and not self._ended:
                if not self._move(until):
                    raise TimeoutError("no message")
            if not self._input:
                return None
            self._header = struct.unpack(">IQ", self._read_exactly(12, until))
        length, id_ = self._header
        body = bytes(self._read_exactly(length, until))
        self._header = None
        return Message(id_, body)
