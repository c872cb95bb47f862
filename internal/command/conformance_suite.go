package command

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/conformance/protocol/local"
	"github.com/tapestore/tapestore/internal/report"
	"github.com/tapestore/tapestore/tape"
)

// suite is a set of cases that can run on an engine.
type suite struct {
	cases   int
	execute func(ctx context.Context, h conformance.Harness, done func()) (conformance.Report, error)
}

// storeSuite returns the matching cases of the store's contract.
func storeSuite(pattern *regexp.Regexp) suite {
	s := suite{execute: func(ctx context.Context, h conformance.Harness, done func()) (conformance.Report, error) {
		return conformance.Execute(ctx, counted(h, done), pattern), nil
	}}
	for _, c := range conformance.Cases() {
		if pattern.MatchString(c.Guarantee + "/" + c.Name) {
			s.cases++
		}
	}
	return s
}

// protocolSuite returns the matching cases of the wire protocol, for this program's server in a
// fence mode.
func protocolSuite(pattern *regexp.Regexp, fence string) (suite, error) {
	mode, err := fenceMode(fence)
	s := suite{execute: func(ctx context.Context, h conformance.Harness, done func()) (conformance.Report, error) {
		return local.Execute(ctx, h, mode, secondServer, pattern, done)
	}}
	for _, c := range protocol.Cases() {
		if pattern.MatchString(c.ID()) {
			s.cases++
		}
	}
	return s, err
}

func fenceMode(name string) (tape.FenceMode, error) {
	for _, mode := range []tape.FenceMode{tape.FencePresented, tape.FenceRequired, tape.FenceConnection} {
		if mode.String() == name {
			return mode, nil
		}
	}
	return 0, fmt.Errorf("--fence is %q; it is presented, required or connection", name)
}

// takeAddress reads the address of a server from the arguments, and validates the flags of the
// protocol's suite.
func (given *suiteFlags) takeAddress(args []string, fence bool) error {
	if len(args) > 0 {
		given.address = args[0]
	}
	elsewhere := given.all || given.engine != "" || given.store != ""
	switch {
	case !given.protocol && given.address != "":
		return fmt.Errorf("unknown argument %q; an address goes with --protocol", given.address)
	case !given.protocol && (fence || given.probes != ""):
		return errors.New("--fence and --probes go with --protocol")
	case given.protocol && given.gallery:
		return errors.New("--gallery goes with no other flag")
	case given.address != "" && (elsewhere || fence):
		return errors.New("with the address of a server, --all, --engine, --store and --fence have no meaning")
	case given.probes != "" && given.address == "":
		return errors.New("--probes goes with the address of a server")
	case given.protocol && given.address == "" && !elsewhere && !given.list:
		return errors.New("--protocol needs the address of a server, or --engine, --store or --all")
	default:
		return nil
	}
}

// oneServer runs the protocol's suite on the named server.
func oneServer(cmd *cobra.Command, given suiteFlags, pattern *regexp.Regexp, p *progress) ([]report.Engine, error) {
	began := time.Now()
	target, err := protocol.ParseAddress(given.address)
	if err != nil {
		return nil, err
	}
	target.Probes = given.probes
	found, err := protocol.Execute(cmd.Context(), target, pattern, p.done)
	p.wipe()
	if err != nil {
		return nil, fmt.Errorf("the server at %s: %w", given.address, err)
	}
	return []report.Engine{{Name: found.Engine, MS: time.Since(began).Milliseconds(), Report: &found}}, nil
}
