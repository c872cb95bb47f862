package bigtable_test

import (
	"context"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// openMeeting opens a handle that calls meet before each of its RPCs for an operation.
func openMeeting(t *testing.T, table bigtableemulator.TableName, meet func(method string)) *bigtable.Store {
	t.Helper()
	return openBare(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				meet(path.Base(method))
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				meet(path.Base(method))
				return begin(ctx, desc, cc, method, opts...)
			}))
	})
}

// busy is a holder that writes its run's next event whenever another handle is about to
// swap the head: it is faster than anybody who has to read before.
type busy struct {
	t       *testing.T
	s       *bigtable.Store
	lease   runstore.Lease
	looks   chan struct{} // gets a value when the holder had to read the run
	written atomic.Int32
	refused atomic.Pointer[error]
	over    chan struct{} // closed when it was refused
}

func newBusy(t *testing.T, table bigtableemulator.TableName) *busy {
	b := &busy{t: t, looks: make(chan struct{}, 100), over: make(chan struct{})}
	b.s = openMeeting(t, table, func(method string) {
		if method == reads {
			select {
			case b.looks <- struct{}{}:
			default:
			}
		}
	})
	// A holder on a slow machine lets the other one write too, however long that takes.
	bigtable.SetTicketTimeout(b.s, hang)
	b.lease = hold(t, b.s, "run")
	b.write()
	for len(b.looks) > 0 {
		<-b.looks
	}
	return b
}

func (b *busy) write() {
	if _, err := b.s.Commit(b.t.Context(), appending(b.lease, "busy")); err != nil {
		if b.refused.CompareAndSwap(nil, &err) {
			close(b.over)
		}
		return
	}
	b.written.Add(1)
}

// first lets the holder write, and returns when it has, or when it found that it must
// read: then it waits for the operation whose ticket is served.
func (b *busy) first() {
	if b.refused.Load() != nil {
		return
	}
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		b.write()
	}()
	select {
	case <-wrote:
	case <-b.looks:
	}
}

func TestTakeoverFromAHolderThatIsAlwaysFaster(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	holder := newBusy(t, table)
	var sent []string
	successor := openMeeting(t, table, func(method string) {
		if method == swaps {
			holder.first()
		}
		sent = append(sent, method)
	})
	sent = nil // what opening took
	lease := takeOver(t, successor, "run")
	if want := rpcs(reads, swaps, reads, swaps, clock, reads, swaps); rpcs(sent...) != want {
		t.Errorf("the takeover sent %s, want %s", rpcs(sent...), want)
	}
	<-holder.over
	isFenced(t, *holder.refused.Load(), lease)
	if got := holder.written.Load(); got != 3 {
		t.Errorf("the holder wrote %d events, want 3: one before, and one before each of two races", got)
	}
	commit(t, successor, appending(lease, "after"))
	unbroken(t, openBare(t, table), "run", 4)
}

// Whoever has no lease gets to write beside one who has, too.
func TestAppendBesideAHolderThatIsAlwaysFaster(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	holder := newBusy(t, table)
	signal := openMeeting(t, table, func(method string) {
		if method == swaps {
			holder.first()
		}
	})
	b := runstore.NewBatch("run", runstore.Unguarded("a signal"))
	b.Append("signal", nil)
	commit(t, signal, b)
	if got := holder.written.Load(); got > 8 {
		t.Errorf("the holder wrote %d events before the signal came through", got)
	}
}

// An operation whose ticket is served and that is paused stops no other writer for ever, and what it sent
// before the pause is refused when it comes.
func TestTicketThatIsNotUsed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	holder := newBusy(t, table)
	sent := 0
	successor := openMeeting(t, table, func(method string) {
		if method != swaps {
			return
		}
		if sent++; sent < 3 {
			holder.first()
			return
		}
		if sent == 3 { // its ticket is served, and it is paused until the holder does not wait any longer
			bigtable.SetTicketTimeout(holder.s, time.Millisecond)
			holder.write()
		}
	})
	lease := takeOver(t, successor, "run")
	if got := holder.written.Load(); sent < 4 || got != 4 {
		t.Errorf("the successor swapped %d times, the holder wrote %d events; want more than 3, and 4", sent, got)
	}
	commit(t, successor, appending(lease, "after"))
	unbroken(t, openBare(t, table), "run", 5)
}

