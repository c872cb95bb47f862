package cases

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

func cancelledReads(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	pick := kit.Seeded(t)(0)
	ended := 0
	for i := 0; i < 4000 && ended < 300; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(pick.IntN(60))*time.Microsecond)
		var err error
		switch i % 3 {
		case 0:
			_, err = e.Store.GetRun(ctx, "run")
		case 1:
			_, err = e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{Limit: 10})
		case 2:
			_, err = e.Store.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10})
		}
		cancel()
		if err != nil {
			ended++
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, runstore.ErrUnavailable) {
				t.Fatalf("read %d, ended early: got %v, want ErrUnavailable that matches the context's error", i, err)
			}
		}
	}
	if ended == 0 {
		t.Errorf("no read was ended early: nothing is proved")
	}
	for i := range 50 {
		if _, err := e.Store.GetRun(t.Context(), "run"); err != nil {
			t.Fatalf("read %d after %d that were ended: %v", i, ended, err)
		}
	}
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Append("test", nil)
	if _, err := e.Store.Commit(t.Context(), b); err != nil {
		t.Errorf("commit after %d ended reads: %v", ended, err)
	}
}
