package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// stage is where the story is played: the processes and what they share.
type stage struct {
	dir  string
	opts options
	out  *narrator
	cast *cast

	server  *process
	address string // the server's
	conn    *grpc.ClientConn
	tape    tapepb.TapeClient

	bank    *process
	counter string // the bank's address
	teller  *teller
}

func newStage(dir string, opts options, out *narrator) (*stage, error) {
	c, err := newCast(out)
	if err != nil {
		return nil, err
	}
	return &stage{dir: dir, opts: opts, out: out, cast: c}, nil
}

// close ends all that is on the stage.
func (s *stage) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.cast.close()
}

func (s *stage) database() string { return filepath.Join(s.dir, "tape.db") }

// serving is the line of the server's log that tells where it listens.
var serving = regexp.MustCompile(`\bmsg=serving\b.*\bgrpc=(\S+)`)

// startServer starts the real command on a fresh file, with flags such as --fence.
func (s *stage) startServer(ctx context.Context, flags ...string) error {
	hear := func(line string) {
		if m := serving.FindStringSubmatch(line); m != nil {
			_ = send(s.cast.pipe, report{From: "server", Kind: listening, Address: m[1]})
		}
	}
	p, err := s.cast.start("server", hear, s.opts.tapestore, append([]string{
		"serve", "--store", "sqlite:" + s.database(), "--listen", "127.0.0.1:0", "--healthz-listen", "",
	}, flags...)...)
	if err != nil {
		return err
	}
	ready, err := p.await(ctx, listening)
	if err != nil {
		return err
	}
	s.server, s.address = p, ready.Address
	if s.conn, err = dial(ready.Address); err != nil {
		return err
	}
	s.tape = tapepb.NewTapeClient(s.conn)
	s.out.say(p.name, "serves Tape on "+ready.Address+", from a fresh SQLite file")
	return nil
}

// startBank starts the counterparty, which will hold its first reply to the key with
// that ending.
func (s *stage) startBank(ctx context.Context, hold string) error {
	p, err := s.startRole("bank", "bank", "-hold", hold)
	if err != nil {
		return err
	}
	open, err := p.await(ctx, listening)
	if err != nil {
		return err
	}
	s.bank, s.counter, s.teller = p, open.Address, newTeller(open.Address)
	s.out.say(p.name, "is open on "+open.Address)
	return nil
}

// startWorker starts a driver.
func (s *stage) startWorker(name string, args ...string) (*process, error) {
	return s.startRole(name, "worker", append([]string{
		"-name", name, "-server", s.address, "-bank", s.counter, "-ttl", s.opts.ttl.String(),
	}, args...)...)
}

// startRole starts this program in another role.
func (s *stage) startRole(name, role string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return s.cast.start(name, nil, self, append([]string{role}, args...)...)
}

// stopServer lets the server finish and close its store.
func (s *stage) stopServer(ctx context.Context) error {
	if err := s.server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if _, err := s.server.wait(ctx); err != nil {
		return err
	}
	if !s.server.cmd.ProcessState.Success() {
		return fmt.Errorf("the server did not stop gracefully: %s%s", s.server.status(), s.server.errors)
	}
	s.out.say(s.server.name, "has drained and closed its store")
	return nil
}
