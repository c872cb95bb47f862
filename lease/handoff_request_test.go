package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// A successor that gives up leaves the request of a later one as it is.
func TestRequestOfALaterSuccessorIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.grant(agent) // its holder hands nothing off
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		later := `{"owner":"agent-c","grant":"c","ttl":30000000000}`
		go func() {
			elapse(2 * time.Second) // the first successor repeats its request after 10 s
			f.putRequest(later)
		}()
		if _, err := f.keeper(nil).RequestHandoff(ctx, successorRequest()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first successor got %v, want the deadline", err)
		}
		records, err := f.ReadRecords(t.Context(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{lease.HandoffKey}})
		if err != nil || len(records) != 1 || string(records[0].Value) != later {
			t.Errorf("the requests are %+v, %v; want that of the later successor", records, err)
		}
	})
}

// A lease that is handed off is the one that the successor has requested.
func TestHandoffKeepsTheRequestedLease(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFixture(t).begin(&lease.Options{Handoff: mode}, time.Second, nil)
				req := successorRequest()
				req.Strict, req.MaxStall = true, time.Minute
				granted, err := h.keeper(nil).RequestHandoff(t.Context(), req)
				if err != nil || !granted.Lease.Strict || granted.Lease.TTL != lease.DefaultTTL {
					t.Errorf("got %+v, %v; want a strict lease of %v", granted, err, lease.DefaultTTL)
				}
				if got := h.head().Holder; got.Owner != "agent-b" || got.Reactor != "agent" || !got.Strict || got.MaxStall != time.Minute {
					t.Errorf("the holder is %+v, want the successor, strict and with its bound on stalls", got)
				}
				h.done.Wait()
				if !errors.Is(h.oldErr, lease.ErrHandedOff) {
					t.Errorf("the former holder ended with %v, want a handoff", h.oldErr)
				}
			})
		})
	}
}
