package retain_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/memory"
)

func (h hookedTarget) Write(ctx context.Context, name string, write func(io.Writer) error) error {
	if err := h.Target.Write(ctx, name, write); err != nil {
		return err
	}
	return h.after(name)
}

// Of runs of all kinds exactly those that qualify are archived and purged, a dry run says the same before,
// and the archives restore the runs: in another store, and in this one without a new epoch.
func TestPass(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		ctx := t.Context()
		odd := runstore.RunID("ödd/../\x00" + strings.Repeat("x", 200))
		endedRun(t, s, "old")
		endedRun(t, s, odd)
		must(s.CreateRun(ctx, runstore.RunSpec{ID: "bare", Status: ended}))(t) // never leased, no event, no record
		must(s.CreateRun(ctx, runstore.RunSpec{ID: "active", Status: active}))(t)
		must(s.CreateRun(ctx, runstore.RunSpec{ID: "unlisted", Status: ended, Unlisted: true}))(t)
		must(s.CreateRun(ctx, runstore.RunSpec{ID: "runnable", Status: ended, Runnable: runstore.After(0)}))(t)
		endedRun(t, s, "queued", func(w *runstore.Writes) {
			w.Put("timer", nil, runstore.Place{Index: "timers", At: runstore.After(1000 * day)})
		})
		endedRun(t, s, "leading", func(w *runstore.Writes) { w.Put(crossrun.IntentKey, []byte("an intent")) })
		endedRun(t, s, "leased")
		endedRun(t, s, "changed record")
		endedRun(t, s, "new event")
		endedRun(t, s, "was leased")
		c.advance(2 * time.Hour)
		endedRun(t, s, "young")
		c.advance(window - 2*time.Hour + 2*time.Minute)
		commit(t, s, "changed record", func(w *runstore.Writes) { w.Put("record", []byte("new")) })
		commit(t, s, "new event", func(w *runstore.Writes) { w.Append("late", nil) })
		lease := func(id runstore.RunID) runstore.Granted {
			return must(s.AcquireLease(ctx, runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "o", TTL: time.Minute}}))(t)
		}
		lease("leased")
		must(s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease("was leased").Fence()}))(t)

		o := options(t)
		var dry, real []retain.Decision
		o.DryRun, o.Decided = true, func(d retain.Decision) { dry = append(dry, d) }
		planned := pass(t, s, o)
		if !exists(t, s, "old") || len(files(t, o.Archive)) != 0 {
			t.Fatal("a dry run has changed something")
		}
		before := closing(t, memory.New(nil).Open())
		copyStore(t, s, before)
		o.DryRun, o.Decided = false, func(d retain.Decision) { real = append(real, d) }
		got := pass(t, s, o)
		want := map[retain.Reason]int64{
			retain.KeptActive: 1, retain.KeptRunnable: 1, retain.KeptQueued: 1, retain.KeptStep: 1, retain.KeptLeased: 1, retain.KeptYoung: 3,
		}
		if got.Purged != 3 || got.Archived != 3 || got.Events != 4 || got.Records != 4 || got.Failed+got.Gone+got.Reused != 0 || !maps.Equal(got.Kept, want) {
			t.Errorf("got %+v", got)
		}
		if planned.Archived = 3; planned.Purged != 3 || planned.Scanned != got.Scanned || !maps.Equal(planned.Kept, got.Kept) || planned.Events != got.Events {
			t.Errorf("the dry run planned %+v, and %+v was done", planned, got)
		}
		if len(dry) != 3 || len(real) != 3 {
			t.Fatalf("%d and %d decisions", len(dry), len(real))
		}
		for i := range dry {
			if dry[i].Purged || !real[i].Purged || dry[i].Object != real[i].Object || dry[i].Run != real[i].Run {
				t.Errorf("planned %+v, done %+v", dry[i], real[i])
			}
		}
		for _, id := range []runstore.RunID{"active", "unlisted", "runnable", "queued", "leading", "leased", "young", "changed record", "new event", "was leased"} {
			if !exists(t, s, id) {
				t.Errorf("%s was purged", id)
			}
		}
		if exists(t, s, "old") || exists(t, s, odd) || exists(t, s, "bare") {
			t.Error("a run is still there")
		}
		checkOperations(t, s, "purged 3 runs, 0 failed")
		if again := pass(t, s, o); again.Purged != 0 || !maps.Equal(again.Kept, want) {
			t.Errorf("a second pass: %+v", again)
		}

		// Restored here, the runs are as before, with a higher token, and stay for another window.
		other, never := closing(t, memory.New(nil).Open()), closing(t, memory.New(nil).Open())
		for _, name := range files(t, o.Archive) {
			open := func() *archive.Source { return must(archive.Open(filepath.Join(o.Archive.String(), name)))(t) }
			if _, err := archive.Import(ctx, open(), never, &archive.ImportOptions{Restore: true}); !strings.Contains(name, "/bare.") && !errors.Is(err, archive.ErrNotPurgedHere) {
				t.Errorf("%s restored into a store that never had it: %v", name, err)
			}
			must(archive.Import(ctx, open(), s, &archive.ImportOptions{Restore: true}))(t)
			if report := must(archive.Import(ctx, open(), other, &archive.ImportOptions{RaiseEpoch: true}))(t); report.Imported.Runs+report.Present != 1 {
				t.Errorf("%s imported into another store: %+v", name, report)
			}
		}
		must(archive.Verify(ctx, s, before, &archive.VerifyOptions{Found: func(d archive.Difference) {
			// A purge raises the floor of versions, which stays.
			if d.Run != admin.OperationsRun && !strings.HasPrefix(d.Problem, "new records begin above") {
				t.Error(d)
			}
		}}))(t)
		if epochs := must(s.(runstore.EpochManager).Epochs(ctx))(t); len(epochs) > 0 {
			t.Errorf("the restoration has raised the epoch: %v", epochs)
		}
		if again := pass(t, s, o); again.Purged != 0 || again.Kept[retain.KeptYoung] != want[retain.KeptYoung]+3 {
			t.Errorf("a pass after the restoration: %+v", again)
		}
		if !exists(t, other, "old") {
			t.Error("the other store lacks a run")
		}
	})
}

