package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/runstore"
)

// sampledRuns is 100: the number of runnable runs that one sample reads, with their heads.
const sampledRuns = 100

// Sampler measures what no single operation shows: the runs that wait for a driver, and the epoch.
type Sampler struct {
	store   runstore.RunStore
	epochs  runstore.EpochManager // nil if the store has none
	waiting metric.Int64Gauge
	oldest  metric.Float64Gauge
	epoch   metric.Int64Gauge
	sampled metric.Float64Gauge
	labels  metric.MeasurementOption
}

// NewSampler returns a sampler of a store; engine is the label of its metrics. Of the options only
// MeterProvider counts.
func NewSampler(store runstore.RunStore, engine string, opts *Options) *Sampler {
	provider := otel.GetMeterProvider()
	if opts != nil && opts.MeterProvider != nil {
		provider = opts.MeterProvider
	}
	s := &Sampler{store: store, labels: metric.WithAttributes(attribute.String("engine", engine))}
	s.epochs, _ = runstore.As[runstore.EpochManager](store)
	meter := provider.Meter(Scope)
	var errs [4]error
	s.waiting, errs[0] = meter.Int64Gauge("tapestore.store.waiting.runs", metric.WithUnit("{run}"),
		metric.WithDescription("Runs that want a driver and that nobody holds: at most 100 are counted."))
	s.oldest, errs[1] = meter.Float64Gauge("tapestore.store.waiting.longest", metric.WithUnit("s"),
		metric.WithDescription("The longest time for which one of these runs has had no holder, on the store clock; 0 if there is none."))
	s.epoch, errs[2] = meter.Int64Gauge("tapestore.store.epoch",
		metric.WithDescription("The epoch of the store. A raise ends every grant."))
	s.sampled, errs[3] = meter.Float64Gauge("tapestore.store.sampled.timestamp", metric.WithUnit("s"),
		metric.WithDescription("When this process last read the waiting runs and the epoch, as Unix time on its own clock."))
	for _, err := range errs {
		if err != nil {
			otel.Handle(err)
		}
	}
	return s
}

// Sample reads the store and records the metrics: a page of runstore.IndexRunnable, the store clock,
// and the epochs of a store that has them. It does nothing while no metrics are collected. After an
// error the metrics keep their last values, and tapestore.store.sampled.timestamp shows their age.
func (s *Sampler) Sample(ctx context.Context) error {
	if !s.waiting.Enabled(ctx) {
		return nil
	}
	entries, err := s.store.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: sampledRuns})
	if err != nil {
		return err
	}
	now, err := s.store.Now(ctx)
	if err != nil {
		return err
	}
	longest := time.Duration(0)
	for i := range entries {
		longest = max(longest, now.Sub(entries[i].Head.WaitingSince()))
	}
	s.waiting.Record(ctx, int64(len(entries)), s.labels)
	s.oldest.Record(ctx, longest.Seconds(), s.labels)
	if s.epochs == nil {
		s.recordTime(ctx)
		return nil
	}
	changes, err := s.epochs.Epochs(ctx)
	if err != nil {
		return err
	}
	epoch := runstore.Epoch(0)
	if len(changes) > 0 {
		epoch = changes[len(changes)-1].Epoch
	}
	s.epoch.Record(ctx, int64(epoch), s.labels)
	s.recordTime(ctx)
	return nil
}

// recordTime records the time of a sample that succeeded.
func (s *Sampler) recordTime(ctx context.Context) {
	s.sampled.Record(ctx, float64(time.Now().UnixMilli())/1000, s.labels)
}
