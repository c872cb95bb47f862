package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// A purge refuses a live lease, ends it if it may, leaves the token, and is recorded before and
// after. The audit finds nothing afterwards.
func TestRunPurgeCommand(t *testing.T) {
	t.Parallel()
	for engine, url := range adminEngines(t, "run-purge-command") {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			store := openNew(t, url)
			spec := runstore.RunSpec{ID: "run-1", Lease: &runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent", TTL: 30 * time.Minute}}
			spec.Writes.Append("began", nil)
			spec.Writes.Put("record", []byte("personal"))
			created, err := store.CreateRun(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"run", "purge", "run-1", "--operator", "ada", "--reason", "personal data", "--store", url}
			out, _, err := here(t, "run-1\n", args...)
			if exitStatus(err) != exitRefused || out != "" || !strings.Contains(err.Error(), "its lease is live") {
				t.Fatalf("under a live lease: got %q, %v", out, err)
			}
			out, _, err = here(t, "run-1\n", append(args, "--preempt", "--if-token", "9")...)
			if err == nil || out != "" {
				t.Fatalf("with another token: got %q, %v", out, err)
			}
			if head, err := store.GetRun(t.Context(), "run-1"); err != nil || head.Token != 1 || head.LastSeq != 1 {
				t.Fatalf("a refused purge has changed the run: %+v, %v", head, err)
			}
			out, asked, err := here(t, "run-1\n", append(args, "--preempt", "--json")...)
			var v purgedView
			if err != nil || json.Unmarshal([]byte(out), &v) != nil || v.Token != 2 || v.Events != 1 || v.Preempted != "agent-a" || !v.Recorded || !strings.Contains(asked, "agent-a") {
				t.Fatalf("with --preempt: got %s, %q, %v", out, asked, err)
			}
			if _, err := store.GetRun(t.Context(), "run-1"); !errors.Is(err, runstore.ErrNotFound) {
				t.Errorf("the run afterwards: got %v, want ErrNotFound", err)
			}
			late := runstore.NewBatch("run-1", created.Lease.Fence())
			late.Append("late", nil)
			if _, err := store.Commit(t.Context(), late); !errors.Is(err, runstore.ErrFenced) && !errors.Is(err, runstore.ErrNotFound) {
				t.Errorf("a late write: got %v", err)
			}
			again, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1", Lease: &runstore.LeaseSpec{Owner: "b", Reactor: "agent", TTL: time.Minute}})
			if err != nil || !again.New || again.Lease.Token != 3 {
				t.Errorf("the run created again: got token %v, %v, want 3", again.Lease.Token, err)
			}
			journal, err := store.ReadJournal(t.Context(), admin.OperationsRun, 1, 10)
			if err != nil || len(journal) != 2 {
				t.Fatalf("the journal of operations: got %d events, %v, want 2", len(journal), err)
			}
			for i, stage := range []string{admin.StageIntended, admin.StageDone} {
				var e admin.OperationEntry
				want := admin.OperationEntry{Operation: "purge", Stage: stage, Run: "run-1", Token: 2, Operator: "ada", Reason: "personal data", Preempted: "agent-a"}
				if err := json.Unmarshal(journal[i].Data, &e); err != nil || e != want || journal[i].Kind != admin.OperationKind {
					t.Errorf("event %d: got %s, %v, want %+v", i, journal[i].Data, err, want)
				}
			}
			if out, _, err := here(t, "", "audit", "--store", url); err != nil {
				t.Errorf("the audit: %s, %v", out, err)
			}
		})
	}
}

