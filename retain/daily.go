package retain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/runstore"
)

// CoordinatorRun is the unlisted run whose lease decides which replica makes the passes of [Daily]. Its
// record [HistoryKey] has the times of the last pass.
const (
	CoordinatorRun runstore.RunID     = "tapestore/retention"
	HistoryKey     runstore.RecordKey = "history"
)

// DailyOptions configures [Daily]. A zero field takes its default.
type DailyOptions struct {
	// Every is the time from the begin of a pass to the begin of the next, and Retry from the end of a
	// pass that failed to the next. Default 24 h and 1 h. Both vary by up to a tenth, so that many
	// servers do not begin at once.
	Every, Retry time.Duration
	// Coordinator configures the election.
	Coordinator election.Options
	// MeterProvider receives the metrics; OpenTelemetry's global provider by default.
	MeterProvider metric.MeterProvider
	// Logger receives the begin and the end of each pass. Default slog.Default().
	Logger *slog.Logger
}

// Summary counts what one pass did, for metrics and the log.
type Summary struct {
	Runs Report
	// Tasks counts the tasks that were deleted.
	Tasks int64
}

// history is the stored form of the record [HistoryKey]. Times are microseconds since 1970 on the store
// clock.
type history struct {
	Since   int64 `json:"since_us"`             // when retention was first active on this store
	Began   int64 `json:"began_us,omitempty"`   // the last pass
	Ended   int64 `json:"ended_us,omitempty"`   // 0 while it is under way, or if its replica died
	Success int64 `json:"success_us,omitempty"` // the end of the last pass that has not failed
	Failed  bool  `json:"failed,omitempty"`     // the last pass
}

// Daily makes a pass every day, on one of all replicas that call it on the same store, until ctx ends. The
// time of the last pass is stored, so a restart neither repeats nor delays a pass. A stored time that is later
// than the store clock counts for nothing: a pass follows within Retry. Daily returns when the
// pass under way has returned; pass must return soon after its context has ended.
//
// A pass that went through all runs, and failed with none but those that are damaged in the store, counts
// as a success, because a repeat would find them damaged again. The log has an error each day.
//
// A pass does not rely on the election: two at once do no harm.
//
// Errors: those of the options; the cause of ctx; those of [election.Coordinator.Run].
func Daily(ctx context.Context, store runstore.RunStore, opts DailyOptions, pass func(context.Context) (Summary, error)) error {
	d := &daily{
		store: store, pass: pass, in: newInstruments(opts.MeterProvider), log: cmp.Or(opts.Logger, slog.Default()),
		every: cmp.Or(opts.Every, 24*time.Hour), retry: cmp.Or(opts.Retry, time.Hour),
	}
	if d.every < 0 || d.retry < 0 {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "every", Problem: "is negative"}
	}
	elect := opts.Coordinator
	elect.Reactor = cmp.Or(elect.Reactor, "retention")
	elect.Logger = cmp.Or(elect.Logger, d.log)
	if elect.MeterProvider == nil {
		elect.MeterProvider = opts.MeterProvider
	}
	coordinator, err := election.New(store, CoordinatorRun, &elect)
	if err != nil {
		return err
	}
	return coordinator.Run(ctx, d.work)
}

type daily struct {
	store        runstore.RunStore
	pass         func(context.Context) (Summary, error)
	in           *instruments
	log          *slog.Logger
	every, retry time.Duration
}

// work makes the passes of one term. It returns only after ctx has ended: an error of the store is
// repeated.
func (d *daily) work(ctx context.Context, held *lease.Held) error {
	for ctx.Err() == nil {
		err := d.once(ctx, held)
		if errors.Is(err, runstore.ErrFenced) {
			<-ctx.Done() // the term is over, which the keeper finds at its next renewal
		}
		if err != nil && ctx.Err() == nil {
			d.log.Warn("retention: the store fails", "run", CoordinatorRun, "error", err)
			pace.Pause(ctx, storePause)
		}
	}
	return ctx.Err()
}

// storePause is the pause after an error of the store, 1 min: a pass is a matter of hours.
const storePause = time.Minute

