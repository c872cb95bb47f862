package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A write that was sent before a takeover and is delivered after it is refused, and
// its sender is told of the new holder.
func TestZombieComesLate(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		if !c.fenced {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, other := openBare(t, table), openBare(t, table)
			lease := c.before(t, s)
			held := server(t).Hold(1, served(table, swaps))
			refusal := make(chan error, 1)
			go func() {
				_, err := c.do(t.Context(), s, lease)
				refusal <- err
			}()
			met(t, held, 1)
			next := takeOver(t, other, "run")
			before := shape(t, other)
			held.Stop()

			err := <-refusal
			var fenced *runstore.FencedError
			if !errors.As(err, &fenced) {
				t.Fatalf("got %v, want a FencedError", err)
			}
			if fenced.Presented != lease.Token || fenced.Current != next.Token || fenced.Holder.Token != next.Token || fenced.Holder.Owner != "thief" {
				t.Errorf("got %+v, want token %d of the thief", *fenced, next.Token)
			}
			if after := shape(t, other); after != before {
				t.Errorf("the refused write changed\n%s\nto\n%s", before, after)
			}
			commit(t, other, appending(next, "after"))
		})
	}
}

// unharmed returns what a change answers and leaves when nothing goes wrong.
func unharmed(t *testing.T, c change) (result, left string) {
	t.Helper()
	s := openBare(t, newTable(t))
	got, err := c.do(t.Context(), s, c.before(t, s))
	if err != nil {
		t.Fatalf("unharmed: %v", err)
	}
	return timeless(t, got), shape(t, s)
}

// Whether a request or its reply is lost, the caller gets the result that it would
// have got, and the write is applied once.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want, wantShape := unharmed(t, c)
			for _, method := range []string{swaps, writes, reads, clock} {
				for _, harm := range []string{"request", "reply", "reply, twice"} {
					table := newTable(t)
					s := openBare(t, table)
					lease := c.before(t, s)
					var lost emulators.Fault
					switch harm {
					case "request":
						lost = server(t).Refuse(1, served(table, method))
					case "reply":
						lost = server(t).DropReplies(1, served(table, method))
					default:
						lost = server(t).DropReplies(2, served(table, method))
					}
					result, err := c.do(t.Context(), s, lease)
					met := lost.Count()
					lost.Stop()
					if err != nil {
						t.Errorf("%s: the %s lost: %v", method, harm, err)
						continue
					}
					if method == swaps && met == 0 {
						t.Errorf("%s: no %s was lost", method, harm)
					}
					if got := timeless(t, result); got != want {
						t.Errorf("%s: the %s lost: got\n%s, want\n%s", method, harm, got, want)
					}
					if got := shape(t, s); got != wantShape {
						t.Errorf("%s: the %s lost: stored is\n%s, want\n%s", method, harm, got, wantShape)
					}
					if met == 0 { // it makes no such RPC
						break
					}
				}
			}
		})
	}
}

// A context that ends when the reply was lost leaves the outcome unknown to the caller,
// and the write applied. One that ends before the request has arrived does too: it
// may arrive.
func TestContextEndsInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, wantShape := unharmed(t, c)
			for _, harm := range []string{"the reply lost", "the request held"} {
				table := newTable(t)
				s := openBare(t, table)
				lease := c.before(t, s)
				var fault emulators.Fault
				if harm == "the reply lost" {
					fault = server(t).DropReplies(0, served(table, swaps))
				} else {
					fault = server(t).Hold(0, served(table, swaps))
				}
				ctx, cancel := context.WithCancel(t.Context())
				given := make(chan error, 1)
				go func() {
					_, err := c.do(ctx, s, lease)
					given <- err
				}()
				met(t, fault, 1)
				cancel()
				if err := <-given; !errors.Is(err, runstore.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
					t.Errorf("%s: got %v, want ErrUnknownOutcome and the context's error", harm, err)
				}
				fault.Stop()
				await(t, harm+", and the write is there", func() bool { return shape(t, s) == wantShape })
			}
		})
	}
}

// A context that ends before the write was sent leaves nothing.
func TestContextEndsBefore(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s := openBare(t, table)
			lease := c.before(t, s)
			before := shape(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := c.do(ctx, s, lease); !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want ErrUnavailable and the context's error", err)
			}
			if after := shape(t, s); after != before {
				t.Errorf("the write that was not sent changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// mail keeps the first conditional mutation that a handle sends for an operation, and
// tells the handle that it was lost.
type mail struct {
	mu    sync.Mutex
	armed bool
	kept  func() (matched bool, err error)
	then  func() // called once it is kept
}

func (m *mail) arm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = true
}

func (m *mail) disarm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = false
}

func (m *mail) through(o *bigtable.Options) {
	o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(m.intercept))
}

func (m *mail) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.armed || path.Base(method) != swaps {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	m.armed = false
	copied := proto.Clone(req.(proto.Message))
	m.kept = func() (bool, error) {
		var res bigtablepb.CheckAndMutateRowResponse
		err := invoke(context.WithoutCancel(ctx), method, copied, &res, cc)
		return res.PredicateMatched, err
	}
	if m.then != nil {
		m.then()
	}
	return status.Error(codes.Unavailable, "lost, as the handle sees it")
}

// deliver sends what was kept, and reports whether it was applied.
func (m *mail) deliver(t testing.TB, creates bool) (applied bool) {
	t.Helper()
	if m.kept == nil {
		t.Fatal("nothing was kept")
	}
	matched, err := m.kept()
	if err != nil {
		t.Fatalf("the late copy: %v", err)
	}
	return matched != creates // a creation is applied where there is no head
}

