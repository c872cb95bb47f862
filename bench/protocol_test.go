package bench_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore"
)

func TestProtocolReportsWhatAStoreLoses(t *testing.T) {
	t.Parallel()
	report := run(t, "protocol", func(s runstore.RunStore) runstore.RunStore { return s })
	const want = 19 + 1 + 4
	if len(report.Faults) > 0 || len(report.Results) != want {
		t.Errorf("%d results, want %d; faults: %s", len(report.Results), want, faults(report))
	}
	for _, r := range report.Results {
		if m, ok := r.Metric("store calls per RPC"); r.Group == "RPCs" && (!ok || m.Value() <= 0) {
			t.Errorf("%s: store calls per RPC: %v", r.Side, m.Samples)
		}
	}
	checkMatching(t, report)
	checkClaims(t, report)
	for name, c := range map[string]struct {
		store func(runstore.RunStore) runstore.RunStore
		want  []string
	}{
		"an entry of a journal, and tasks": {
			func(s runstore.RunStore) runstore.RunStore {
				return forgetful{RunStore: lossy{RunStore: s, journal: true}, tasks: true}
			},
			[]string{"RecordDecision, 1 clients: reading back: entry 2 of run", "was passed over: it has no task", "claims, 1 server, 4 workers: reading back: ", " tasks were made, and "},
		},
		"claims": {
			func(s runstore.RunStore) runstore.RunStore { return forgetful{RunStore: s, claims: true} },
			[]string{"was handled more than once", "claims, 1 server, 1 workers: task ", "claims, 2 servers, 4 workers: task "},
		},
		"completions": {
			func(s runstore.RunStore) runstore.RunStore { return forgetful{RunStore: s, completions: true} },
			[]string{"claims, 1 server, 4 workers: reading back: ", "claims, 2 servers, 4 workers: reading back: ", " tasks were completed, and 0 are stored as done"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := run(t, "protocol", c.store)
			for _, want := range c.want {
				if !strings.Contains(faults(report), want) {
					t.Errorf("no fault says %q; there are %s", want, faults(report))
				}
			}
		})
	}
}

// checkMatching checks that the entries were counted, and that a server was killed while it matched
// them.
func checkMatching(t *testing.T, report bench.Report) {
	t.Helper()
	all := grouped(report, "matching")
	if len(all) != 1 {
		t.Fatalf("%d results of matching, want 1", len(all))
	}
	r := all[0]
	kills, _ := r.Metric("servers killed")
	calls, _ := r.Metric("store calls per entry")
	if r.Params["entries"] != "400" || !strings.HasPrefix(r.Verified, "400 entries, each handled once") || kills.Value() < 1 || calls.Value() <= 0 {
		t.Errorf("matching: %+v, want 400 entries and a killed server", r)
	}
}

// checkClaims checks that each claim took at least one commit, and exactly one where no other
// worker competed.
func checkClaims(t *testing.T, report bench.Report) {
	t.Helper()
	all := grouped(report, "claims")
	if len(all) != 4 {
		t.Fatalf("%d results of claims, want those of 1 and 4 workers, over 1 and 2 servers", len(all))
	}
	for _, r := range all {
		attempts, _ := r.Metric("attempts per claim")
		alone := r.Side == "1 server" || r.Params["workers"] == "1"
		var made, done int
		_, err := fmt.Sscanf(r.Verified, "%d tasks, each claimed once, of which %d were completed", &made, &done)
		if attempts.Value() < 1 || alone && attempts.Value() != 1 || err != nil || done < 1 || made-done > bench.Smoke().Tasks {
			t.Errorf("claims: %+v, want one attempt per claim or more, and one without other servers; and no more than %d open tasks", r, bench.Smoke().Tasks)
		}
	}
}

func grouped(report bench.Report, group string) (all []bench.Result) {
	for _, r := range report.Results {
		if r.Group == group {
			all = append(all, r)
		}
	}
	return all
}

// forgetful is a store that acknowledges and loses one kind of task write: those that a matcher
// makes with its cursor, claims, or completions.
type forgetful struct {
	runstore.RunStore
	tasks, claims, completions bool
}

func (s forgetful) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	first, records := -1, len(b.Records)
	for i, w := range b.Records {
		switch {
		case first < 0 && strings.HasPrefix(string(w.Key), "task/"):
			first = i
		case s.completions && strings.HasPrefix(string(w.Key), "done/"):
			b.Records[i].Key = "lost/" + w.Key
		}
	}
	switch fenced := !b.Guards().Fence.IsZero(); {
	case first < 0:
	case s.tasks && fenced:
		b.Records = b.Records[:len(b.Records)-1]
	case s.claims && !fenced:
		b.Records = nil
	}
	committed, err := s.RunStore.Commit(ctx, b)
	committed.Versions = append(committed.Versions, make([]runstore.Version, records-len(b.Records))...)
	return committed, err
}
