package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite" // sqlite:
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	// inFlight is the suffix of the key of the effect during which worker-1 is killed.
	inFlight = "/decision-0/wire_sweep/0"
	// pausedBefore is the tool before whose call worker-2 is stopped.
	pausedBefore = "hedge_buy"
)

// environment holds the processes of the demo and what they share.
type environment struct {
	dir   string
	opts  options
	began time.Time
	mu    sync.Mutex // for out
	out   io.Writer

	processes   []*process // in start order
	server      *process
	address     string // the server's
	conn        *grpc.ClientConn
	tape        tapepb.TapeClient
	bank        *process
	bankAddress string // the bank's address
	bankClient  *bankClient
}

func newEnvironment(dir string, opts options, out io.Writer) *environment {
	return &environment{dir: dir, opts: opts, out: out, began: time.Now()}
}

// print prints a line of a process.
func (s *environment) print(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%7.3f  %-8s  %s\n", time.Since(s.began).Seconds(), name, text)
}

// close kills all processes, the last one first.
func (s *environment) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	for i := len(s.processes) - 1; i >= 0; i-- {
		s.processes[i].kill()
	}
}

// serving matches the server's log line with its address.
var serving = regexp.MustCompile(`\bmsg=serving\b.*\bgrpc=(\S+)`)

