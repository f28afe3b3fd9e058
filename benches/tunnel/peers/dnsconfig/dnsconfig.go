// Package dnsconfig stands in for the module of this name, which the Go module proxy does not have.
// Nebula sets the host's resolver by it if asked to; no packet goes through it. It sets nothing.
package dnsconfig

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
)

type BackendKind int

const BackendAuto BackendKind = 0

var (
	ErrConfigurationDeclined = errors.New("declined")
	ErrInterfaceRequired     = errors.New("interface required")
)

type Options struct {
	Identity      string
	InterfaceName string
	Logger        *slog.Logger
	ForceBackend  BackendKind
}

type Config struct {
	Nameservers   []netip.Addr
	SearchDomains []string
	MatchDomains  []string
}

func (Config) IsSplit() bool   { return false }
func (Config) Validate() error { return nil }

type Manager struct{}

func New(context.Context, Options) (*Manager, error) { return &Manager{}, nil }
func (*Manager) Clear() error                        { return nil }
func (*Manager) Set(Config) error                    { return nil }
func (*Manager) Close() error                        { return nil }
func ValidateIdentity(string) error                  { return nil }