// once waits for the next pass and makes it. Its errors are those of the history.
func (d *daily) once(ctx context.Context, held *lease.Held) error {
	h, version, err := d.read(ctx)
	if err != nil {
		return err
	}
	now, err := d.store.Now(ctx)
	if err != nil {
		return err
	}
	if version == 0 {
		h.Since = runstore.Micros(now)
		if version, err = d.write(ctx, held, h, version); err != nil {
			return err
		}
	}
	if at := runstore.Micros(now); max(h.Since, h.Began, h.Ended, h.Success) > at {
		h = history{Since: at, Success: min(h.Success, at)} // the store clock was ahead, and was put right since
	}
	d.in.shows(h)
	if !pace.Pause(ctx, max(d.due(h).Sub(now), 0)) {
		return nil
	}
	if now, err = d.store.Now(ctx); err != nil {
		return err
	}
	h.Began, h.Ended, h.Failed = runstore.Micros(now), 0, false
	if version, err = d.write(ctx, held, h, version); err != nil {
		return err
	}
	d.log.Info("retention: a pass begins", "run", CoordinatorRun)
	sum, err := d.pass(ctx)
	end := endOf(ctx, sum, err)
	d.in.count(ctx, sum, end)
	d.logEnd(sum, end, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	if now, err = d.store.Now(ctx); err != nil {
		return err
	}
	h.Ended, h.Failed = runstore.Micros(now), !end.success()
	if !h.Failed {
		h.Success = h.Ended
	}
	if _, err := d.write(ctx, held, h, version); err != nil {
		return err
	}
	d.in.shows(h)
	return nil
}

// passEnd is how a pass ended.
type passEnd int

const (
	passOK          passEnd = iota
	passDamaged             // it did everything but to archive runs that are damaged in the store
	passInterrupted         // no failure: this replica stops, or has lost its term
	passFailed
)

func endOf(ctx context.Context, sum Summary, err error) passEnd {
	switch {
	case err == nil:
		return passOK
	case sum.Runs.Complete && sum.Runs.Damaged == sum.Runs.Failed && onlyRuns(err):
		return passDamaged
	case ctx.Err() != nil:
		return passInterrupted
	}
	return passFailed
}

func (e passEnd) success() bool { return e == passOK || e == passDamaged }

// due returns when the next pass is due. A pass whose replica died is repeated like one that failed.
func (d *daily) due(h history) time.Time {
	vary := func(t time.Duration) time.Duration { return t - t/10 + rand.N(t/5+1) }
	switch {
	case h.Began == 0:
		return runstore.FromMicros(h.Since).Add(rand.N(d.retry + 1))
	case h.Ended == 0 || h.Failed:
		return runstore.FromMicros(max(h.Began, h.Ended)).Add(vary(d.retry))
	default:
		return runstore.FromMicros(h.Began).Add(vary(d.every))
	}
}

func (d *daily) read(ctx context.Context) (h history, version runstore.Version, err error) {
	found, err := d.store.ReadRecords(ctx, CoordinatorRun, runstore.RecordQuery{Keys: []runstore.RecordKey{HistoryKey}})
	if err != nil || len(found) == 0 {
		return h, 0, err
	}
	if err := json.Unmarshal(found[0].Value, &h); err != nil {
		return h, 0, fmt.Errorf("the record %q of run %q: %w", HistoryKey, CoordinatorRun, err)
	}
	return h, found[0].Version, nil
}

// write writes the history, under the fence of the term, and returns the version of its record.
func (d *daily) write(ctx context.Context, held *lease.Held, h history, version runstore.Version) (runstore.Version, error) {
	value, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	b := runstore.NewBatch(CoordinatorRun, held.Fence(), runstore.AtVersion(HistoryKey, version))
	b.ID = runstore.NewBatchID()
	b.Put(HistoryKey, value)
	done, err := d.store.Commit(ctx, b)
	if err != nil {
		return 0, err
	}
	return done.Versions[0], nil
}

func (d *daily) logEnd(sum Summary, end passEnd, err error) {
	level, text := slog.LevelInfo, "retention: the pass has ended"
	switch end {
	case passDamaged:
		level, text = slog.LevelError, "retention: the pass has ended, and runs are damaged"
	case passInterrupted:
		text = "retention: the pass was interrupted; a later one continues"
	case passFailed:
		level, text = slog.LevelError, "retention: the pass failed"
	}
	d.log.Log(context.Background(), level, text, "run", CoordinatorRun, "purged", sum.Runs.Purged, "archived", sum.Runs.Archived,
		"failed", sum.Runs.Failed, "damaged", sum.Runs.Damaged, "tasks", sum.Tasks, "error", err)
}
