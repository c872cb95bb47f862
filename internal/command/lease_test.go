package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// engineURLs returns for each engine a function that makes an empty store.
func engineURLs(memory string) map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"memory":   func(*testing.T) string { return "memory:" + memory },
		"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "tape.db") },
		"postgres": newStoreURL,
		"alloydb":  func(t *testing.T) string { return "alloydb" + strings.TrimPrefix(newStoreURL(t), "postgres") },
		"bigtable": func(t *testing.T) string {
			server, err := bigtableemulator.Start(t.Context(), nil)
			emulators.Require(t, err)
			t.Cleanup(func() { _ = server.Close() })
			return "bigtable://project/instance/table?emulator=" + server.Address()
		},
		"spanner": func(t *testing.T) string {
			server, err := spanneremulator.Start(t.Context(), nil)
			emulators.Require(t, err)
			t.Cleanup(func() { _ = server.Close() })
			return "spanner://project/instance/database?emulator=" + server.Address()
		},
	}
}

// openNew opens an empty store.
func openNew(t *testing.T, url string) runstore.RunStore {
	t.Helper()
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// exitStatus returns the exit status of the command for an error.
func exitStatus(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.status
	default:
		return 1
	}
}

// L8, on every engine and from the command line: a break raises the token and is journaled, the old
// holder's next write is refused, and of several breaks of one token exactly one wins. The audit
// finds nothing afterwards.
func TestLeaseBreakCommand(t *testing.T) {
	t.Parallel()
	for engine, url := range engineURLs("lease-break-command") {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			store := openNew(t, url)
			spec := runstore.RunSpec{ID: "run-1", Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent", TTL: 30 * time.Minute}}
			spec.Writes.Append("began", nil)
			spec.Writes.Put("record", nil)
			created, err := store.CreateRun(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			const breaks = 3
			outs, errs := make([]string, breaks), make([]error, breaks)
			var all sync.WaitGroup
			for i := range breaks {
				all.Go(func() {
					outs[i], _, errs[i] = here(t, "", "lease", "break", "run-1", "--if-token", "1", "--operator", fmt.Sprint("operator-", i), "--reason", "it loops", "--json", "--store", url)
				})
			}
			all.Wait()
			winner := slices.Index(errs, nil)
			for i, err := range errs {
				if i != winner && (exitStatus(err) != exitRefused || !strings.Contains(err.Error(), "the token has moved") || !strings.Contains(err.Error(), "the last token is 2")) {
					t.Errorf("break %d: got %q, %v, want a refusal that names token 2", i, outs[i], err)
				}
			}
			if winner < 0 {
				t.Fatalf("no break won: %v", errs)
			}
			var broken brokenView
			if err := json.Unmarshal([]byte(outs[winner]), &broken); err != nil || broken.Token != 2 || broken.Broken != 1 || broken.From != "agent-a" || !broken.Live || broken.Seq != 2 {
				t.Errorf("the winner: got %s, %v", outs[winner], err)
			}
			late := runstore.NewBatch("run-1", created.Lease.Fence())
			late.Append("late", nil)
			if _, err := store.Commit(t.Context(), late); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("a late write: got %v, want ErrFenced", err)
			}
			operator := fmt.Sprint("operator-", winner)
			journal, err := store.ReadJournal(t.Context(), "run-1", 1, 10)
			if err != nil || len(journal) != 2 || journal[1].Kind != lease.BreakKind || journal[1].Token != 2 || string(journal[1].Owner) != operator {
				t.Errorf("the journal: got %+v, %v", journal, err)
			}
			granted, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run-1", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", Reactor: "recovery", TTL: 30 * time.Minute}})
			if err != nil || granted.Token != 3 || granted.Former != runstore.EndRevoked && granted.Former != runstore.EndExpired {
				t.Fatalf("the successor: got %+v, %v", granted, err)
			}
			next := runstore.NewBatch("run-1", granted.Fence())
			next.Append("went on", nil)
			if _, err := store.Commit(t.Context(), next); err != nil {
				t.Error(err)
			}

			out, _, err := here(t, "", "lease", "show", "run-1", "--json", "--store", url)
			var shown leaseView
			if err != nil || json.Unmarshal([]byte(out), &shown) != nil || shown.State != "live" || shown.Owner != "agent-b" || shown.Reactor != "recovery" ||
				shown.Token != 3 || shown.Remaining <= 0 || shown.Remaining > 1800 || shown.Former != granted.Former.String() || shown.TTL != 1800 {
				t.Errorf("show: got %s, %v", out, err)
			}
			out, _, err = here(t, "", "lease", "terms", "run-1", "--format", "json", "--store", url)
			var terms []termView
			if err != nil || json.Unmarshal([]byte(out), &terms) != nil || len(terms) != 3 {
				t.Fatalf("terms: got %s, %v", out, err)
			}
			if v := terms[0]; v.Token != 1 || v.Owner != "agent-a" || v.Reactor != "agent" || v.Events != 1 || v.Records != 1 || v.End != "broken by "+operator+": it loops" {
				t.Errorf("the first term: %+v", v)
			}
			if v := terms[1]; v.Token != 2 || v.Owner != operator || v.Reactor != "operator" || v.FirstSeq != 2 || v.LastSeq != 2 || v.End != granted.Former.String() {
				t.Errorf("the second term: %+v", v)
			}
			if v := terms[2]; v.Token != 3 || v.Owner != "agent-b" || v.Events != 1 || v.End != "current" || v.Granted.IsZero() || v.Expires.IsZero() {
				t.Errorf("the third term: %+v", v)
			}
			out, errOut, err := here(t, "", "audit", "--store", url)
			if err != nil || !strings.HasSuffix(out, "\n0 corruptions, 0 warnings\n") || !strings.HasPrefix(out, "1 runs (0 unlisted), 3 events in 3 terms, 1 records, ") {
				t.Errorf("audit: got %q, %q, %v", out, errOut, err)
			}
		})
	}
}

