// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package keiro sends and receives messages through a Keiro gateway, from any host. It needs the
// standard library only.
//
//	sender, err := keiro.NewSender(keiro.Options{Address: "192.0.2.1:7602", App: "orders", Token: token, CA: pem})
//	id, err := sender.Send([]byte("a message"))
//	outcome, err := sender.Outcome()
//
// An address is HOST:PORT of the gateway's [message_tls], or the file name of its message_socket on the
// gateway's own host, without Token and CA. docs/message-socket.md describes the protocol.
package keiro

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// BodyBytesMax is the length of the longest message.
const BodyBytesMax = 16 << 20

const (
	version      = 2
	tokenVersion = 1
	sends        = 1
	receives     = 2
)

var (
	outcomes = map[byte]string{0: "delivered", 1: "expired", 2: "refused", 3: "unknown"}
	reasons  = map[byte]string{1: "QueueFull", 2: "DuplicateId", 3: "AppRemoved", 4: "PeerGone",
		5: "Stopping", 6: "TooLong", 7: "NoReceiver", 8: "PeerRefused", 9: "UnknownToPeer"}
	unknown  = map[byte]string{1: "PeerRestarted", 2: "PeerGone", 3: "Stopping"}
	refusals = map[byte]string{1: "BadHello", 2: "Version", 3: "UnknownApp", 4: "NotAvailable",
		5: "Busy", 6: "Forbidden", 7: "Stopping", 8: "BadToken"}
)

// ErrClosed says that the gateway ended the connection; outcomes that are missing will not come.
var ErrClosed = errors.New("the gateway closed the connection; its log says why")

// Refused says that the gateway refused the connection.
type Refused struct {
	Reason string // for programs
	Text   string // for people
}

func (r *Refused) Error() string {
	return fmt.Sprintf("the gateway refused the connection (%s): %s", r.Reason, r.Text)
}

// Options say where to connect and what for.
type Options struct {
	Address string
	App     string
	Token   string
	// CA is the gateway's certificate, or that of the authority that signed it, in PEM.
	CA []byte
	// ServerName is the name in the certificate; "": the host in Address.
	ServerName string
	// Timeout limits connecting and the gateway's answer; 0: ten seconds.
	Timeout time.Duration
}

// Message is a received message. The sender chose its ID.
type Message struct {
	ID   uint64
	Body []byte
}

// Outcome is what became of a message: delivered, expired, refused or unknown.
type Outcome struct {
	ID     uint64
	Name   string
	Reason string        // why it was refused or is unknown, else ""
	Delay  time.Duration // 0 then
}

func tokenHeader(token string) ([]byte, error) {
	token = strings.TrimSpace(token)
	if len(token) < 1 || len(token) > 255 {
		return nil, errors.New("a token has 1 to 255 bytes")
	}
	return append([]byte{'K', 'E', 'I', 'T', tokenVersion, byte(len(token))}, token...), nil
}

func hello(role byte, app string) ([]byte, error) {
	if len(app) < 1 || len(app) > 64 {
		return nil, errors.New("an application's name has 1 to 64 bytes")
	}
	return append([]byte{'K', 'E', 'I', 'M', version, role, byte(len(app))}, app...), nil
}

func messageHeader(id uint64, length int) ([]byte, error) {
	if length < 1 || length > BodyBytesMax {
		return nil, fmt.Errorf("a message has 1 to %d bytes, not %d", BodyBytesMax, length)
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(length))
	return binary.BigEndian.AppendUint64(header, id), nil
}

func parseAck(ack []byte) Outcome {
	outcome := Outcome{ID: binary.BigEndian.Uint64(ack), Name: outcomes[ack[8]]}
	if outcome.Name == "" {
		outcome.Name = "unknown"
	}
	switch outcome.Name {
	case "refused":
		outcome.Reason = name(reasons, ack[9])
	case "unknown":
		outcome.Reason = name(unknown, ack[9])
	}
	outcome.Delay = time.Duration(binary.BigEndian.Uint64(ack[10:]))
	return outcome
}

func name(names map[byte]string, number byte) string {
	if text, known := names[number]; known {
		return text
	}
	return fmt.Sprint(number)
}

type connection struct {
	net.Conn
	input *bufio.Reader
}