// Nothing is purged without a name, a reason and a confirmation, and never the record of purges.
func TestRunPurgeRefused(t *testing.T) {
	t.Parallel()
	const url = "memory:run-purge-refused"
	store := openNew(t, url)
	for _, id := range []runstore.RunID{"run-1", admin.OperationsRun} {
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	full := "--operator a --reason r --store " + url
	for _, c := range []struct{ args, input, says string }{
		{"purge run-1 --operator a --store " + url, "", "--reason"},
		{"purge run-1 --reason r --store " + url, "", "--operator"},
		{"purge run-1 --operator a --reason r", "", "--store"},
		{"purge run-1 " + full, "", "not typed"},
		{"purge run-1 " + full, "yes\n", "not typed"},
		{"purge run-1 --yes --if-token x " + full, "", "--if-token"},
		{"purge run-1 --yes --if-token 1 " + full, "", "not purged"},
		{"purge run-2 --yes " + full, "", "not found"},
		{"purge " + string(admin.OperationsRun) + " --yes " + full, "", "record of all purges"},
		{"purge run-1 --yes --operator a --store " + url + " --reason " + strings.Repeat("r", runstore.MaxOwner+1), "", "reason"},
		{"", "", "purge RUN_ID"},
	} {
		out, _, err := here(t, c.input, append([]string{"run"}, strings.Fields(c.args)...)...)
		if err == nil || out != "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v, want an error that says %q", c.args, out, err, c.says)
		}
	}
	if _, err := store.GetRun(t.Context(), "run-1"); err != nil {
		t.Errorf("the run afterwards: %v", err)
	}
}

// answers is the input of a person. before is called ahead of the first read.
type answers struct {
	io.Reader
	before func()
}

func (a *answers) Read(p []byte) (int, error) {
	if a.before != nil {
		a.before()
		a.before = nil
	}
	return a.Reader.Read(p)
}

// TestRunPurgeShowsWhatItDeletes checks that the question shows the run's status and the work that is left,
// and that what arrives after the question is not purged unseen.
func TestRunPurgeShowsWhatItDeletes(t *testing.T) {
	t.Parallel()
	const url = "memory:run-purge-shows"
	store := openNew(t, url)
	spec := runstore.RunSpec{ID: "run-1", Status: runstore.Status(tape.RunStuck)}
	spec.Writes.Append("began", nil)
	due := runstore.After(0)
	for key, index := range map[runstore.RecordKey]runstore.IndexName{
		"a": tape.IndexUnknown, "b": tape.IndexUnknown, "c": tape.IndexObligations, "d": tape.IndexStuckObligations, "e": "another", "f": tape.IndexEnded,
	} {
		spec.Writes.Put(key, nil, runstore.Place{Index: index, At: due})
	}
	if _, err := store.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	arrive := func() {
		b := runstore.NewBatch("run-1", runstore.Unguarded("a signal"))
		b.Append("signal", nil)
		if _, err := store.Commit(t.Context(), b); err != nil {
			t.Error(err)
		}
	}
	purge := func(before func()) (out, asked string, err error) {
		var o, e strings.Builder
		root := newRoot()
		root.SetIn(&answers{strings.NewReader("run-1\n"), before})
		root.SetOut(&o)
		root.SetErr(&e)
		root.SetArgs([]string{"run", "purge", "run-1", "--operator", "ada", "--reason", "r", "--store", url})
		err = root.ExecuteContext(t.Context())
		return o.String(), e.String(), err
	}
	out, asked, err := purge(arrive)
	const left = "Work that is left in it: 2 effects that are UNKNOWN, 1 obligations that are STUCK, 1 open obligations, 1 records in the queue another.\n"
	if !strings.Contains(asked, "run run-1 has the status stuck and 1 events, ") || !strings.Contains(asked, left) {
		t.Errorf("the question: got %q", asked)
	}
	if exitStatus(err) != exitRefused || out != "" || !strings.Contains(err.Error(), "an event arrived after the question, which had shown 1 events") {
		t.Errorf("an event arrived after the question: got %q, %v", out, err)
	}
	if head, err := store.GetRun(t.Context(), "run-1"); err != nil || head.LastSeq != 2 {
		t.Fatalf("a refused purge has changed the run: %+v, %v", head, err)
	}
	out, asked, err = purge(nil)
	if err != nil || !strings.Contains(asked, " and 2 events, ") || !strings.HasPrefix(out, "run run-1 was purged with 2 events; ") {
		t.Errorf("the repeat: got %q, %q, %v", out, asked, err)
	}
}