// A break is refused, with a message that says what to do, and nothing is changed.
func TestLeaseBreakRefused(t *testing.T) {
	t.Parallel()
	url := "memory:lease-break-refused"
	store := openNew(t, url)
	for id, spec := range map[runstore.RunID]*runstore.LeaseSpec{"held": {Owner: "a", TTL: time.Minute}, "free": nil} {
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: spec}); err != nil {
			t.Fatal(err)
		}
	}
	const by = " --operator ada --reason r"
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"break held" + by, 1, "name the token to end with --if-token TOKEN"},
		{"break held --if-token 1 --whoever" + by, 1, "not both"},
		{"break held --if-token one" + by, 1, `--if-token "one" is not a token`},
		{"break held --if-token 0" + by, 1, "is not a token"},
		{"break held --if-token -1" + by, 1, "is not a token"},
		{"break held --if-token 9999.1" + by, 1, "is not a token"},
		{"break held --if-token 1.1" + by, 1, "was not broken: the run has had no token above 1; is --if-token 1.1 mistyped? tapestore lease show prints the token. Otherwise: break lease \"held\": store is behind"},
		{"break held --if-token 1 --reason r", 1, "--operator"},
		{"break held --if-token 1 --operator ada", 1, "--reason"},
		{"break held --if-token 1 --operator ada --reason " + strings.Repeat("r", 257), 1, "reason: 257 bytes, the limit is 256"},
		{"break held --if-token 1 --format xml" + by, 1, "table or json"},
		{"break held --if-token 9" + by, 1, "the run has had no token above 1; is --if-token 9 mistyped?"},
		{"break other --if-token 1" + by, 1, "not found"},
		{"break free --whoever" + by, exitRefused, "nothing was broken: break lease \"free\": the lease is free"},
		{"break" + by, 1, "give RUN_ID"},
		{"show other", 1, "not found"},
		{"terms other", 1, "not found"},
		{"terms held --from x", 1, `--from "x" is not a token`},
		{"terms held --limit 0", 1, "the least is 1"},
		{"show held --format xml", 1, "table or json"},
		{"", 1, "show RUN_ID, terms RUN_ID or break RUN_ID"},
	} {
		args := append([]string{"lease"}, strings.Fields(c.args)...)
		if c.args != "" {
			args = append(args, "--store", url)
		}
		out, _, err := here(t, "", args...)
		if err == nil || out != "" || !strings.Contains(err.Error(), c.says) || exitStatus(err) != c.status {
			t.Errorf("%s: got %q, %v and status %d, want %d and an error that says %q", c.args, out, err, exitStatus(err), c.status, c.says)
		}
	}
	if _, _, err := here(t, "", "lease", "break", "held", "--whoever", "--operator", "ada", "--reason", "r"); err == nil || !strings.Contains(err.Error(), "--store") {
		t.Errorf("without a store: %v", err)
	}
	head, err := store.GetRun(t.Context(), "held")
	if err != nil || head.Token != 1 || head.Holder.Owner != "a" {
		t.Errorf("a refused break changed the run: %+v, %v", head, err)
	}
	out, _, err := here(t, "", "lease", "break", "held", "--whoever", "--quiet", "--operator", "ada", "--reason", "it hangs", "--store", url)
	if want := "the lease of a under token 1, which was live, has ended\nthe token is now 2 and the lease is free; the record \"lease/break\" says why\n"; err != nil || out != want {
		t.Errorf("--whoever --quiet: got %q, %v", out, err)
	}
	out, _, err = here(t, "", "lease", "show", "held", "--store", url)
	if err != nil || !strings.Contains(out, "lease             free\n") || !strings.Contains(out, "token             2\n") {
		t.Errorf("show: got %s, %v", out, err)
	}
	out, _, err = here(t, "", "lease", "terms", "held", "--store", url)
	if err != nil || !strings.Contains(out, "broken by ada: it hangs") || strings.Count(out, "\n") != 3 {
		t.Errorf("terms: got %s, %v", out, err)
	}
}

