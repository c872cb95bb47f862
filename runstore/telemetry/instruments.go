package telemetry

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/runstore"
)

// operation is a method of the contract, as an index into names and labels.
type operation int

const (
	opCreateRun operation = iota
	opGetRun
	opAcquireLease
	opRenewLease
	opReleaseLease
	opCommit
	opCommitMulti
	opReadJournal
	opReadRecords
	opScanIndex
	opReadFeed
	opNow
	opReadJournalStale
	opScanIndexStale
	operations // the number of operations
)

// operationNames are the values of the label operation.
var operationNames = [operations]string{
	"create_run", "get_run", "acquire_lease", "renew_lease", "release_lease", "commit", "commit_multi",
	"read_journal", "read_records", "scan_index", "read_feed", "now", "read_journal_stale", "scan_index_stale",
}

// outcomeNames are the values of the label outcome; classes maps the contract's kinds to them.
const (
	outcomeOK       = "ok"
	outcomeExists   = "exists"
	outcomeCanceled = "canceled"
	outcomeUnknown  = "unknown_outcome"
	outcomeFenced   = "fenced"
	outcomeExpired  = "lease_expired"
)

var classes = map[error]string{
	runstore.ErrNotFound: "not_found", runstore.ErrLeaseHeld: "lease_held", runstore.ErrLeaseExpired: outcomeExpired,
	runstore.ErrFenced: outcomeFenced, runstore.ErrConflict: "conflict", runstore.ErrInvalid: "invalid",
	runstore.ErrTooLarge: "too_large", runstore.ErrUnsupported: "unsupported", runstore.ErrUnavailable: "unavailable",
	runstore.ErrUnknownOutcome: outcomeUnknown, runstore.ErrNoProgress: "no_progress",
	runstore.ErrStoreBehind: "store_behind", runstore.ErrCorrupt: "corrupt", runstore.ErrClosed: "closed",
}

// grantEnds are the values of the label former.
var grantEnds = map[runstore.GrantEnd]string{
	runstore.EndNone: "none", runstore.EndReleased: "released", runstore.EndHandedOff: "handed_off",
	runstore.EndExpired: "expired", runstore.EndPreempted: "preempted", runstore.EndRevoked: "revoked",
}

var (
	// durationBounds are in seconds: from an operation in memory to the retry timeout of a store.
	durationBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	countBounds    = []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256}
	byteBounds     = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}
	vacancyBounds  = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
)

// instruments are the metrics of one store, with the options of each combination of labels made in
// advance, so that a measurement allocates nothing.
type instruments struct {
	engine   string
	duration metric.Float64Histogram
	retries  metric.Int64Counter
	events   metric.Int64Histogram
	records  metric.Int64Histogram
	bytes    metric.Int64Histogram
	fenced   metric.Int64Counter
	unknown  metric.Int64Counter
	grants   metric.Int64Counter
	vacancy  metric.Float64Histogram

	byOutcome [operations]map[string][]metric.RecordOption
	byOp      [operations]writeOptions
	byFormer  map[runstore.GrantEnd][]metric.AddOption
	byEngine  []metric.RecordOption
}

type writeOptions struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

// newInstruments creates the metrics of a store. An instrument that the meter refuses is reported to
// OpenTelemetry's error handler and measures nothing.
func newInstruments(meter metric.Meter, engine string) *instruments {
	in := &instruments{engine: engine, byFormer: map[runstore.GrantEnd][]metric.AddOption{}}
	var errs [9]error
	in.duration, errs[0] = meter.Float64Histogram("tapestore.store.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of an operation of the store, retries included."), metric.WithExplicitBucketBoundaries(durationBounds...))
	in.retries, errs[1] = meter.Int64Counter("tapestore.store.retries", metric.WithUnit("{retry}"),
		metric.WithDescription("Attempts of the adapter after the first of an operation."))
	in.events, errs[2] = meter.Int64Histogram("tapestore.store.write.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events of an applied write."), metric.WithExplicitBucketBoundaries(countBounds...))
	in.records, errs[3] = meter.Int64Histogram("tapestore.store.write.records", metric.WithUnit("{record}"),
		metric.WithDescription("Records that an applied write changed."), metric.WithExplicitBucketBoundaries(countBounds...))
	in.bytes, errs[4] = meter.Int64Histogram("tapestore.store.write.size", metric.WithUnit("By"),
		metric.WithDescription("Data of the events and records of an applied write."), metric.WithExplicitBucketBoundaries(byteBounds...))
	in.fenced, errs[5] = meter.Int64Counter("tapestore.store.fenced.writes", metric.WithUnit("{write}"),
		metric.WithDescription("Writes that the store refused because the fence that they presented is not the current grant."))
	in.grants, errs[6] = meter.Int64Counter("tapestore.store.grants", metric.WithUnit("{grant}"),
		metric.WithDescription("Leases granted, by how the grant before ended."))
	in.vacancy, errs[7] = meter.Float64Histogram("tapestore.store.vacancy", metric.WithUnit("s"),
		metric.WithDescription("Time from the expiry of a lease to the grant that took it over, on the store clock."), metric.WithExplicitBucketBoundaries(vacancyBounds...))
	in.unknown, errs[8] = meter.Int64Counter("tapestore.store.unknown.outcomes", metric.WithUnit("{write}"),
		metric.WithDescription("Writes whose outcome the adapter could not find out: they may or may not have been applied."))
	for _, err := range errs {
		if err != nil {
			otel.Handle(err)
		}
	}

	engineLabel := attribute.String("engine", engine)
	set := func(labels ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(labels, engineLabel)...))
	}
	in.byEngine = []metric.RecordOption{set()}
	for op, name := range operationNames {
		opLabel := attribute.String("operation", name)
		in.byOp[op] = writeOptions{[]metric.RecordOption{set(opLabel)}, []metric.AddOption{set(opLabel)}}
		in.byOutcome[op] = map[string][]metric.RecordOption{}
		add := func(class string) {
			in.byOutcome[op][class] = []metric.RecordOption{set(opLabel, attribute.String("outcome", class))}
		}
		for _, class := range classes {
			add(class)
		}
		add(outcomeOK)
		add(outcomeExists)
		add(outcomeCanceled)
	}
	for end, name := range grantEnds {
		in.byFormer[end] = []metric.AddOption{set(attribute.String("former", name))}
	}
	in.begin()
	return in
}

// begin makes the counters show 0 from the beginning: Prometheus's rate and increase miss the step
// from no series to the first count.
func (in *instruments) begin() {
	ctx := context.Background()
	for op := range operations {
		in.retries.Add(ctx, 0, in.byOp[op].add...)
	}
	for _, op := range []operation{opCreateRun, opAcquireLease, opRenewLease, opReleaseLease, opCommit, opCommitMulti} {
		in.unknown.Add(ctx, 0, in.byOp[op].add...)
		if op != opCreateRun { // which presents no fence
			in.fenced.Add(ctx, 0, in.byOp[op].add...)
		}
	}
	for _, former := range in.byFormer {
		in.grants.Add(ctx, 0, former...)
	}
}