// TestRunPurgeAfterATimerIsSet checks that work which arrives after the question without an event is not
// purged unseen.
func TestRunPurgeAfterATimerIsSet(t *testing.T) {
	t.Parallel()
	const url = "memory:run-purge-timer"
	store := openNew(t, url)
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"}); err != nil {
		t.Fatal(err)
	}
	purge := func(in io.Reader) (asked string, err error) {
		var e strings.Builder
		root := newRoot()
		root.SetIn(in)
		root.SetOut(io.Discard)
		root.SetErr(&e)
		root.SetArgs([]string{"run", "purge", "run-1", "--operator", "ada", "--reason", "r", "--store", url})
		err = root.ExecuteContext(t.Context())
		return e.String(), err
	}
	for i, shown := range []string{"none", "1 timers"} { // the second timer replaces the first
		asked, err := purge(&answers{strings.NewReader("run-1\n"), func() {
			b := runstore.NewBatch("run-1", runstore.Unguarded("a timer"))
			b.Put(runstore.RecordKey(fmt.Sprint("timer ", i)), nil, runstore.Place{Index: tape.IndexTimers, At: runstore.After(time.Hour)})
			if i > 0 {
				b.Delete(runstore.RecordKey(fmt.Sprint("timer ", i-1)))
			}
			if _, err := store.Commit(t.Context(), b); err != nil {
				t.Error(err)
			}
		}})
		if !strings.Contains(asked, "Work that is left in it: "+shown+".\n") || exitStatus(err) != exitRefused || !strings.Contains(err.Error(), "it is now 1 timers;") {
			t.Errorf("got %q, %v, want a refusal", asked, err)
		}
	}
	if _, err := store.GetRun(t.Context(), "run-1"); err != nil {
		t.Errorf("the run afterwards: %v", err)
	}
	if asked, err := purge(strings.NewReader("run-1\n")); err != nil || !strings.Contains(asked, "Work that is left in it: 1 timers.\n") {
		t.Errorf("the repeat: got %q, %v", asked, err)
	}
}

// unlisting is a store whose records cannot be listed.
type unlisting struct{ runstore.RunStore }

func (s unlisting) Unwrap() runstore.RunStore { return s.RunStore }

func (s unlisting) ScanRuns(context.Context, runstore.RunID, int) ([]runstore.RunID, error) {
	return nil, runstore.ErrUnsupported
}

func (s unlisting) ReadPlaced(context.Context, runstore.RunID, runstore.RecordKey, int) (runstore.PlacedPage, error) {
	return runstore.PlacedPage{}, runstore.ErrCorrupt
}

func (s unlisting) Import(context.Context, runstore.Import) (runstore.Committed, error) {
	return runstore.Committed{}, runstore.ErrUnsupported
}

// closedWriter is an output whose reader has gone.
type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestRunPurgeOfAnUnreadableRun checks that a run with a record that cannot be read is purged after the
// question, and that the outcome is reported although it cannot be printed.
func TestRunPurgeOfAnUnreadableRun(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	runstore.Register("unlisting", func(context.Context, runstore.URL) (runstore.RunStore, error) {
		return unlisting{engine.Open()}, nil
	})
	store := engine.Open()
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"}); err != nil {
		t.Fatal(err)
	}
	var asked strings.Builder
	root := newRoot()
	root.SetIn(strings.NewReader("run-1\n"))
	root.SetOut(closedWriter{})
	root.SetErr(&asked)
	root.SetArgs([]string{"run", "purge", "run-1", "--operator", "ada", "--reason", "r", "--store", "unlisting:"})
	err := root.ExecuteContext(t.Context())
	if !strings.Contains(asked.String(), "Work that is left in it: not known: "+runstore.ErrCorrupt.Error()+".\n") {
		t.Errorf("the question: got %q", asked.String())
	}
	if exitStatus(err) != 1 || !errors.Is(err, io.ErrClosedPipe) || !strings.HasPrefix(err.Error(), "the run was purged, but ") {
		t.Errorf("got %v, want that the run was purged", err)
	}
	if _, err := store.GetRun(t.Context(), "run-1"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("the run afterwards: got %v, want ErrNotFound", err)
	}
}
