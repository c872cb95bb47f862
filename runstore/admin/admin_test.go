package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/memory"
)

// faulty is a store whose commits fail as a test says.
type faulty struct {
	runstore.RunStore
	// commit returns what happens to a commit: whether it reaches the store, and the error of the
	// reply.
	commit func(b runstore.Batch) (reaches bool, reply error)
	now    func() (time.Time, error)
}

func (f *faulty) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	reaches, reply := true, error(nil)
	if f.commit != nil {
		reaches, reply = f.commit(b)
	}
	if reaches {
		if c, err := f.RunStore.Commit(ctx, b); err != nil || reply == nil {
			return c, err
		}
	}
	return runstore.Committed{}, reply
}

func (f *faulty) Now(ctx context.Context) (time.Time, error) {
	if f.now != nil {
		return f.now()
	}
	return f.RunStore.Now(ctx)
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	s := memory.New(nil).Open()
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	return &faulty{RunStore: s}
}

var request = admin.PurgeRequest{Run: "run", Operator: "ada", Reason: "test"}

// stages returns the stages that the journal of operations has.
func stages(t *testing.T, s runstore.RunStore) (all string) {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), admin.OperationsRun, 1, 100)
	if err != nil && !errors.Is(err, runstore.ErrNotFound) {
		t.Fatal(err)
	}
	for _, e := range events {
		var entry admin.OperationEntry
		if err := json.Unmarshal(e.Data, &entry); err != nil {
			t.Fatal(err)
		}
		all += " " + entry.Stage
	}
	return strings.TrimSpace(all)
}

// Whatever fails, the error says whether the run was purged, the journal has the intent before a
// purge, and a run that was not purged is free again.
func TestPurgeThatFails(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("%w: no route", runstore.ErrUnavailable)
	unknown := fmt.Errorf("%w: the connection broke", runstore.ErrUnknownOutcome)
	type fault = func(b runstore.Batch) (bool, error)
	on := func(run runstore.RunID, nth int, reaches bool, reply error) fault {
		return func(b runstore.Batch) (bool, error) {
			if b.Run() == run {
				if nth--; nth == 0 {
					return reaches, reply
				}
			}
			return true, nil
		}
	}
	for name, c := range map[string]struct {
		fault   fault
		outcome error // of the purge; nil if it succeeds
		purged  bool
		stages  string
	}{
		"no fault":                        {nil, nil, true, "intended done"},
		"the purge is refused":            {on("run", 1, false, refused), runstore.ErrUnavailable, false, "intended failed"},
		"the reply of the purge is lost":  {on("run", 1, true, unknown), nil, true, "intended done"},
		"the purge is lost":               {on("run", 1, false, unknown), runstore.ErrUnknownOutcome, false, "intended"},
		"the intent is refused":           {on(admin.OperationsRun, 1, false, refused), runstore.ErrUnavailable, false, ""},
		"the reply of the intent is lost": {on(admin.OperationsRun, 2, true, unknown), nil, true, "intended done"},
		"all replies of the intent are lost": {func(b runstore.Batch) (bool, error) {
			if b.Run() == admin.OperationsRun {
				return true, unknown
			}
			return true, nil
		}, runstore.ErrUnavailable, false, "intended"},
		"the end cannot be recorded": {on(admin.OperationsRun, 3, false, refused), nil, true, "intended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFaulty(t)
			s.commit = c.fault
			purged, err := admin.Purge(t.Context(), s, request)
			if runstore.KindOf(err) != c.outcome {
				t.Errorf("got %v, want %v", err, c.outcome)
			}
			if err == nil && purged.Recorded != strings.HasSuffix(c.stages, "done") {
				t.Errorf("got %+v, with the stages %s", purged, c.stages)
			}
			if got := stages(t, s.RunStore); got != c.stages {
				t.Errorf("the stages are %q, want %q", got, c.stages)
			}
			head, err := s.GetRun(t.Context(), "run")
			if c.purged != errors.Is(err, runstore.ErrNotFound) {
				t.Errorf("the run afterwards: %v", err)
			}
			if !c.purged && !errors.Is(c.outcome, runstore.ErrUnknownOutcome) && head.Holder.Token != 0 {
				t.Errorf("the run is still held: %+v", head.Holder)
			}
			if c.purged || head.Holder.Token != 0 {
				return
			}
			next, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: time.Minute, Grant: runstore.NewGrantID()},
			})
			if err != nil || next.Former != runstore.EndRevoked {
				t.Errorf("the next grant: former %v, %v, want %v", next.Former, err, runstore.EndRevoked)
			}
		})
	}
}

