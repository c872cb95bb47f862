package spanner_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
)

// Each RPC of every write, aborted once: the write is made once, and answered as if
// nothing had happened.
func TestEachRPCAborted(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, newest)
			s := open(t, p)
			want, wantShape := unharmed(t, s, c, named(0))
			all := []names{named(0)}
			for nth := 1; ; nth++ {
				n := named(nth)
				lease := c.before(t, s, n)
				seen := 0 // the gate's lock guards it
				aborted := p.server.Abort(1, func(call spanneremulator.Call) bool {
					if p.served("")(call) {
						seen++
					}
					return seen == nth
				})
				result, err := c.do(t.Context(), s, n, lease)
				aborted.Stop()
				if err != nil {
					t.Fatalf("RPC %d aborted: %v", nth, err)
				}
				if got := n.unnamed(timeless(t, result)); got != want {
					t.Errorf("RPC %d aborted: got\n%s, want\n%s", nth, got, want)
				}
				if got := shape(t, s, n); got != wantShape {
					t.Errorf("RPC %d aborted: stored is\n%s, want\n%s", nth, got, wantShape)
				}
				all = append(all, n)
				if aborted.Count() == 0 { // it makes fewer
					if nth <= 2 {
						t.Errorf("only %d RPCs were aborted, want at least the read and the commit", nth-1)
					}
					break
				}
			}
			alike(t, s, all...)
		})
	}
}

// Many writers share a handle, and with it one session; three of ten of their RPCs are
// aborted. Every write that was acknowledged is there, once.
func TestAbortedAtRandom(t *testing.T) {
	t.Parallel()
	const writers, each, runs = 16, 2, 4
	p := newDatabase(t, fair)
	s := open(t, p)
	for run := range runs {
		hold(t, s, runstore.RunID(fmt.Sprint("run ", run)))
	}
	before := s.Attempts()
	aborted := p.server.AbortAtRandom(0.3, 1, p.served(""))
	defer aborted.Stop()
	var mu sync.Mutex
	acknowledged := map[string]runstore.Seq{}
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for i := range each {
				id, payload := runstore.RunID(fmt.Sprint("run ", writer%runs)), fmt.Sprintf("%d of %d", i, writer)
				done, err := s.Commit(t.Context(), signal(id, payload))
				if errors.Is(err, runstore.ErrUnavailable) { // surely not there
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", payload, err)
					continue
				}
				mu.Lock()
				acknowledged[payload] = done.FirstSeq
				mu.Unlock()
			}
		})
	}
	all.Wait()
	aborted.Stop()
	t.Logf("%d of %d writes were acknowledged; %d transactions were made again, %d RPCs were aborted by the test",
		len(acknowledged), writers*each, s.Attempts()-before-writers*each, aborted.Count())
	if aborted.Count() == 0 || len(acknowledged) == 0 {
		t.Error("nothing was aborted, or nothing written")
	}
	found := map[string]runstore.Seq{}
	for run := range runs {
		events, err := s.ReadJournal(t.Context(), runstore.RunID(fmt.Sprint("run ", run)), 1, runstore.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			if e.Seq != runstore.Seq(i+1) || found[string(e.Data)] != 0 {
				t.Errorf("event %d of run %d has seq %d: %s", i, run, e.Seq, e.Data)
			}
			found[string(e.Data)] = e.Seq
		}
	}
	if len(found) != len(acknowledged) {
		t.Errorf("found %d events, of %d that were acknowledged", len(found), len(acknowledged))
	}
	for payload, seq := range acknowledged {
		if found[payload] != seq {
			t.Errorf("%s: acknowledged at %d, found at %d", payload, seq, found[payload])
		}
	}
}