// startServer starts the real command on a fresh file, with flags such as --fence.
func (s *environment) startServer(ctx context.Context, flags ...string) (err error) {
	s.server, err = s.start("server", func(p *process, line string) {
		if m := serving.FindStringSubmatch(line); m != nil {
			p.reports <- report{Kind: listening, Address: m[1]}
		}
	}, s.opts.tapestore, append([]string{
		"serve", "--store", "sqlite:" + s.database(), "--listen", "127.0.0.1:0", "--healthz-listen", "",
	}, flags...)...)
	if err != nil {
		return err
	}
	ready, err := s.server.await(ctx, listening)
	if err != nil {
		return err
	}
	s.address = ready.Address
	s.print("server", "serves Tape on "+ready.Address+", from a fresh SQLite file")
	s.conn, err = grpc.NewClient("passthrough:///"+ready.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	s.tape = tapepb.NewTapeClient(s.conn)
	return err
}

func (s *environment) database() string { return filepath.Join(s.dir, "tape.db") }

// startBank starts the counterparty, with its flags.
func (s *environment) startBank(ctx context.Context, flags ...string) (err error) {
	if s.bank, err = s.startRole("bank", "bank", flags...); err != nil {
		return err
	}
	open, err := s.bank.await(ctx, listening)
	s.bankAddress, s.bankClient = open.Address, newBankClient(open.Address)
	return err
}

// startWorker starts a worker of a role, with its flags.
func (s *environment) startWorker(name, role string, flags ...string) (*process, error) {
	return s.startRole(name, role, append([]string{
		"-name", name, "-server", s.address, "-bank", s.bankAddress, "-ttl", s.opts.ttl.String(),
	}, flags...)...)
}

// startRole starts this program in a role.
func (s *environment) startRole(name, role string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return s.start(name, nil, self, append([]string{role}, args...)...)
}

// play runs the script and returns the evidence. An error means that there is nothing to check.
func (s *environment) play(ctx context.Context) (*evidence, error) {
	e := &evidence{TTL: s.opts.ttl}
	bank := []string{"-hold", inFlight}
	if s.opts.ignoreKeys {
		bank = append(bank, "-forgets")
	}
	if err := errors.Join(s.startServer(ctx, "--fence", "required"), s.startBank(ctx, bank...)); err != nil {
		return nil, err
	}
	for _, act := range []func(context.Context, *evidence) error{s.kill, s.stop, s.wake, s.read} {
		if err := act(ctx, e); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// kill lets worker-1 begin the run, and kills it while the bank withholds the reply to an operation
// that it has applied.
func (s *environment) kill(ctx context.Context, e *evidence) error {
	p, err := s.startWorker("worker-1", "worker")
	if err != nil {
		return err
	}
	began, err := p.await(ctx, holding)
	if err != nil {
		return err
	}
	e.Run = began.Run
	applied, err := s.bank.await(ctx, held)
	if err != nil {
		return err
	}
	p.kill()
	s.print("", "── worker-1 is killed with SIGKILL: the money has moved, and the journal does not say so")
	found, err := s.tape.GetEffect(ctx, &tapepb.GetEffectRequest{RunId: e.Run, IdempotencyKey: applied.Key})
	if err != nil {
		return err
	}
	e.KilledKey, e.KilledEffect = applied.Key, found.GetEffect().GetStatus()
	run, err := s.run(ctx, e)
	e.Expiries = append(e.Expiries, run.GetLeaseExpiresAtMs())
	return err
}

// stop lets worker-2 recover the run, and stops it between the record of an effect and its call,
// once its heartbeats have extended its lease. Then worker-3 recovers the run and ends it.
func (s *environment) stop(ctx context.Context, e *evidence) error {
	p, err := s.startWorker("worker-2", "worker", "-recover", "-pause", pausedBefore, "-stale-writes")
	if err != nil {
		return err
	}
	if _, err := p.await(ctx, waiting); err != nil {
		return err
	}
	run, err := s.run(ctx, e)
	for first := run.GetLeaseExpiresAtMs(); err == nil && run.GetLeaseExpiresAtMs()-first <= e.TTL.Milliseconds(); run, err = s.run(ctx, e) {
		if !pace.Pause(ctx, e.TTL/20) {
			return context.Cause(ctx)
		}
	}
	if err == nil {
		err = freeze(p.cmd.Process)
	}
	if err != nil {
		return fmt.Errorf("stop worker-2: %w", err)
	}
	stopped := time.Now()
	s.print("", "── worker-2 is stopped with SIGSTOP, about to call the bank for "+pausedBefore)
	if run, err = s.run(ctx, e); err != nil {
		return err
	}
	e.Expiries = append(e.Expiries, run.GetLeaseExpiresAtMs())
	next, err := s.startWorker("worker-3", "worker", "-recover")
	if err != nil {
		return err
	}
	if _, err := next.wait(ctx); err != nil {
		return err
	}
	if e.FinisherExit = next.cmd.ProcessState.ExitCode(); e.FinisherExit != exitDone {
		return fmt.Errorf("worker-3 did not finish the run: %v%s", next.cmd.ProcessState, next.errors)
	}
	// worker-3 started after the lease had expired, perhaps half a TTL after the stop. The stop
	// must last longer than a whole TTL.
	if !pace.Pause(ctx, time.Until(stopped.Add(e.TTL+e.TTL/10))) {
		return context.Cause(ctx)
	}
	e.zombie, e.Stopped = p, time.Since(stopped)
	return nil
}

// wake resumes worker-2, and waits until it has ended by itself.
func (s *environment) wake(ctx context.Context, e *evidence) (err error) {
	if e.Before, err = s.run(ctx, e); err != nil {
		return err
	}
	s.print("", "── worker-2 is woken with SIGCONT")
	if err := errors.Join(thaw(e.zombie.cmd.Process), e.zombie.proceed()); err != nil {
		return fmt.Errorf("wake worker-2: %w", err)
	}
	said, err := e.zombie.wait(ctx)
	if err != nil {
		return fmt.Errorf("worker-2 did not stop by itself: %w", err)
	}
	for _, r := range said {
		if r.Kind == tried {
			e.Tried = append(e.Tried, r)
		}
	}
	e.ZombieExit = e.zombie.cmd.ProcessState.ExitCode()
	after, err := s.run(ctx, e)
	e.Unchanged = proto.Equal(e.Before, after)
	return err
}

// read stops the server, and reads the bank's ledger and the journal in the store's file.
func (s *environment) read(ctx context.Context, e *evidence) (err error) {
	if e.Bank, err = s.bankClient.ledger(ctx); err != nil {
		return fmt.Errorf("the bank's ledger: %w", err)
	}
	if err := s.server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if _, err := s.server.wait(ctx); err != nil {
		return err
	}
	if !s.server.cmd.ProcessState.Success() {
		return fmt.Errorf("the server did not stop gracefully: %v%s", s.server.cmd.ProcessState, s.server.errors)
	}
	store, err := runstore.Open(ctx, "sqlite:"+s.database())
	if err != nil {
		return fmt.Errorf("open the store's file: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return e.readJournal(ctx, store)
}

// run returns the current state of the run.
func (s *environment) run(ctx context.Context, e *evidence) (*tapepb.RunState, error) {
	return s.tape.GetRun(ctx, &tapepb.GetRunRequest{RunId: e.Run})
}