// The first copy of a write arrives after the repeat that was applied: it is not
// applied once more, whatever has come between.
func TestFirstCopyComesLate(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		for _, between := range []string{"nothing", "a takeover", "another event", "a purge and a new run"} {
			t.Run(c.name+"/"+between, func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				m := &mail{}
				s, other := openBare(t, table, m.through), openBare(t, table)
				lease := c.before(t, s)
				m.arm()
				if _, err := c.do(t.Context(), s, lease); err != nil {
					t.Fatal(err)
				}
				switch between {
				case "a takeover":
					if c.name != "purge" {
						takeOver(t, other, "run")
					}
				case "another event":
					if c.name != "purge" {
						commit(t, other, signal("run", "between"))
					}
				case "a purge and a new run":
					if c.name != "purge" {
						purge(t, other, takeOver(t, other, "run"))
					}
					holdAnew(t, other, "run")
				}
				before := shape(t, other)
				if m.deliver(t, c.name == "create" || c.name == "create with lease and writes") {
					t.Error("the first copy was applied after the second")
				}
				if after := shape(t, other); after != before {
					t.Errorf("the late copy changed\n%s\nto\n%s", before, after)
				}
			})
		}
	}
}

// Of a write that its caller gave up while it was on its way nothing is there until it
// arrives, and then all of it: its places are found, and nobody has collected them.
func TestGivenUpWriteComesLate(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, wantShape := unharmed(t, c)
			table := newTable(t)
			s, other := openBare(t, table), openBare(t, table)
			lease := c.before(t, s)
			before := shape(t, other)
			held := server(t).Hold(0, served(table, swaps))
			ctx, cancel := context.WithCancel(t.Context())
			given := make(chan error, 1)
			go func() {
				_, err := c.do(ctx, s, lease)
				given <- err
			}()
			met(t, held, 1)
			cancel()
			<-given
			if got := shape(t, other); got != before { // reads the queues, and finds entries that are not true yet
				t.Errorf("the write that is on its way changed\n%s\nto\n%s", before, got)
			}
			if c.name != "create anew" { // an orphan scan writes to a purged run
				bigtable.OrphanScan(t.Context(), other)
			}
			bigtable.EmptyGarbage(t.Context(), other)
			held.Stop()
			await(t, "the late write is there", func() bool { return shape(t, other) == wantShape })
		})
	}
}

// Two writers put a record at the very same place at the same time. The one that loses
// clears away what it wrote for that, and nothing of the winner's.
func TestLoserClearsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	winner, loser := openBare(t, table), openBare(t, table)
	hold(t, winner, "run")
	now, err := winner.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	place := runstore.Place{Index: "queue", At: runstore.At(now)}
	batch := func(value string) runstore.Batch {
		b := runstore.NewBatch("run", runstore.AtVersion("key", 0))
		b.Put("key", []byte(value), place)
		return b
	}
	held := server(t).Hold(1, served(table, swaps))
	lost := make(chan error, 1)
	go func() {
		_, err := loser.Commit(t.Context(), batch("loser"))
		lost <- err
	}()
	met(t, held, 1)
	commit(t, winner, batch("winner"))
	raw := raw(t, table)
	const entries = 3 // the run's in "runs", and both of the record
	if n := len(keys(t, raw, "i")); n != entries {
		t.Errorf("while the loser is on its way there are %d entries, want %d", n, entries)
	}
	held.Stop()
	if err := <-lost; !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("the loser got %v, want ErrConflict", err)
	}
	bigtable.EmptyGarbage(t.Context(), loser)
	if n := len(keys(t, raw, "i")); n != entries-1 {
		t.Errorf("after the loser has cleared away its own there are %d entries, want %d", n, entries-1)
	}
	found, err := loser.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Limit: 10})
	if err != nil || len(found) != 1 || string(found[0].Record.Value) != "winner" {
		t.Errorf("got %+v, %v, want the winner's entry", found, err)
	}
}

// Many writers put one record at one place again and again. It is found there at every
// moment, once, and in the end there is one entry.
func TestManyWritersOfOnePlace(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	reader := openBare(t, table)
	hold(t, reader, "run")
	now, err := reader.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) runstore.Batch {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Put("key", []byte(value), runstore.Place{Index: "queue", At: runstore.At(now)})
		return b
	}
	commit(t, reader, put("first"))
	var wg sync.WaitGroup
	for i := range 4 {
		s := open(t, table)
		wg.Go(func() {
			for n := range effort.Choose(8, 25) {
				if _, err := s.Commit(t.Context(), put(fmt.Sprint(i, " ", n))); err != nil {
					t.Errorf("writer %d: %v", i, err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for busy := true; busy; {
		select {
		case <-done:
			busy = false
		default:
		}
		found, err := reader.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Limit: 10})
		if err != nil || len(found) != 1 {
			t.Fatalf("got %d entries, %v, want 1", len(found), err)
		}
	}
	tbl := raw(t, table)
	await(t, "the entries that are not true are gone", func() bool {
		bigtable.Ahead(reader, func() {
			if _, err := reader.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10}); err != nil {
				t.Fatal(err)
			}
		})
		bigtable.EmptyGarbage(t.Context(), reader)
		return len(keys(t, tbl, "i")) == 2 // that of the run, and that of the record
	})
}
