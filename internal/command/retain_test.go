package command

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// endedTapeRun makes a run of Tape that has ended, with a decision and an effect; an effect that is not
// complete keeps it.
func endedTapeRun(t *testing.T, s runstore.RunStore, name string, complete bool) runstore.RunID {
	t.Helper()
	tp := tape.New(s, nil)
	begun, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: name}, Owner: "agent", TTL: runstore.MinTTL})
	if err != nil {
		t.Fatal(err)
	}
	f := begun.Lease.Fence()
	if _, err := tp.RecordDecision(t.Context(), begun.ID, tape.Decision{Index: 1}, f); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: begun.ID, CustomKey: "k", Fence: f}); err != nil {
		t.Fatal(err)
	}
	if complete {
		if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: begun.ID, Key: "k", Status: tape.EffectConfirmed, Fence: f}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: begun.ID, Status: tape.RunTerminal, Fence: f}); err != nil {
		t.Fatal(err)
	}
	return begun.ID
}

// endedTask makes a reaction with a completed task.
func endedTask(t *testing.T, s runstore.RunStore) {
	t.Helper()
	tp := tape.New(s, nil)
	r, err := tp.RegisterReaction(t.Context(), tape.Reaction{ID: "r", Handler: tape.HandlerTask}, false)
	if err != nil {
		t.Fatal(err)
	}
	shard, err := tp.OpenShard(t.Context(), r, 0)
	if err != nil {
		t.Fatal(err)
	}
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: shard, LeaseSpec: runstore.LeaseSpec{Owner: "m", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	at, err := tp.ShardCursor(t.Context(), shard)
	if err == nil {
		_, err = tp.Advance(t.Context(), granted.Fence(), r, at, []tape.Entry{{Run: "x", Position: 1, Subject: "/s", Payload: "{}"}}, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := tp.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: "r", Shard: -1, Owner: "w"})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %d, %v", len(claimed), err)
	}
	if _, err := tp.CompleteTask(t.Context(), claimed[0].ID, "w"); err != nil {
		t.Fatal(err)
	}
}

// On every engine an ended run is archived, purged and restored into the same store without a new epoch,
// and a run with an open effect is kept. The audit finds nothing.
func TestRetainOnEveryEngine(t *testing.T) {
	t.Parallel()
	for engine, url := range adminEngines(t, "retain-engines") {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			store := openNew(t, url)
			endedTask(t, store)
			settled, open := endedTapeRun(t, store, "settled", true), endedTapeRun(t, store, "open", false)
			before, err := store.GetRun(t.Context(), settled)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			var object string
			r := &retention{journals: time.Millisecond, tasks: time.Millisecond, archive: dir, decided: func(d retain.Decision) { object = d.Object }}
			if err := r.open(t.Context()); err != nil {
				t.Fatal(err)
			}
			var purged, archived, events, tasks int64
			for queued := int64(0); purged+queued+tasks < 3; { // until the leases of 1 ms are older than the window
				done, err := r.pass(t.Context(), store)
				if err != nil {
					t.Fatal(err)
				}
				purged, archived, events = purged+done.runs.Purged, archived+done.runs.Archived, events+done.runs.Events
				tasks += done.tasks.Done
				queued = done.runs.Kept[retain.KeptQueued]
			}
			if left, err := tape.New(store, nil).ListTasks(t.Context(), "r", tape.TaskDone, 0); err != nil || tasks != 1 || len(left) != 0 {
				t.Errorf("%d tasks were deleted, %d are left, %v", tasks, len(left), err)
			}
			if purged != 1 || archived != 1 || events != int64(before.LastSeq) {
				t.Errorf("%d runs were purged with %d events, %d were archived", purged, events, archived)
			}
			if _, err := store.GetRun(t.Context(), settled); !errors.Is(err, runstore.ErrNotFound) {
				t.Errorf("the purged run: %v", err)
			}
			if _, err := store.GetRun(t.Context(), open); err != nil {
				t.Errorf("the run with an open effect: %v", err)
			}
			file := filepath.Join(dir, filepath.FromSlash(object))
			if _, errs, err := here(t, "", "import", "--restore", "--store", url, "--from", file); err == nil || !strings.Contains(err.Error(), "live reactions") {
				t.Fatalf("import --restore with a live reaction: %s, %v", errs, err)
			}
			if _, errs, err := here(t, "", "import", "--restore", "--replay-feed", "--store", url, "--from", file); err != nil || !strings.HasPrefix(errs, "imported 1 runs") {
				t.Fatalf("import --restore: %s, %v", errs, err)
			}
			after, err := store.GetRun(t.Context(), settled)
			if err != nil || after.Token <= before.Token || after.Token.Epoch() != before.Token.Epoch() || after.LastSeq != before.LastSeq ||
				after.Status != before.Status || string(after.Summary.Value) != string(before.Summary.Value) || !after.CreatedAt.Equal(before.CreatedAt) {
				t.Errorf("restored %+v, %v, want %+v", after, err, before)
			}
			if out, _, err := here(t, "", "audit", "--store", url); err != nil {
				t.Errorf("the audit: %s, %v", out, err)
			}
		})
	}
}

