package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/telemetry"
)

func TestSample(t *testing.T) {
	t.Parallel()
	c, engine := newCollected(), memory.New(&memory.Options{Clock: func() time.Time { return time.Unix(1e9, 0) }})
	s := engine.Open()
	defer func() { _ = s.Close() }()
	sampler := telemetry.NewSampler(s, "memory", &c.opts)
	sample := func(runs, longest string) {
		t.Helper()
		if err := sampler.Sample(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(t, c.values(t), map[string]string{
			"tapestore.store.waiting.runs{engine=memory}":    runs,
			"tapestore.store.waiting.longest{engine=memory}": longest,
			"tapestore.store.epoch{engine=memory}":           "0",
		})
	}
	sample("0", "0")
	lease := spec("a")
	for _, id := range []runstore.RunID{"held", "held too"} {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &lease, Runnable: runstore.After(0)}); err != nil {
			t.Fatal(err)
		}
		lease.TTL += 10 * time.Second
	}
	sample("0", "0")
	engine.Advance(15 * time.Second)
	sample("1", "5")
	engine.Advance(15 * time.Second)
	sample("2", "20")
}

// TestTimeOfTheLastSample checks that the metrics show when the store was last read: after an error the
// other metrics keep their values.
func TestTimeOfTheLastSample(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, failing := newCollected(), false
		s := intercept.Store(memory.New(nil).Open(), func(ctx context.Context, _ string, next func(context.Context) error) error {
			if failing {
				return runstore.ErrUnavailable
			}
			return next(ctx)
		})
		defer func() { _ = s.Close() }()
		sampler := telemetry.NewSampler(s, "memory", &c.opts)
		sample := func(fails bool, want time.Time) {
			t.Helper()
			failing = fails
			if err := sampler.Sample(t.Context()); fails != (err != nil) {
				t.Fatal(err)
			}
			failing = false
			expect(t, c.values(t), map[string]string{
				"tapestore.store.sampled.timestamp{engine=memory}": fmt.Sprint(float64(want.Unix())),
				"tapestore.store.waiting.runs{engine=memory}":      "0",
			})
		}
		began := time.Now()
		sample(false, began)
		time.Sleep(10 * time.Second)
		sample(true, began)
		sample(false, began.Add(10*time.Second))
	})
}

// Without an SDK a wrapped store allocates nothing more. With one that is installed later, it is
// measured from then on (TestLateSDK).
func TestWithoutAnSDK(t *testing.T) {
	bare := memory.New(nil).Open()
	defer func() { _ = bare.Close() }()
	if _, err := bare.CreateRun(t.Context(), runstore.RunSpec{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	allocs := func(s runstore.RunStore) float64 {
		ctx := t.Context()
		return testing.AllocsPerRun(100, func() { _, _ = s.GetRun(ctx, "r") })
	}
	if got, want := allocs(telemetry.Wrap(bare, "memory", nil)), allocs(bare); got > want {
		t.Errorf("%v allocations, want %v", got, want)
	}
}

func TestUnknownOutcomesOfWrites(t *testing.T) {
	t.Parallel()
	c := newCollected()
	s := telemetry.Wrap(intercept.Store(memory.New(nil).Open(), func(context.Context, string, func(context.Context) error) error {
		return outcome.Unknown(errors.New("the reply was lost"))
	}), "fake", &c.opts)
	const name = "tapestore.store.unknown.outcomes{engine=fake,operation=commit}"
	expect(t, c.values(t), map[string]string{name: "0"})
	b := runstore.NewBatch("r", runstore.Unguarded("a test"))
	b.Append("e", nil)
	if _, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	expect(t, c.values(t), map[string]string{name: "1"})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Commit(canceled, b); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	expect(t, c.values(t), map[string]string{
		name: "2", // the caller that has left may not know what became of its write
		"tapestore.store.operation.duration{engine=fake,operation=commit,outcome=canceled}":        "1×",
		"tapestore.store.operation.duration{engine=fake,operation=commit,outcome=unknown_outcome}": "1×",
	})
}

// A repeat that finds its own grant is no second grant, and a repeated batch no second write.
func TestRepeatsCountOnce(t *testing.T) {
	t.Parallel()
	c := newCollected()
	s := telemetry.Wrap(memory.New(nil).Open(), "memory", &c.opts)
	defer func() { _ = s.Close() }()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	req := runstore.AcquireRequest{Run: "r", LeaseSpec: spec("a")}
	req.Grant = runstore.NewGrantID()
	for range 3 {
		granted, err := s.AcquireLease(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch("r", granted.Fence())
		b.ID = "batch"
		b.Append("e", []byte("1"))
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, c.values(t), map[string]string{
		"tapestore.store.operation.duration{engine=memory,operation=acquire_lease,outcome=ok}": "3×",
		"tapestore.store.grants{engine=memory,former=none}":                                    "1",
		"tapestore.store.operation.duration{engine=memory,operation=commit,outcome=ok}":        "3×",
		"tapestore.store.write.events{engine=memory,operation=commit}":                         "1×, 1",
	})
}

// The expiry that was seen last is not always that of the lease that was taken over.
func TestNoVacancyOfAnUnseenLease(t *testing.T) {
	t.Parallel()
	c, engine := newCollected(), memory.New(nil)
	s, other := telemetry.Wrap(engine.Open(), "memory", &c.opts), engine.Open()
	defer func() { _, _ = s.Close(), other.Close() }()
	lease := spec("a")
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "r", Lease: &lease}); err != nil {
		t.Fatal(err)
	}
	for _, by := range []struct {
		store runstore.RunStore
		owner runstore.Owner
	}{{other, "b"}, {s, "c"}} {
		engine.Advance(time.Minute)
		if _, err := by.store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "r", LeaseSpec: spec(by.owner)}); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, c.values(t), map[string]string{
		"tapestore.store.grants{engine=memory,former=expired}": "1",
		"tapestore.store.vacancy{engine=memory}":               "",
	})
}