// An operation whose retry timeout ends while it waits for another ticket has written nothing, and says so.
func TestRetryTimeoutEndsBeforeATicketIsServed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	holder := newBusy(t, table)
	sent := 0
	successor := openMeeting(t, table, func(method string) {
		if method != swaps {
			return
		}
		if sent++; sent < 3 {
			holder.first()
			return
		}
		bigtable.SetRetryTimeout(holder.s, 200*time.Millisecond)
		holder.write()
	})
	takeOver(t, successor, "run")
	if err := *holder.refused.Load(); runstore.KindOf(err) != runstore.ErrUnavailable || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	unbroken(t, successor, "run", 3)
}

// A ticket that arrives late, or whose reply is lost, costs other operations a read and
// some patience, and nothing else.
func TestLateTicket(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{"request held", "request refused", "reply lost"} {
		t.Run(harm, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			holder := newBusy(t, table)
			races := 0
			successor := openMeeting(t, table, func(method string) {
				if method == swaps && races < 2 {
					races++
					holder.first()
				}
			})
			var fault emulators.Fault
			switch harm {
			case "request held":
				fault = server(t).Hold(1, served(table, clock))
			case "request refused":
				fault = server(t).Refuse(1, served(table, clock))
			default:
				fault = server(t).DropReplies(1, served(table, clock))
			}
			lease := takeOver(t, successor, "run")
			commit(t, successor, appending(lease, "before it comes"))
			if fault.Count() != 1 {
				t.Errorf("%d requests for a ticket, want 1", fault.Count())
			}
			fault.Stop()
			commit(t, successor, appending(lease, "when it came"))
			other := openBare(t, table)
			last := takeOver(t, other, "run")
			commit(t, other, appending(last, "after"))
			holder.write()
			isFenced(t, *holder.refused.Load(), last)
			unbroken(t, other, "run", 6)
		})
	}
}

// Many who all want the lease get it one after another, each once.
func TestTicketsOfMany(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	holder := newBusy(t, table)
	const many = 8
	got := make(chan runstore.Token, many)
	for range many {
		s := openMeeting(t, table, func(method string) {
			if method == swaps {
				holder.first()
			}
		})
		go func() {
			lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "one of many", TTL: runstore.MaxTTL}, Preempt: "test",
			})
			if err != nil {
				t.Errorf("acquire: %v", err)
			}
			got <- lease.Token
		}()
	}
	seen := map[runstore.Token]bool{}
	for range many {
		seen[<-got] = true
	}
	if len(seen) != many {
		t.Errorf("%d tokens for %d grants", len(seen), many)
	}
	last := takeOver(t, openBare(t, table), "run")
	if last.Token != holder.lease.Token+many+1 {
		t.Errorf("token %d after %d grants from %d", last.Token, many, holder.lease.Token)
	}
}

func isFenced(t *testing.T, err error, by runstore.Lease) {
	t.Helper()
	if runstore.KindOf(err) != runstore.ErrFenced {
		t.Errorf("got %v, want ErrFenced by token %d", err, by.Token)
	}
}

// unbroken checks that a run's journal has so many events, without a gap.
func unbroken(t *testing.T, s *bigtable.Store, id runstore.RunID, n int) {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), id, 1, 100)
	if err != nil || len(events) != n {
		t.Errorf("%d events in the journal, %v; want %d", len(events), err, n)
	}
	for i, e := range events {
		if e.Seq != runstore.Seq(i+1) {
			t.Errorf("event %d has seq %d", i+1, e.Seq)
		}
	}
}
