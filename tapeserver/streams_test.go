package tapeserver_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// counted is a store that counts the reads of journals.
type counted struct {
	quiet
	journals *atomic.Int64
}

func (s counted) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	s.journals.Add(1)
	return s.quiet.ReadJournal(ctx, id, from, limit)
}

func TestStreamsOfOneRunShareOneReadPerChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a bubble of fake time: nothing but the hint of the write wakes the streams
		store := counted{quiet{memory.New(nil).Open()}, new(atomic.Int64)}
		c, stop := start(t, store, nil)
		id := begin(t, c, "i").GetRunId()
		const streams = 100
		received := make(chan int64, streams)
		for range streams {
			stream, err := c.SubscribeRun(t.Context(), &tapepb.SubscribeRunRequest{RunId: id, FromSeq: 2})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for {
					e, err := stream.Recv()
					if err != nil {
						return
					}
					received <- e.GetSeq()
				}
			}()
		}
		for seq := int64(2); seq < 7; seq++ {
			time.Sleep(20 * time.Millisecond) // less than the interval of polls in all
			synctest.Wait()
			before, began := store.journals.Load(), time.Now()
			if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: seq}); err != nil {
				t.Fatal(err)
			}
			for range streams {
				if got := <-received; got != seq {
					t.Fatalf("a stream received seq %d, want %d", got, seq)
				}
			}
			if reads, took := store.journals.Load()-before, time.Since(began); reads != 1 || took != 0 {
				t.Errorf("%d streams of a run cost %d reads and %v for a change, want 1 and no wait", streams, reads, took)
			}
		}
		if err := stop(); err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}