func init() {
	// The stores of memory, without what is optional.
	runstore.Register("plainmemory", func(ctx context.Context, u runstore.URL) (runstore.RunStore, error) {
		s, err := runstore.Open(ctx, "memory:"+u.Address)
		return struct{ runstore.RunStore }{s}, err
	})
}

// The terms of a run: those that wrote events, records or nothing, through an epoch, in pages. A store
// that lists terms shows all; of another one the stamps show those that wrote.
func TestLeaseTerms(t *testing.T) {
	t.Parallel()
	t.Run("listed", func(t *testing.T) {
		t.Parallel()
		leaseTerms(t, "memory:", "terms", []string{
			"1 a 0/0 0-0 preempted: the test",
			"2 b 0/0 0-0 preempted: the test",
			"3 c 2/0 1-2 preempted: the test",
			"4 d 0/1 0-0 preempted: the test",
			"5 e 0/0 0-0 preempted: the test",
			"6 f 1/0 4-4 revoked",
			"1.1 g 0/0 0-0 preempted: the test",
			"1.2 h 1/0 5-5 preempted: the test",
			"1.3 i 0/0 0-0 preempted: the test",
			"1.4 j 0/0 0-0 current",
		})
	})
	t.Run("not listed", func(t *testing.T) {
		t.Parallel()
		leaseTerms(t, "plainmemory:", "no-terms", []string{
			"1-2  0/0 0-0 wrote nothing",
			"3 c 2/0 1-2 ",
			"4  0/1 0-0 ",
			"5  0/0 0-0 wrote nothing",
			"6 f 1/0 4-4 ",
			"1.1  0/0 0-0 wrote nothing",
			"1.2 h 1/0 5-5 ",
			"1.3 i 0/0 0-0 preempted: the test",
			"1.4 j 0/0 0-0 current",
		})
	})
}