// copyStore copies a store by export and import.
func copyStore(t *testing.T, from, to runstore.RunStore) {
	t.Helper()
	file := must(os.Create(filepath.Join(t.TempDir(), "all.jsonl")))(t)
	must(archive.Export(t.Context(), from, file, nil))(t)
	must(0, file.Close())(t)
	must(archive.Import(t.Context(), must(archive.Open(file.Name()))(t), to, nil))(t)
}

// checkOperations checks that the last pass is recorded.
func checkOperations(t *testing.T, s runstore.RunStore, end string) {
	t.Helper()
	journal := must(s.ReadJournal(t.Context(), admin.OperationsRun, 1, 10))(t)
	if len(journal) < 2 {
		t.Fatalf("the journal of operations has %d events", len(journal))
	}
	for i, want := range []admin.OperationEntry{{Stage: admin.StageIntended}, {Stage: admin.StageDone, Reason: end}} {
		var e admin.OperationEntry
		must(0, json.Unmarshal(journal[len(journal)-2+i].Data, &e))(t)
		if e.Operation != "retain" || e.Stage != want.Stage || e.Operator != "test" || want.Reason != "" && e.Reason != want.Reason {
			t.Errorf("event %d: %+v", i, e)
		}
	}
}

// Options that would break a promise are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*retain.Options){
		"journals": func(o *retain.Options) { o.Journals = 0 },
		"feed":     func(o *retain.Options) { o.Feed = window + 1 },
		"ended":    func(o *retain.Options) { o.Ended = nil },
		"operator": func(o *retain.Options) { o.Operator = "" },
	} {
		o := options(t)
		change(&o)
		_, err := retain.Pass(t.Context(), closing(t, memory.New(nil).Open()), o)
		if input := new(runstore.InputError); !errors.As(err, &input) || input.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A pass that ends after the archive was written is repeated: the object is used, or written anew if it
// is damaged, and nothing of it changes.
func TestCrashAfterTheArchive(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		endedRun(t, s, "run")
		endedRun(t, s, "run 2")
		endedRun(t, s, "run 3")
		c.advance(window + day)
		o := options(t)
		dir := o.Archive
		crash := errors.New("crash")
		o.Archive = afterWrite(dir, func(string) error { return crash })
		if report, err := retain.Pass(t.Context(), s, o); !errors.Is(err, retain.ErrFailed) || !errors.Is(err, crash) || report.Failed != 3 || report.Purged != 0 {
			t.Fatalf("%+v, %v", report, err)
		}
		names := files(t, dir)
		if len(names) != 3 {
			t.Fatalf("objects %v", names)
		}
		first := filepath.Join(dir.String(), names[0])
		whole := must(os.ReadFile(first))(t)
		must(0, os.WriteFile(filepath.Join(dir.String(), names[1]), []byte("{damaged"), 0o600))(t)
		third := filepath.Join(dir.String(), names[2])
		own := must(os.ReadFile(third))(t)
		must(0, os.WriteFile(third, whole, 0o600))(t) // of another run
		o.Archive = dir
		if report, err := retain.Pass(t.Context(), s, o); report.Purged != 2 || report.Reused != 1 || report.Archived != 1 || report.Failed != 1 || !strings.Contains(err.Error(), "not replaced") {
			t.Errorf("the repeat: %+v, %v", report, err)
		}
		if string(must(os.ReadFile(third))(t)) != string(whole) {
			t.Error("an intact archive of another run was replaced")
		}
		must(0, os.WriteFile(third, own, 0o600))(t)
		if report := pass(t, s, o); report.Purged != 1 || report.Reused != 1 || !report.Complete {
			t.Errorf("after the object was put back: %+v", report)
		}
		if string(must(os.ReadFile(first))(t)) != string(whole) || len(files(t, dir)) != 3 {
			t.Error("the repeat has changed an object")
		}
		for _, name := range names {
			state := must(archive.ReadState(t.Context(), must(archive.Open(filepath.Join(dir.String(), name)))(t)))(t)
			if retain.ObjectName(state) != name {
				t.Errorf("%s has the archive of %s", name, retain.ObjectName(state))
			}
		}
	})
}

