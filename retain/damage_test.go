package retain_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// flippingTarget changes one byte of each object that it returns.
type flippingTarget struct{ retain.Target }

func (f flippingTarget) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	in, err := f.Target.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	whole, err := io.ReadAll(in)
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	whole[len(whole)/2] ^= 1
	return io.NopCloser(bytes.NewReader(whole)), nil
}

// damagedStore is a store in which some runs are damaged.
type damagedStore struct {
	runstore.RunStore
	runstore.Mover
	runs map[runstore.RunID]bool
}

func (s damagedStore) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error) {
	if s.runs[id] {
		return runstore.PlacedPage{}, &runstore.CorruptError{Run: id, Cause: errors.New("a record cannot be decoded")}
	}
	return s.Mover.ReadPlaced(ctx, id, after, limit)
}

// TestDamage checks that a pass ends soon if the target returns damaged objects, and goes through all runs if
// they are damaged in the store.
func TestDamage(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		const runs = 30
		all := map[runstore.RunID]bool{}
		for n := range runs {
			endedRun(t, s, runID(n))
			all[runID(n)] = n < runs-1
		}
		c.advance(window + day)
		o := options(t)
		dir := o.Archive
		o.Archive = flippingTarget{dir}
		report, err := retain.Pass(t.Context(), s, o)
		if !errors.Is(err, retain.ErrFailed) || report.Failed != 20 || report.Damaged != 0 || report.Complete || report.Purged != 0 {
			t.Errorf("a target that damages objects: %+v, %v", report, err)
		}
		o.Archive = dir
		report, err = retain.Pass(t.Context(), damagedStore{s, s.(runstore.Mover), all}, o)
		if !errors.Is(err, retain.ErrFailed) || report.Failed != runs-1 || report.Damaged != runs-1 || !report.Complete || report.Purged != 1 {
			t.Errorf("a store with damaged runs: %+v, %v", report, err)
		}
	})
}

// TestDailyWithADamagedRun checks that a run that is damaged for good neither repeats the passes every hour
// nor counts as a pass that failed; the log and a counter show it. With another error in the same pass it does both.
func TestDailyWithADamagedRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil).Open()
		defer func() { _ = inner.Close() }()
		endedRun(t, inner, "damaged")
		time.Sleep(window + day)
		store := damagedStore{inner, inner, map[runstore.RunID]bool{"damaged": true}}
		var log bytes.Buffer
		var also error
		r := newReplicas(t, store)
		o := options(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- retain.Daily(ctx, store, retain.DailyOptions{
				Coordinator: election.Options{Replica: "a"}, MeterProvider: r.meters, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			}, func(ctx context.Context) (retain.Summary, error) {
				r.mu.Lock()
				r.passes = append(r.passes, time.Now())
				failed := also
				r.mu.Unlock()
				report, err := retain.Pass(ctx, store, o)
				return retain.Summary{Runs: report}, errors.Join(err, failed)
			})
		}()
		if n := r.during(2*day + time.Hour); n < 2 || n > 4 {
			t.Errorf("%d passes in two days", n)
		}
		last := r.passes[len(r.passes)-1]
		if got := r.measure(t, "tapestore.retention.last_success.timestamp", ""); got != float64(last.UnixMicro())/1e6 {
			t.Errorf("the last success is %v, the last pass was at %v", got, last)
		}
		passes := float64(len(r.passes))
		if r.measure(t, "tapestore.retention.runs", "failed") != passes || r.measure(t, "tapestore.retention.passes", "failed") != 0 {
			t.Error("the counters do not count")
		}
		r.mu.Lock()
		also = errors.New("the tasks could not be listed")
		r.mu.Unlock()
		if n := r.during(3 * day); n < 20 {
			t.Errorf("%d passes in three days in which they fail", n)
		}
		cancel()
		<-done
		if n := strings.Count(log.String(), `level=ERROR msg="retention: the pass has ended, and runs are damaged"`); float64(n) != passes || !strings.Contains(log.String(), "a record cannot be decoded") {
			t.Errorf("the log has %d lines of %v passes with a damaged run: %.1000s", n, passes, log.String())
		}
	})
}
