package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// here runs the command in this process, with an answer on its standard input.
func here(t *testing.T, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs strings.Builder
	root := newRoot()
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// Raising the epoch from the command line ends the grants that other processes hold, on
// every engine, and the list tells when and why.
func TestEpochCommand(t *testing.T) {
	t.Parallel()
	for engine, url := range engineURLs("epoch-command") {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			store, err := runstore.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			spec := runstore.RunSpec{ID: "run-1", Lease: &runstore.LeaseSpec{Owner: "a", Reactor: "agent", TTL: 30 * time.Minute}}
			created, err := store.CreateRun(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if out, _, err := here(t, "", "epoch", "list", "--store", url); err != nil || strings.Count(out, "\n") != 1 {
				t.Errorf("list in epoch 0: got %q, %v, want a header alone", out, err)
			}
			out, errs, err := here(t, "restored a backup\nyes\n", "epoch", "raise", "--store", url)
			if err != nil || !strings.HasPrefix(out, "epoch 1 began (2") || !strings.Contains(out, ": restored a backup)\n") ||
				!strings.Contains(errs, " is in epoch 0. ") {
				t.Errorf("raise: got %q, %q, %v", out, errs, err)
			}
			batch := runstore.NewBatch("run-1", created.Lease.Fence())
			batch.Append("late", nil)
			if _, err := store.Commit(t.Context(), batch); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("a commit under a grant of the former epoch: got %v, want ErrFenced", err)
			}
			out, errs, err = here(t, "", "epoch", "raise", "--store", url, "--yes", "--reason", "again", "--format", "json")
			var got raised
			if err != nil || json.Unmarshal([]byte(out), &got) != nil || got.Epoch != 2 || got.Was != 1 || got.Reason != "again" || got.Began.IsZero() ||
				got.FeedAbove != int64(runstore.Epoch(2).Floor()) || !strings.Contains(errs, "in epoch 1 (2") {
				t.Errorf("the second raise: got %q, %q, %v", out, errs, err)
			}
			out, errs, err = here(t, "", "epoch", "raise", "--store", url, "--yes", "--reason", "restored again", "--above", "4", "--format", "json")
			if err != nil || !strings.Contains(errs, "It is raised to 5, above 4;") || json.Unmarshal([]byte(out), &got) != nil || got.Epoch != 5 || got.Was != 2 {
				t.Errorf("raise above 4: got %q, %v", out, err)
			}
			out, _, err = here(t, "", "epoch", "list", "--store", url)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if err != nil || len(lines) != 6 || !strings.HasPrefix(lines[1], "1 ") || !strings.HasSuffix(lines[1], "restored a backup") || !strings.HasPrefix(lines[2], "2 ") {
				t.Errorf("list: got %q, %v", out, err)
			}
		})
	}
}

// plainStore has none of the capabilities.
type plainStore struct{ runstore.RunStore }

// stubbornStore fails to raise its epoch above up.
type stubbornStore struct {
	plainStore
	now, up runstore.Epoch
	err     error
}

func (s *stubbornStore) Epochs(context.Context) ([]runstore.EpochChange, error) { return nil, nil }

func (s *stubbornStore) RaiseEpoch(context.Context, string) (runstore.Epoch, error) {
	if s.now == s.up {
		return 0, s.err
	}
	s.now++
	return s.now, nil
}

// What was not raised, and what may have been, is said.
func TestEpochNotRaised(t *testing.T) {
	t.Parallel()
	register := func(scheme string, wrap func(runstore.RunStore) runstore.RunStore) {
		runstore.Register(scheme, func(ctx context.Context, _ runstore.URL) (runstore.RunStore, error) {
			s, err := runstore.Open(ctx, "memory:")
			return wrap(s), err
		})
	}
	register("plain", func(s runstore.RunStore) runstore.RunStore { return plainStore{s} })
	register("away", func(s runstore.RunStore) runstore.RunStore {
		return &stubbornStore{plainStore{s}, 0, 0, fmt.Errorf("%w: no route", runstore.ErrUnavailable)}
	})
	register("away-later", func(s runstore.RunStore) runstore.RunStore {
		return &stubbornStore{plainStore{s}, 0, 2, fmt.Errorf("%w: no route", runstore.ErrUnavailable)}
	})
	register("vague", func(s runstore.RunStore) runstore.RunStore {
		return &stubbornStore{plainStore{s}, 0, 0, errors.New("the connection broke")}
	})
	missing := filepath.Join(t.TempDir(), "missing.db")
	const url = "memory:epoch-not-raised"
	for _, c := range []struct{ args, input, says string }{
		{"raise --store plain:", "", "plain: has no epochs"},
		{"list --store plain:", "", "plain: has no epochs"},
		{"raise --store away: --reason r --yes", "", "the epoch was not raised"},
		{"raise --store away-later: --reason r --yes --above 5", "", "the epoch is 2 and was not raised further: repeat the command, and start no driver before it is above 5"},
		{"raise --store " + url + " --reason r --yes --above -1", "", "--above is -1; it is from 0 to 8190"},
		{"raise --store " + url + " --reason r --yes --above 8191", "", "--above is 8191; it is from 0 to 8190"},
		{"raise --store vague: --reason r --yes", "", "it is unknown whether the epoch was raised"},
		{"raise --store " + missing + " --reason r --yes", "", "there is no file"},
		{"raise --reason r --yes", "", "name a store with --store URL"},
		{"raise --store " + url, "", "say why with --reason"},
		{"raise --store " + url, "\n", "say why with --reason"},
		{"raise --store " + url, "because\n", "nobody answered yes"},
		{"raise --store " + url + " --reason r", "y\n", "nobody answered yes"},
		{"raise --store " + url + " --reason r", "no\n", "nobody answered yes"},
		{"raise --store " + url + " --yes --reason " + strings.Repeat("r", runstore.MaxOwner+1), "", "reason"},
		{"raise --store " + url + " --yes --reason r --format xml", "", "table or json"},
		{"list --store " + url + " --format xml", "", "table or json"},
		{"", "", "list or raise"},
	} {
		out, _, err := here(t, c.input, append([]string{"epoch"}, strings.Fields(c.args)...)...)
		if err == nil || out != "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v, want an error that says %q", c.args, out, err, c.says)
		}
	}
	if out, _, err := here(t, "", "epoch", "list", "--store", url, "--format", "json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("afterwards the store has the epochs %s, %v", out, err)
	}
	if out, _, err := here(t, "yes", "epoch", "raise", "--store", url, "--reason", "no line break at the end of the input"); err != nil || out == "" {
		t.Errorf("an answer without a line break: %q, %v", out, err)
	}
}
