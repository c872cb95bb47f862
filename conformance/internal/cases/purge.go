package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// purgeCutShort purges a large run, because an engine may delete the contents of a run in steps
// after the purge itself.
func purgeCutShort(t harness.T, e *harness.Env) {
	events := e.Scaled(t, "events", 400, 4000)
	const perBatch, recordsPerBatch = 200, 16
	keeper := e.Create(t, "neighbour").ID
	for _, cut := range []string{"closed handle", "ended context"} {
		id := runstore.RunID(cut)
		e.Create(t, id)
		lease := e.Acquire(t, e.Store, id, "owner")
		for n := range events / perBatch {
			b := runstore.NewBatch(id, lease.Fence())
			for range perBatch {
				b.Append("test", []byte("old"))
			}
			for k := range recordsPerBatch {
				b.Put(runstore.RecordKey(fmt.Sprintf("%d/%d", n, k)), []byte("old"), runstore.Place{Index: "queue-a", At: runstore.After(0)})
			}
			kit.MustCommit(t, e.Store, b)
		}
		purge := runstore.NewBatch(id, lease.Fence())
		purge.Purge = true

		s := e.Reopen(t)
		ctx, cancel := context.WithCancel(t.Context())
		started, ended := make(chan struct{}), make(chan error)
		go func() {
			close(started)
			_, err := s.Commit(ctx, purge)
			ended <- err
		}()
		<-started
		if cut == "closed handle" {
			_ = s.Close() // other cases check its result
		} else {
			cancel()
		}
		err := <-ended
		cancel()

		other := e.Reopen(t)
		switch journal, unread := kit.Collect(runstore.Journal(t.Context(), other, id, 1)); {
		case errors.Is(unread, runstore.ErrNotFound): // the purge was applied
		case unread != nil || err == nil:
			t.Errorf("%s: the purge returned %v, and the journal then has %d events, %v", cut, err, len(journal), unread)
		default:
			kit.Equal(t, cut+": events of a run that is not purged", len(journal), events/perBatch*perBatch)
		}
		// A first purge of unknown outcome may still be in flight. Its fence keeps it from any
		// later run of this id.
		if _, err := other.Commit(t.Context(), purge); err != nil && !errors.Is(err, runstore.ErrNotFound) {
			t.Fatalf("%s: purge again: %v", cut, err)
		}
		checkPurged(t, other, id, cut+": after the purge")

		again := e.Create(t, id)
		kit.Equal(t, cut+": last seq of the run made anew", again.LastSeq, 0)
		kit.Equal(t, cut+": its journal", len(kit.MustCollect(t, "journal", runstore.Journal(t.Context(), other, id, 1))), 0)
		kit.Equal(t, cut+": its records", len(kit.MustCollect(t, "records", runstore.Records(t.Context(), other, id, ""))), 0)
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("test", []byte("new"))
		kit.Equal(t, cut+": first seq of the run made anew", kit.MustCommit(t, other, b).FirstSeq, 1)
		feed := kit.FeedOf(t, e, other, 1)
		kit.Equal(t, cut+": the feed", string(feed[0].Data), "new")
		b = runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		kit.MustCommit(t, other, b)
	}
	kit.Equal(t, "the neighbour", e.Get(t, keeper).ID, keeper)
}

// checkPurged fails the case if indexes or the feed still hold anything of a run.
func checkPurged(t harness.T, s runstore.RunStore, id runstore.RunID, when string) {
	t.Helper()
	for _, name := range kit.AllIndexes {
		for _, entry := range kit.Queue(t, s, name) {
			if entry.Run == id {
				t.Fatalf("%s index %q holds %+v", when, name, entry)
			}
		}
	}
	for _, event := range kit.MustCollect(t, "feed", kit.FeedAfter(t.Context(), s, 0, runstore.MaxPage)) {
		if event.Run == id {
			t.Fatalf("%s the feed shows event %d at position %d", when, event.Seq, event.Position)
		}
	}
}