func connect(options Options, role byte) (*connection, error) {
	opening, err := hello(role, options.App)
	if err != nil {
		return nil, err
	}
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	dialer := net.Dialer{Timeout: options.Timeout}
	var stream net.Conn
	if strings.HasPrefix(options.Address, "/") {
		stream, err = dialer.Dial("unix", options.Address)
	} else {
		token, wrong := tokenHeader(options.Token)
		if wrong != nil {
			return nil, wrong
		}
		opening = append(token, opening...)
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(options.CA) {
			return nil, errors.New("the CA has no certificate in PEM")
		}
		config := tls.Config{RootCAs: roots, ServerName: options.ServerName, MinVersion: tls.VersionTLS13}
		stream, err = tls.DialWithDialer(&dialer, "tcp", options.Address, &config)
	}
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: stream, input: bufio.NewReaderSize(stream, 64<<10)}
	stream.SetDeadline(time.Now().Add(options.Timeout))
	if err := c.open(opening); err != nil {
		stream.Close()
		return nil, err
	}
	stream.SetDeadline(time.Time{})
	return c, nil
}

func (c *connection) open(opening []byte) error {
	if _, err := c.Write(opening); err != nil {
		return err
	}
	answer := make([]byte, 8)
	if err := c.readFull(answer); err != nil {
		return err
	}
	if string(answer[:4]) != "KEIM" || answer[4] < 1 || answer[4] > version {
		return errors.New("this is not the message port of a Keiro gateway, or it has another version")
	}
	text := make([]byte, binary.BigEndian.Uint16(answer[6:]))
	if err := c.readFull(text); err != nil {
		return err
	}
	if answer[5] != 0 {
		return &Refused{Reason: name(refusals, answer[5]), Text: string(text)}
	}
	return nil
}

func (c *connection) readFull(to []byte) error {
	_, err := io.ReadFull(c.input, to)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrClosed
	}
	return err
}

// Sender sends messages of one application and gets an outcome for each. One goroutine may send while
// another reads outcomes.
type Sender struct {
	connection *connection
	sending    sync.Mutex
	next       uint64
	state      sync.Mutex // of all below
	changed    *sync.Cond
	missing    int
	found      []Outcome // not read yet
	err        error     // no more outcomes come
}

// NewSender connects.
func NewSender(options Options) (*Sender, error) {
	c, err := connect(options, sends)
	if err != nil {
		return nil, err
	}
	sender := &Sender{connection: c}
	sender.changed = sync.NewCond(&sender.state)
	go sender.read()
	return sender, nil
}

// Send hands one message over and returns its ID; it waits while the gateway takes none.
func (s *Sender) Send(body []byte) (uint64, error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	header, err := messageHeader(s.next+1, len(body))
	if err != nil {
		return 0, err
	}
	s.next++
	s.state.Lock()
	s.missing++
	s.state.Unlock()
	buffers := net.Buffers{header, body}
	_, err = buffers.WriteTo(s.connection)
	return s.next, err
}

func (s *Sender) read() {
	ack := make([]byte, 18)
	for {
		err := s.connection.readFull(ack)
		s.state.Lock()
		if s.err = err; err == nil {
			s.found = append(s.found, parseAck(ack))
		}
		s.changed.Broadcast()
		s.state.Unlock()
		if err != nil {
			return
		}
	}
}

// Outcome waits for the next outcome, in the order in which they become known.
func (s *Sender) Outcome() (Outcome, error) {
	s.state.Lock()
	defer s.state.Unlock()
	for len(s.found) == 0 {
		if s.err != nil {
			return Outcome{}, s.err
		}
		s.changed.Wait()
	}
	outcome := s.found[0]
	s.found = s.found[1:]
	s.missing--
	return outcome, nil
}

// Unfinished is how many messages have no outcome that was read.
func (s *Sender) Unfinished() int {
	s.state.Lock()
	defer s.state.Unlock()
	return s.missing
}

// Close ends the connection. Outcomes that are missing will not come.
func (s *Sender) Close() error {
	return s.connection.Close()
}

// Receiver receives the messages of one application. A message counts as delivered once the gateway has
// written it to this connection.
type Receiver struct {
	connection *connection
}

// NewReceiver connects.
func NewReceiver(options Options) (*Receiver, error) {
	c, err := connect(options, receives)
	if err != nil {
		return nil, err
	}
	return &Receiver{c}, nil
}

// Receive waits for the next message.
func (r *Receiver) Receive() (Message, error) {
	header := make([]byte, 12)
	if err := r.connection.readFull(header); err != nil {
		return Message{}, err
	}
	length := binary.BigEndian.Uint32(header)
	if length > BodyBytesMax {
		return Message{}, fmt.Errorf("a message of %d bytes is longer than messages are", length)
	}
	message := Message{ID: binary.BigEndian.Uint64(header[4:]), Body: make([]byte, length)}
	return message, r.connection.readFull(message.Body)
}

// Close ends the connection.
func (r *Receiver) Close() error {
	return r.connection.Close()
}