// TestChangeAfterTheArchive checks that a run which was changed after it was archived is kept, and that a run
// which another process purged counts as gone.
func TestChangeAfterTheArchive(t *testing.T) {
	t.Parallel()
	many := func(w *runstore.Writes) {
		for n := range 200 {
			w.Put(runstore.RecordKey(runID(n)), nil)
		}
	}
	for name, change := range map[string]func(t *testing.T, s runstore.RunStore){
		"event": func(t *testing.T, s runstore.RunStore) {
			commit(t, s, "run", func(w *runstore.Writes) { w.Append("late", nil) })
		},
		"record": func(t *testing.T, s runstore.RunStore) {
			commit(t, s, "run", func(w *runstore.Writes) { w.Put("record", nil) })
		},
		"new record": func(t *testing.T, s runstore.RunStore) {
			commit(t, s, "run", func(w *runstore.Writes) { w.Put("zz", nil) })
		},
		"deletion": func(t *testing.T, s runstore.RunStore) {
			commit(t, s, "run", func(w *runstore.Writes) { w.Delete("record") })
		},
		"one record of many": func(t *testing.T, s runstore.RunStore) {
			commit(t, s, "run", func(w *runstore.Writes) { w.Put("zzz-199", nil) })
		},
		"status": func(t *testing.T, s runstore.RunStore) {
			commit(t, s, "run", func(w *runstore.Writes) { status := active; w.Status = &status })
		},
		"runnable": func(t *testing.T, s runstore.RunStore) { // neither an event nor a record
			commit(t, s, "run", func(w *runstore.Writes) { w.Runnable = runstore.At(time.Unix(1, 0)) })
		},
		"lease": func(t *testing.T, s runstore.RunStore) {
			must(s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "o", TTL: time.Minute}}))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
				endedRun(t, s, "run", many)
				commit(t, s, "run", func(w *runstore.Writes) { // more than a batch can guard
					for n := range 200 {
						w.Put(runstore.RecordKey("zzz-"+runID(n)[4:]), nil)
					}
				})
				c.advance(window + day)
				o := options(t)
				o.Archive = afterWrite(o.Archive, func(string) error { change(t, s); return nil })
				report := pass(t, s, o)
				if report.Purged != 0 || report.Kept[retain.KeptChanged] != 1 || !exists(t, s, "run") {
					t.Errorf("%+v", report)
				}
			})
		})
	}
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		endedRun(t, s, "run")
		c.advance(window + day)
		o := options(t)
		o.Archive = afterWrite(o.Archive, func(string) error {
			commit(t, s, "run", func(w *runstore.Writes) { w.Purge = true })
			return nil
		})
		if report := pass(t, s, o); report.Purged != 0 || report.Gone != 1 {
			t.Errorf("%+v", report)
		}
	})
}