// The command prints what it does, refuses windows that are mistakes, and has its exit statuses.
func TestRetainCommand(t *testing.T) {
	t.Parallel()
	const url = "memory:retain-command"
	store := openNew(t, url)
	endedTapeRun(t, store, "young", true)
	dir := t.TempDir()
	full := []string{"retain", "--store", url, "--journals", "90d", "--feed", "30d", "--tasks", "7d", "--archive", dir}
	out, _, err := here(t, "", full...)
	if err != nil || !strings.HasPrefix(out, "purged 0 runs, 0 records, 0 events; 0 archives were written, 0 were there; 0 runs failed") || !strings.Contains(out, "\ndeleted 0 tasks and 0 dead ones\n") {
		t.Errorf("%q, %v", out, err)
	}
	out, _, err = here(t, "", append(full, "--dry-run", "--format", "json")...)
	var line struct{ Report retainView }
	if err != nil || json.Unmarshal([]byte(out), &line) != nil || !line.Report.DryRun || line.Report.Purged != 0 {
		t.Errorf("%q, %v", out, err)
	}
	for args, want := range map[string]string{
		"":                                   "say what to retain",
		"--feed 30d":                         "--feed does nothing without journals",
		"--journals 90":                      `--journals is "90"; it is a duration`,
		"--journals 90m --archive none":      "--journals is 90m; the least is 1d",
		"--journals 90d":                     "--journals needs --archive",
		"--journals 9d --feed 2w":            "--feed is 2w, longer than journals, 9d",
		"--tasks 7d --archive x":             "--archive does nothing without journals",
		"--tasks -7d":                        "--tasks is",
		"--dead-tasks 99999999999999999999d": "--dead-tasks is",
		"--journals 90d --archive ftp://b":   "no driver for the scheme",
		"--tasks 7d --format xml":            "--format",
		"--tasks 7d --max-runs -1":           "--max-runs",
		"--tasks 7d --pace -1":               "--pace",
	} {
		if _, _, err := here(t, "", append([]string{"retain", "--store", url}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	if _, _, err := here(t, "", "retain", "--tasks", "7d"); err == nil || !strings.Contains(err.Error(), "--store") {
		t.Errorf("without a store: %v", err)
	}
	if _, _, err := here(t, "", "import", "--store", url, "--from", dir, "--restore", "--raise-epoch"); err == nil || !strings.Contains(err.Error(), "--restore") {
		t.Errorf("--restore with --raise-epoch: %v", err)
	}
}

// What is printed for each run, and the counts, as text and as JSON.
func TestRetainOutput(t *testing.T) {
	t.Parallel()
	decide := func(format string, dryRun, each bool) (string, string, error) {
		cmd := newRetainCommand()
		var out, errs strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		o := newRetainOutput(cmd, format, &retention{dryRun: dryRun}, each, func() {})
		o.decided(retain.Decision{Run: "a\x1b", Ended: time.Unix(0, 0).UTC(), Events: 2, Records: 3, Object: "x.jsonl", Purged: !dryRun})
		o.decided(retain.Decision{Run: "b", Err: errors.New(`run "b": disk full`)})
		r := retained{trimmed: true}
		r.runs.Purged, r.runs.Failed, r.runs.Kept = 1, 1, map[retain.Reason]int64{retain.KeptYoung: 4, retain.KeptActive: 5}
		err := o.end(r, errors.New("failed"))
		return out.String(), errs.String(), err
	}
	out, errs, err := decide("table", true, true)
	if err != nil || errs != "run \"b\": disk full\n" || !strings.HasPrefix(out, `would purge "a\x1b": 2 events, 3 records, ended 1970-01-01 00:00:00.000, archived as x.jsonl`+"\n") ||
		!strings.Contains(out, "would purge 1 runs") || !strings.Contains(out, "1 runs failed; kept: 4 young, 5 active\n") {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	if out, _, _ = decide("table", false, false); strings.Contains(out, "a\\x1b") || !strings.HasPrefix(out, "purged 1 runs") {
		t.Errorf("%q", out)
	}
	out, errs, err = decide("json", false, false)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || errs != "" || len(lines) != 3 || !strings.Contains(lines[0], `"purged":true`) || !strings.Contains(lines[1], "disk full") ||
		!strings.Contains(lines[2], `"kept":{"active":5,"young":4}`) || !strings.Contains(lines[2], `"error":"failed"`) {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
}

// serve refuses settings of retention that do not fit together, and names the setting.
func TestServeRetainSettings(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--retain-journals=90d --retain-feed=30d --retain-archive=none --retain-tasks=7d": "",
		"--retain-tasks=7d":                          "",
		"--retain-journals=90d":                      "--retain-journals needs --retain-archive",
		"--retain-journals=1h --retain-archive=none": "--retain-journals is 1h; the least is 1d",
		"--retain-feed=30d":                          "--retain-feed does nothing without journals",
		"--retain-journals=9d --retain-archive=none --retain-feed=30d": "--retain-feed is 30d, longer than journals, 9d",
		"--retain-archive=none": "--retain-archive does nothing without journals",
		"--retain-pace=-1":      "--retain-pace is",
	} {
		_, s := resolved(t, "", nil, strings.Fields(args)...)
		err := errors.Join(s.faults...)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || len(s.faults) != 1) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	// Settings may come from different places.
	cfg, s := resolved(t, configFile(t, "serve:\n  retain_archive: 'gs://bucket?key=hidden'\n"), map[string]string{"TAPE_RETAIN_JOURNALS": "90d"}, "--retain-pace=0")
	if len(s.faults) > 0 || cfg.retention.journals != 90*24*time.Hour || cfg.retention.archive != "gs://bucket?key=hidden" || cfg.retention.pace != 0 {
		t.Errorf("%v, %+v", s.faults, cfg.retention)
	}
	for _, row := range s.rows(cfg) {
		if row[0] == "serve.retain_archive" && row[1] != "gs://bucket" {
			t.Errorf("the archive is shown as %v", row[1])
		}
	}
}

// A server makes a pass a day, and ends with its context.
func TestServeRetains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		defer func() { _ = store.Close() }()
		run := endedTapeRun(t, store, "a", true)
		r := &retention{journals: 48 * time.Hour, archive: dir, pace: 10}
		if err := r.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := r.serve(ctx, store, "memory:", &serveTelemetry{log: slog.New(slog.DiscardHandler)})
		time.Sleep(46 * time.Hour)
		synctest.Wait()
		if _, err := store.GetRun(t.Context(), run); err != nil {
			t.Errorf("after two days: %v", err)
		}
		time.Sleep(30 * time.Hour)
		synctest.Wait()
		if _, err := store.GetRun(t.Context(), run); !errors.Is(err, runstore.ErrNotFound) {
			t.Errorf("after three days: %v", err)
		}
		cancel()
		<-ended
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the archive has %d entries, %v", len(entries), err)
		}
		<-(*retention)(nil).serve(t.Context(), store, "", nil) // without settings it ends at once
	})
}
