package alloydb_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Connections are cut over and over while several writers append. Every write is
// acknowledged, and each is in the journal once, in its order.
func TestFailoverInMidLoad(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	o := options(t, s)
	o.IAM, o.ReadPool = true, s.ReadPool()
	store := open(t, o)
	const writers = 4
	each := effort.Choose(20, 60)
	if !effort.Full() {
		t.Log("reduced: 20 of 60 writes")
	}
	ctx := t.Context()
	var load sync.WaitGroup
	leases := make([]runstore.Lease, writers)
	progress := make(chan struct{}, 1)
	for w := range writers {
		leases[w] = begin(t, store, runstore.RunID(fmt.Sprint("run-", w)))
		load.Go(func() {
			for i := range each {
				if err := appendOne(ctx, store, leases[w], fmt.Sprint(i)); err != nil {
					t.Errorf("writer %d, event %d: %v", w, i, err)
					return
				}
				if i%5 == 0 { // so that a slow machine gets on between two cuts
					select {
					case progress <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	over := make(chan struct{})
	var cuts int
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-progress:
				s.CutConnections()
				cuts++
			}
		}
	})
	load.Wait()
	close(over)
	cutter.Wait()
	if cuts == 0 {
		t.Fatal("the load was over before anything was cut")
	}
	t.Logf("%d cuts, %d connections", cuts, s.Stats().Primary)
	for w, l := range leases {
		var got []string
		for e, err := range runstore.Journal(ctx, store, l.Run, 2) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(e.Data))
		}
		want := make([]string, each)
		for i := range want {
			want[i] = fmt.Sprint(i)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("writer %d: journal has %v, want 0 to %d once each", w, got, each-1)
		}
	}
}

// While the primary refuses connections, a write fails after RetryTimeout, as not applied or as of an
// unknown outcome. With a longer RetryTimeout it is applied once the primary is back, and once only.
func TestRetryTimeoutInALongFailover(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		timeout  time.Duration
		outlasts bool
	}{
		{"shorter than the failover", time.Second, false},
		{"longer than the failover", 10 * time.Minute, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := standIn(t)
			o := options(t, s)
			o.IAM = true
			o.Postgres = &postgres.Options{RetryTimeout: tc.timeout}
			store := open(t, o)
			lease := begin(t, store, "run")
			s.RefuseConnections("the primary is away")
			s.CutConnections()
			result := make(chan error, 1)
			before := s.Stats()
			go func() { result <- appendOne(t.Context(), store, lease, "in the failover") }()
			if tc.outlasts {
				waitFor(t, "the write is refused a connection", func() bool { return s.Stats().Refused > before.Refused })
				s.RefuseConnections("")
			}
			err := <-result
			s.RefuseConnections("")
			if applied := err == nil; applied != tc.outlasts || !applied && !errors.Is(err, runstore.ErrUnavailable) && !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("got %v, want an applied write: %t", err, tc.outlasts)
			}
			events, err := store.ReadJournal(t.Context(), "run", 2, 10)
			if err != nil || len(events) > 1 || tc.outlasts && len(events) != 1 {
				t.Errorf("got events %+v, %v", events, err)
			}
		})
	}
}

// ours are the goroutines that this module and the drivers under it may not leave
// behind. The connector's own client for monitoring leaves some; those are not.
var ours = []string{"/runstore/", "jackc/pgx", "jackc/puddle", "alloydbconn.newInstrumentedConn", "alloydb.(*RefreshAheadCache)"}

func goroutines() (n int, stacks string) {
	buffer := make([]byte, 4<<20)
	for _, g := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(g, "testing.tRunner") || strings.Contains(g, "testing.runTests") {
			continue
		}
		// After a slow write pgx leaves a reader behind for as long as its connection is open. The
		// stand-in has such connections to its server; those of the store are counted by Stats.
		if strings.Contains(g, "bgreader.(*BGReader).bgRead") {
			continue
		}
		for _, of := range ours {
			if strings.Contains(g, of) {
				n++
				stacks += g + "\n\n"
				break
			}
		}
	}
	return n, stacks
}

// This test is not parallel: it looks at the goroutines of the process.
func TestCloseLeavesNothing(t *testing.T) {
	s := standIn(t)
	var left string
	defer func() {
		if t.Failed() {
			t.Log(left)
		}
	}()
	for _, lazy := range []bool{false, true} {
		o := options(t, s)
		o.ReadPool, o.Lazy = s.ReadPool(), lazy
		store := open(t, o)
		l := begin(t, store, "run")
		if _, err := store.(runstore.Notifier).Wakeups(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.SkewClock(2 * time.Hour) // so that there is a second connector too
		s.CutConnections()
		if err := appendOne(t.Context(), store, l, "after the cut"); err != nil {
			t.Fatal(err)
		}
		if _, err := store.(runstore.StaleReader).ReadJournalStale(t.Context(), "run", 1, 10, time.Second); err != nil {
			t.Fatal(err)
		}
		s.SkewClock(0)
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		if !alloydb.ConnectorsClosed(store.(*alloydb.ReadPoolStore)) {
			t.Error("a closed store keeps a connector, which goes on refreshing its certificate")
		}
		waitFor(t, "no goroutine and no connection is left", func() bool {
			n, stacks := goroutines()
			if n > 0 {
				left = stacks
			}
			return n == 0 && s.Stats().Open == 0
		})
	}
}

// waitFor waits until something holds, far longer than a slow machine may need.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after two minutes still not: %s", what)
		}
	}
}