// The guards of the purge alone refuse what is changed after the last look.
func TestChangeAfterTheLastLook(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		for id, change := range map[runstore.RunID]func(w *runstore.Writes){
			"event":  func(w *runstore.Writes) { w.Append("late", nil) },
			"record": func(w *runstore.Writes) { w.Put("record", nil) },
			"step":   func(w *runstore.Writes) { w.Put(crossrun.IntentKey, nil) },
			"status": func(w *runstore.Writes) { status := active; w.Status = &status },
			"lease":  nil,
		} {
			endedRun(t, s, id)
			c.advance(window + day)
			must(s.CreateRun(t.Context(), runstore.RunSpec{ID: admin.OperationsRun, Unlisted: true}))(t)
			n := 0
			commits := intercepted(s, func(ctx context.Context, op string, do func(context.Context) error) error {
				if op == "commit" {
					n++
				}
				switch { // the first commit records the intent, the second is the purge
				case op != "commit" || n != 2:
				case change != nil:
					commit(t, s, id, change)
				default:
					must(s.AcquireLease(ctx, runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "o", TTL: time.Minute}}))(t)
				}
				return do(ctx)
			})
			o := options(t)
			if report := pass(t, commits, o); report.Purged != 0 || report.Kept[retain.KeptChanged] != 1 || !exists(t, s, id) {
				t.Errorf("%s: %+v", id, report)
			}
			commit(t, s, id, func(w *runstore.Writes) { w.Purge = true })
			commit(t, s, admin.OperationsRun, func(w *runstore.Writes) { w.Purge = true })
		}
	})
}

// A purge whose reply is lost is counted right, applied or not, and one of unknown outcome is an error.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	lost := &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: errors.New("cut by the test")}
	for name, c := range map[string]struct {
		applied        bool
		lost           int // so many replies
		away           bool
		purged, failed int64
		remains        bool
	}{
		"applied":             {applied: true, lost: 1, purged: 1},
		"not applied":         {lost: 1, purged: 1},
		"never applied":       {lost: 99, failed: 1, remains: true},
		"applied, store away": {applied: true, lost: 1, away: true, failed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachEngine(t, func(t *testing.T, s runstore.RunStore, clock *clock) {
				endedRun(t, s, "run")
				clock.advance(window + day)
				must(s.CreateRun(t.Context(), runstore.RunSpec{ID: admin.OperationsRun, Unlisted: true}))(t)
				commits, away := 0, false
				cut := intercepted(s, func(ctx context.Context, op string, do func(context.Context) error) error {
					if away {
						return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: errors.New("away")}
					}
					if op != "commit" {
						return do(ctx)
					}
					if commits++; commits == 1 || commits > 1+c.lost { // the first is the intent
						return do(ctx)
					}
					if away = c.away; c.applied {
						must(0, do(ctx))(t)
					}
					return lost
				})
				report, err := retain.Pass(t.Context(), cut, options(t))
				if report.Purged != c.purged || report.Failed != c.failed || exists(t, s, "run") != c.remains {
					t.Errorf("%+v, %v", report, err)
				}
				if c.failed > 0 && (!errors.Is(err, runstore.ErrUnknownOutcome) || !errors.Is(err, retain.ErrFailed)) {
					t.Errorf("the error is %v", err)
				}
			})
		})
	}
}

