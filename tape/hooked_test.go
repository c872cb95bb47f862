package tape_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// hooked is a store that calls before ahead of each of its calls, and after behind each that had no
// error. Either may be nil. An error of before is the call's, and nothing reaches the store. An
// error of after takes the place of the call's result. op is one word: create, get, acquire, renew,
// release, commit, multi, journal, records, scan or now.
type hooked struct {
	runstore.RunStore
	before, after func(op string) error
}

// hookedMulti is a hooked store that commits to two runs at once.
type hookedMulti struct{ *hooked }

// hook returns s with hooks, and with its CommitMulti if it has one.
func hook(s runstore.RunStore, before, after func(op string) error) runstore.RunStore {
	h := &hooked{s, before, after}
	if _, multi := s.(runstore.MultiCommitter); multi {
		return hookedMulti{h}
	}
	return h
}

func hookedCall[R any](h *hooked, op string, do func() (R, error)) (R, error) {
	var none R
	if h.before != nil {
		if err := h.before(op); err != nil {
			return none, err
		}
	}
	result, err := do()
	if err == nil && h.after != nil {
		if err := h.after(op); err != nil {
			return none, err
		}
	}
	return result, err
}

func (h *hooked) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return hookedCall(h, "create", func() (runstore.Created, error) { return h.RunStore.CreateRun(ctx, spec) })
}

func (h *hooked) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return hookedCall(h, "get", func() (runstore.Run, error) { return h.RunStore.GetRun(ctx, id) })
}

func (h *hooked) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return hookedCall(h, "acquire", func() (runstore.Granted, error) { return h.RunStore.AcquireLease(ctx, req) })
}

func (h *hooked) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return hookedCall(h, "renew", func() (runstore.Renewed, error) { return h.RunStore.RenewLease(ctx, req) })
}

func (h *hooked) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return hookedCall(h, "release", func() (runstore.Committed, error) { return h.RunStore.ReleaseLease(ctx, req) })
}

func (h *hooked) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return hookedCall(h, "commit", func() (runstore.Committed, error) { return h.RunStore.Commit(ctx, b) })
}

func (h hookedMulti) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	return hookedCall(h.hooked, "multi", func() ([]runstore.Committed, error) {
		return h.RunStore.(runstore.MultiCommitter).CommitMulti(ctx, batches)
	})
}

func (h *hooked) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return hookedCall(h, "journal", func() ([]runstore.Event, error) { return h.RunStore.ReadJournal(ctx, id, from, limit) })
}

func (h *hooked) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return hookedCall(h, "records", func() ([]runstore.Record, error) { return h.RunStore.ReadRecords(ctx, id, q) })
}

func (h *hooked) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return hookedCall(h, "scan", func() ([]runstore.IndexEntry, error) { return h.RunStore.ScanIndex(ctx, q) })
}

func (h *hooked) Now(ctx context.Context) (time.Time, error) {
	return hookedCall(h, "now", func() (time.Time, error) { return h.RunStore.Now(ctx) })
}

// ahead returns s, which calls f ahead of its call number n of a kind.
func ahead(s runstore.RunStore, op string, n int, f func()) runstore.RunStore {
	return hook(s, nth(op, n, f), nil)
}

// behind returns s, which calls f behind its call number n of a kind.
func behind(s runstore.RunStore, op string, n int, f func()) runstore.RunStore {
	return hook(s, nil, nth(op, n, f))
}

func nth(op string, n int, f func()) func(string) error {
	var calls atomic.Int64
	return func(called string) error {
		if called == op && calls.Add(1) == int64(n) {
			f()
		}
		return nil
	}
}

// failing returns s, of which no call but the first n succeeds: errDown.
func failing(s runstore.RunStore, n int) runstore.RunStore {
	var calls atomic.Int64
	return hook(s, func(string) error {
		if calls.Add(1) > int64(n) {
			return errDown
		}
		return nil
	}, nil)
}

var (
	errDown      = &runstore.OpError{Op: "test", Err: runstore.ErrUnavailable}
	errReplyLost = &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("reply lost")}
)