func leaseTerms(t *testing.T, scheme, name string, want []string) {
	store, url := openNew(t, "memory:"+name), scheme+name
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	term := func(owner runstore.Owner, write func(b *runstore.Batch)) {
		t.Helper()
		granted, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: time.Minute}, Preempt: "the test"})
		if err != nil {
			t.Fatal(err)
		}
		if write == nil {
			return
		}
		b := runstore.NewBatch("run", granted.Fence())
		write(&b)
		if _, err := store.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	event := func(b *runstore.Batch) { b.Append("event", nil) }
	term("a", nil)
	term("b", nil)
	term("c", func(b *runstore.Batch) { event(b); event(b) })
	unfenced := runstore.NewBatch("run", runstore.Unguarded("test"))
	unfenced.Append("signal", nil)
	if _, err := store.Commit(t.Context(), unfenced); err != nil {
		t.Fatal(err)
	}
	term("d", func(b *runstore.Batch) { b.Put("record", nil) })
	term("e", nil)
	term("f", event)
	epochs, _ := runstore.As[runstore.EpochManager](store)
	if _, err := epochs.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	term("g", nil)
	term("h", event)
	term("i", nil)
	term("j", nil)
	for _, limit := range []int{100, 10, 9, 4, 1} {
		var got []string
		from := ""
		for range 20 {
			args := []string{"lease", "terms", "run", "--json", "--store", url, "--limit", fmt.Sprint(limit)}
			if from != "" {
				args = append(args, "--from", from)
			}
			out, errs, err := here(t, "", args...)
			var page []termView
			if err != nil || json.Unmarshal([]byte(out), &page) != nil || len(page) > limit {
				t.Fatalf("got %s, %v", out, err)
			}
			for _, v := range page {
				token := v.TokenText
				if v.ToText != "" {
					token += "-" + v.ToText
				}
				if listed := scheme == "memory:"; listed && (v.Granted.IsZero() || v.Expires.IsZero() || v.Ended.IsZero() != (v.End == "current")) {
					t.Errorf("the times of token %s: %+v", token, v)
				}
				got = append(got, fmt.Sprintf("%s %s %d/%d %d-%d %s", token, v.Owner, v.Events, v.Records, v.FirstSeq, v.LastSeq, v.End))
			}
			if errs == "" {
				break
			}
			from = strings.TrimSpace(errs[strings.LastIndex(errs, " "):])
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: got\n%s\nwant\n%s", limit, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	out, _, err := here(t, "", "lease", "terms", "run", "--store", url)
	if err != nil || strings.Contains(out, "1 to 2 ") != (scheme != "memory:") || !strings.Contains(out, "1099511627780 (1.4) ") {
		t.Errorf("as a table: %s, %v", out, err)
	}
}

// A break of a run of Tape leaves nothing that Tape's readers stumble over, journaled or quiet: a
// driver resumes the run, and it ends and is compacted like any other.
func TestLeaseBreakOfTape(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprint("quiet ", quiet), func(t *testing.T) {
			t.Parallel()
			url := fmt.Sprint("memory:lease-break-of-tape-", quiet)
			store := openNew(t, url)
			tapes := tape.New(store, nil)
			key := tape.RunKey{App: "app", User: "user", Session: "session", Invocation: "invocation"}
			_, err := tapes.BeginRun(t.Context(), tape.BeginRunRequest{Key: key, Owner: "agent-a"})
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"lease", "break", string(key.ID()), "--if-token", "1", "--operator", "ada", "--reason", "it loops", "--store", url}
			if quiet {
				args = append(args, "--quiet")
			}
			if out, _, err := here(t, "", args...); err != nil {
				t.Fatalf("break: %q, %v", out, err)
			}
			entries, err := tapes.ReadJournal(t.Context(), key.ID(), 1, 10)
			if err != nil {
				t.Fatal(err)
			}
			kinds := ""
			for _, e := range entries {
				kinds += e.Kind + " " + e.Subject + "\n"
			}
			want := "run /tape/run/running/app/user/session/" + string(key.ID()) + "\n"
			if !quiet {
				want += "lease /tape/lease\n"
			}
			if kinds != want {
				t.Errorf("the journal is\n%swant\n%s", kinds, want)
			}
			feed, err := store.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
			shown := 0
			for _, e := range feed {
				if _, ok := tape.FeedEntryOf(e); ok {
					shown++
				}
			}
			if err != nil || shown != 1 {
				t.Errorf("Tape's feed shows %d entries, error %v, want 1", shown, err)
			}
			_, granted, err := tapes.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: key.ID(), Owner: "agent-b", Takeover: tape.TakeNone})
			if err != nil || granted.Token != 3 {
				t.Fatalf("resume: got %+v, %v", granted, err)
			}
			if _, err := tapes.EndRun(t.Context(), tape.EndRunRequest{Run: key.ID(), Status: tape.RunTerminal, Fence: granted.Fence()}); err != nil {
				t.Errorf("end: %v", err)
			}
			if _, err := tapes.CompactRun(t.Context(), key.ID(), runstore.Fence{}); err != nil {
				t.Errorf("compact: %v", err)
			}
			for _, command := range []string{"run", "journal"} {
				if _, _, err := here(t, "", "inspect", command, string(key.ID()), "--store", url); err != nil {
					t.Errorf("inspect %s: %v", command, err)
				}
			}
			if out, _, err := here(t, "", "audit", "--store", url); err != nil {
				t.Errorf("audit: %s, %v", out, err)
			}
		})
	}
}
