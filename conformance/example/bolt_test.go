package boltstore_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"example.com/boltstore"
	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Harness{New: func(t conformance.T) conformance.Instance {
		var moved atomic.Int64 // how far the case has moved the clock
		db, err := boltstore.OpenFile(filepath.Join(t.TempDir(), "runs.db"), func() time.Time { return time.Now().Add(time.Duration(moved.Load())) })
		if err != nil {
			t.Fatalf("open the file: %v", err)
		}
		t.Cleanup(func() { _ = db.Close() }) // the case is over
		return conformance.Instance{
			Open:         func(context.Context) (runstore.RunStore, error) { return db.Handle(), nil },
			AdvanceClock: func(d time.Duration) { moved.Add(int64(d)) },
		}
	}})
}
