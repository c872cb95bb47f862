package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// series returns the collected series as NAME{LABELS}: a sum with its value, a histogram with its
// count and sum.
func series(t *testing.T, reader sdkmetric.Reader) map[string]string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			name := func(labels attribute.Set) string {
				return m.Name + "{" + labels.Encoded(attribute.DefaultEncoder()) + "}"
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[name(p.Attributes)] = fmt.Sprint(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[name(p.Attributes)] = fmt.Sprintf("%d× %v", p.Count, time.Duration(p.Sum*1e9).Round(time.Millisecond))
				}
			default:
				t.Errorf("metric %s has the data %T", m.Name, data)
			}
		}
	}
	return got
}

func wantSeries(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q; all are %v", name, got[name], value, got)
		}
	}
}

func metered() (*lease.Options, sdkmetric.Reader) {
	reader := sdkmetric.NewManualReader()
	return &lease.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}, reader
}

func TestMetricsOfALeaseThatIsHeldToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		opts, reader := metered()
		f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			if n == 2 || n == 3 {
				return runstore.Renewed{}, unavailable()
			}
			return next()
		}
		failure := errors.New("the work failed")
		err := f.keeper(opts).Do(t.Context(), request(), func(context.Context, *lease.Held) error {
			wantSeries(t, series(t, reader), map[string]string{"tapestore.lease.held{reactor=agent}": "1"})
			elapse(95 * time.Second)
			return failure
		})
		if !errors.Is(err, failure) {
			t.Fatal(err)
		}
		wantSeries(t, series(t, reader), map[string]string{
			"tapestore.lease.held{reactor=agent}":                       "0",
			"tapestore.lease.renewal.failures{reactor=agent}":           "2",
			"tapestore.lease.hold.duration{end=returned,reactor=agent}": "1× 1m35s",
		})
	})
}

func TestMetricsOfLostLeases(t *testing.T) {
	for name, c := range map[string]struct {
		answer error
		end    string
	}{
		"the store is away":   {unavailable(), "expired"},
		"another holder":      {&runstore.OpError{Op: "renew lease", Run: run, Err: &runstore.FencedError{Presented: 1, Current: 2}}, "fenced"},
		"no progress":         {&runstore.OpError{Op: "renew lease", Run: run, Err: &runstore.NoProgressError{}}, "no_progress"},
		"the run was removed": {&runstore.OpError{Op: "renew lease", Run: run, Err: runstore.ErrNotFound}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				opts, reader := metered()
				f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					return runstore.Renewed{}, c.answer
				}
				var at time.Time
				began := time.Now()
				if err := f.keeper(opts).Do(t.Context(), request(), untilCancelled(&at)); !errors.Is(err, lease.ErrLost) {
					t.Fatal(err)
				}
				wantSeries(t, series(t, reader), map[string]string{
					"tapestore.lease.held{reactor=agent}":                            "0",
					"tapestore.lease.hold.duration{end=" + c.end + ",reactor=agent}": fmt.Sprintf("1× %v", at.Sub(began).Round(time.Millisecond)),
				})
			})
		})
	}
}

func TestMetricsOfAHandoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		opts, reader := metered()
		opts.Handoff = lease.Gap
		h := f.begin(opts, 3*time.Second, nil)
		h.succeed(t.Context(), nil)
		var handed *lease.HandedOffError
		if !errors.As(h.oldErr, &handed) {
			t.Fatalf("got %v, want a handoff", h.oldErr)
		}
		got := series(t, reader)
		wantSeries(t, got, map[string]string{
			"tapestore.lease.handoff.duration{mode=gap,reactor=agent}": fmt.Sprintf("1× %v", handed.Gap.Round(time.Millisecond)),
		})
		if v := got["tapestore.lease.hold.duration{end=handed_off,reactor=agent}"]; v[:len("1×")] != "1×" {
			t.Errorf("hold.duration is %q, want one lease that was handed off: %v", v, got)
		}
	})
}