// Passes at once purge each run once, and their archives are complete.
func TestPassesAtOnce(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		const runs, passes = 30, 3
		for n := range runs {
			endedRun(t, s, runID(n))
		}
		c.advance(window + day)
		o := options(t)
		var mu sync.Mutex
		var group sync.WaitGroup
		var purged, settled int64
		for range passes {
			group.Go(func() {
				report, err := retain.Pass(t.Context(), s, o)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				purged += report.Purged
				settled += report.Purged + report.Gone
			})
		}
		group.Wait()
		if names := files(t, o.Archive); purged != runs || len(names) != runs {
			t.Errorf("%d runs were purged, %d settled, %d files", purged, settled, len(names))
		}
		for _, name := range files(t, o.Archive) {
			must(archive.Check(t.Context(), must(archive.Open(filepath.Join(o.Archive.String(), name)))(t)))(t)
		}
	})
}

// An error with one run does not stop the others; a target that is away stops the pass soon. A limit of
// runs, a pause and the end of the context end a pass between two runs.
func TestErrorsAndLimits(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		const runs = 30
		for n := range runs {
			endedRun(t, s, runID(n))
		}
		c.advance(window + day)
		o := options(t)
		dir := o.Archive
		full := errors.New("disk full")
		o.Archive = failing{dir, full}
		if report, err := retain.Pass(t.Context(), s, o); !errors.Is(err, full) || report.Failed != 20 || report.Purged != 0 || len(files(t, dir)) != 0 {
			t.Fatalf("a target that is away: %+v, %v, %v", report, err, files(t, dir))
		}
		once := 0
		o.Archive = afterWrite(dir, func(string) error {
			if once++; once == 3 {
				return full
			}
			return nil
		})
		o.MaxRuns = 5
		report, err := retain.Pass(t.Context(), s, o)
		if !errors.Is(err, retain.ErrFailed) || report.Failed != 1 || report.Purged != 5 || !report.More {
			t.Fatalf("one failure: %+v, %v", report, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop, pauses := errors.New("stop"), 0
		o.MaxRuns, o.Archive = 0, dir
		o.Pause = func(context.Context) error {
			if pauses++; pauses == 4 {
				cancel(stop)
				return stop
			}
			return nil
		}
		if report, err = retain.Pass(ctx, s, o); !errors.Is(err, stop) || report.Purged != 3 {
			t.Fatalf("a pass that was ended: %+v, %v", report, err)
		}
		checkOperations(t, s, "purged 3 runs, 0 failed")
		o.Pause = nil
		if report = pass(t, s, o); report.Purged != runs-8 || len(files(t, dir)) != runs {
			t.Errorf("the rest: %+v, %d files", report, len(files(t, dir)))
		}
	})
}

// failing is a target whose objects break off.
type failing struct {
	retain.Target
	err error
}

func (f failing) Write(ctx context.Context, name string, write func(io.Writer) error) error {
	return f.Target.Write(ctx, name, func(w io.Writer) error {
		if err := write(w); err != nil {
			return err
		}
		return f.err
	})
}