// An examination finds a clock that is wrong, a store that does not fence and a commit that fails,
// and leaves no scratch run.
func TestExamination(t *testing.T) {
	t.Parallel()
	examine := func(s runstore.RunStore, clock func() time.Time) map[string]admin.Finding {
		all := map[string]admin.Finding{}
		for _, f := range (admin.Examination{
			URL: runstore.URL{Scheme: "none"}, Write: true, Clock: clock,
			Open: func(context.Context) (runstore.RunStore, error) { return s, nil },
		}).Run(t.Context()) {
			all[f.Check] = f
		}
		return all
	}
	if got := examine(newFaulty(t), nil); got["clock"].Status != admin.OK || got["fence"].Status != admin.OK || got["write"].Status == admin.Fail {
		t.Errorf("a sound store: got %+v", got)
	}
	if got := examine(newFaulty(t), func() time.Time { return time.Now().Add(-time.Hour) }); got["clock"].Status != admin.Warn || !strings.Contains(got["clock"].Found, "+1h0m0s") {
		t.Errorf("a host an hour behind: got %+v", got["clock"])
	}
	away := newFaulty(t)
	away.now = func() (time.Time, error) { return time.Time{}, runstore.ErrUnavailable }
	if got := examine(away, nil); got["clock"].Status != admin.Fail {
		t.Errorf("a clock that cannot be read: got %+v", got["clock"])
	}
	broken := newFaulty(t)
	broken.commit = func(b runstore.Batch) (bool, error) {
		if b.Writes.Purge {
			return true, nil
		}
		return false, nil // everything is acknowledged, and nothing refused
	}
	if got := examine(broken, nil); got["fence"].Status != admin.Fail || got["fence"].Advice == "" {
		t.Errorf("a store without fences: got %+v", got["fence"])
	}
	full := newFaulty(t)
	full.commit = func(b runstore.Batch) (bool, error) { return b.Writes.Purge, runstore.ErrUnavailable }
	if got := examine(full, nil); got["write"].Status != admin.Fail {
		t.Errorf("a store that cannot be written: got %+v", got["write"])
	}
	foreign := newFaulty(t)
	if _, err := foreign.CreateRun(t.Context(), runstore.RunSpec{ID: admin.ScratchRun}); err != nil {
		t.Fatal(err)
	}
	if got := examine(foreign, nil); got["write"].Status != admin.Fail {
		t.Errorf("a user's run with the name of the scratch run: got %+v", got["write"])
	}
	busy := newFaulty(t)
	spec := runstore.LeaseSpec{Owner: "other", Reactor: "doctor", TTL: time.Minute}
	if _, err := busy.CreateRun(t.Context(), runstore.RunSpec{ID: admin.ScratchRun, Unlisted: true, Lease: &spec}); err != nil {
		t.Fatal(err)
	}
	if got := examine(busy, nil); got["write"].Status != admin.Warn || !strings.Contains(got["write"].Found, "another examination") {
		t.Errorf("beside another examination: got %+v", got["write"])
	}
}

// An entry is recorded although the commits before the creation of the journal had no reply.
func TestRecordInAJournalThatIsMissing(t *testing.T) {
	t.Parallel()
	s, tries := newFaulty(t), 0
	s.commit = func(runstore.Batch) (bool, error) {
		if tries++; tries < 3 {
			return false, runstore.ErrUnknownOutcome
		}
		return true, nil
	}
	err := admin.RecordOperation(t.Context(), s, admin.OperationEntry{Operation: "purge", Stage: "intent"})
	if got := stages(t, s); err != nil || got != "intent" {
		t.Errorf("got %v and the journal %q, want the entry", err, got)
	}
}

// TestRecordWhoseRepeatIsUnavailable checks that the outcome of an entry stays unknown when the reply to it
// is lost and the store cannot be reached for the repeat.
func TestRecordWhoseRepeatIsUnavailable(t *testing.T) {
	t.Parallel()
	s, tries := newFaulty(t), 0
	if err := admin.RecordOperation(t.Context(), s, admin.OperationEntry{Stage: "first"}); err != nil {
		t.Fatal(err)
	}
	s.commit = func(runstore.Batch) (bool, error) {
		if tries++; tries == 1 {
			return true, runstore.ErrUnknownOutcome
		}
		return false, runstore.ErrUnavailable
	}
	err := admin.RecordOperation(t.Context(), s, admin.OperationEntry{Stage: "second"})
	if got := stages(t, s.RunStore); runstore.OutcomeOf(err) != runstore.Unknown || got != "first second" {
		t.Errorf("got %v and the journal %q, want an unknown outcome", err, got)
	}
}

// A store that would change by being opened stays closed.
func TestKeptClosed(t *testing.T) {
	t.Parallel()
	admin.Register("kept-closed", admin.Engine{Check: func(context.Context, runstore.URL) []admin.Finding {
		var r admin.Report
		r.KeepClosed("incarnation", "promoted", "start the server")
		return r
	}})
	found := admin.Examination{URL: runstore.URL{Scheme: "kept-closed"}, Open: func(context.Context) (runstore.RunStore, error) {
		t.Error("the store was opened")
		return nil, runstore.ErrClosed
	}}.Run(t.Context())
	if len(found) != 2 || found[1].Check != "store" || found[1].Status != admin.Warn || !strings.Contains(found[1].Found, "incarnation") {
		t.Errorf("got %+v", found)
	}
}
