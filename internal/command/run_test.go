package command

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
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
