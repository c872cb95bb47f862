package tape_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// reactionRun returns the id of the run of a shard.
func reactionRun(id string, shard int32) runstore.RunID {
	text, _ := json.Marshal([]string{id})
	sum := sha256.Sum256(text)
	return runstore.RunID(fmt.Sprintf("reaction/%s/%d", hex.EncodeToString(sum[:]), shard))
}

func leaseOf(t *testing.T, s runstore.RunStore, id runstore.RunID) runstore.Fence {
	t.Helper()
	g, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "m", Reactor: "matcher", TTL: time.Minute, Grant: runstore.NewGrantID()}, Preempt: "a test",
	})
	if err != nil {
		t.Fatal(err)
	}
	return g.Fence()
}

// shard is an open shard 0 of a reaction.
type shard struct {
	tape.Reaction
	t  *testing.T
	tp *tape.Tape
	f  runstore.Fence
	at tape.Cursor
}

func openShard(t *testing.T, tp *tape.Tape, r tape.Reaction) *shard {
	t.Helper()
	if r.Handler == 0 {
		r.Handler = tape.HandlerTask
	}
	stored := registerReaction(t, tp, r)
	id, err := tp.OpenShard(t.Context(), stored, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tp.ShardCursor(t.Context(), id)
	if err != nil || c.Position != stored.Start {
		t.Fatalf("ShardCursor = %+v, %v, want %d", c, err, stored.Start)
	}
	return &shard{stored, t, tp, leaseOf(t, tp.Store(), id), c}
}

// matches returns entries of one run at positions, each with its own subject.
func matches(positions ...runstore.Position) (all []tape.Entry) {
	for _, p := range positions {
		all = append(all, match(p, fmt.Sprintf("/s/%d", p)))
	}
	return all
}

func match(p runstore.Position, subject string) tape.Entry {
	return tape.Entry{Run: "run-1", Position: p, Subject: subject, Payload: fmt.Sprintf(`{"n":%d}`, p)}
}

// advance advances the shard by one commit.
func (s *shard) advance(to runstore.Position, all ...tape.Entry) {
	s.t.Helper()
	next, err := s.tp.Advance(s.t.Context(), s.f, s.Reaction, s.at, all, to)
	if err != nil {
		s.t.Fatalf("Advance: %v", err)
	}
	s.at = next
}

// listTasks returns the sources and statuses of tasks, the newest first.
func listTasks(t *testing.T, tp *tape.Tape, reaction string, status tape.TaskStatus) string {
	t.Helper()
	all, err := tp.ListTasks(t.Context(), reaction, status, 0)
	if err != nil {
		t.Fatalf("ListTasks: %v", err)
	}
	var text []string
	for _, k := range all {
		text = append(text, fmt.Sprintf("%d:%d", k.Source, k.Status))
	}
	return strings.Join(text, " ")
}

func TestAdvance(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	s.advance(5)
	if s.at.Position != 5 || s.at.Version != 2 {
		t.Errorf("cursor = %+v", s.at)
	}
	s.advance(9, matches(3, 5, 7, 9)...) // the first two were handled before
	if got := listTasks(t, tp, "r", 0); got != "9:1 7:1" {
		t.Errorf("tasks: %s", got)
	}
	s.advance(9, matches(9)...) // nothing to do
	if c, err := tp.ShardCursor(t.Context(), s.f.Run()); err != nil || c != s.at || c != (tape.Cursor{Position: 9, Version: 3}) {
		t.Errorf("ShardCursor = %+v, %v, want %+v", c, err, s.at)
	}
	all, _ := tp.ListTasks(t.Context(), "r", 0, 0)
	k := all[0]
	if k.Reaction != "r" || k.Shard != 0 || k.SourceRun != "run-1" || k.Subject != "/s/9" || k.Payload != `{"n":9}` || k.Attempts != 0 ||
		!k.NextAttempt.IsZero() || k.CreatedAt.IsZero() || !k.LeaseExpires.IsZero() {
		t.Errorf("task = %+v", k)
	}
	if again, err := tp.OpenShard(t.Context(), s.Reaction, 0); err != nil || again != s.f.Run() {
		t.Errorf("OpenShard again = %q, %v", again, err)
	}
	if c, _ := tp.ShardCursor(t.Context(), s.f.Run()); c != s.at {
		t.Errorf("a shard that is opened again is at %+v", c)
	}
	// A reaction that was deregistered and revived goes on where it was.
	if _, err := tp.DeregisterReaction(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	registerReaction(t, tp, s.Reaction)
	if c, _ := tp.ShardCursor(t.Context(), s.f.Run()); c != s.at {
		t.Errorf("the shard of a revived reaction is at %+v", c)
	}
}

// Only matches of TASK and PUBLISH create tasks.
func TestHandlers(t *testing.T) {
	t.Parallel()
	for kind, want := range map[tape.HandlerKind]string{1: "", 2: "1:1", 3: "1:1", 4: ""} {
		tp, _, _ := newTape(t)
		s := openShard(t, tp, tape.Reaction{ID: "r", Handler: kind})
		s.advance(1, matches(1)...)
		if got := listTasks(t, tp, "r", 0); got != want || s.at.Position != 1 {
			t.Errorf("kind %d: tasks %q at %d, want %q", kind, got, s.at.Position, want)
		}
	}
}

func TestAdvanceRefusals(t *testing.T) {
	t.Parallel()
	tp, store, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", Shards: 2})
	other := openShard(t, tp, tape.Reaction{ID: "other"})
	in, out := tape.Entry{Run: "a"}, tape.Entry{Run: "b"}
	if s.ShardOf(in.Run) != 0 {
		in, out = out, in
	}
	at := func(e tape.Entry, p runstore.Position) tape.Entry { e.Position = p; return e }
	before := historyOf(t, store, s.f.Run())
	for what, c := range map[string]struct {
		f       runstore.Fence
		at      tape.Cursor
		matches []tape.Entry
		to      runstore.Position
		want    error
	}{
		"no fence":            {at: s.at, to: 9, want: runstore.ErrInvalid},
		"another's fence":     {f: other.f, at: s.at, to: 9, want: runstore.ErrInvalid},
		"backwards":           {f: s.f, at: tape.Cursor{Position: 9, Version: 1}, to: 8, want: runstore.ErrInvalid},
		"beyond all":          {f: s.f, at: s.at, to: runstore.MaxPosition + 1, want: runstore.ErrInvalid},
		"another shard":       {f: s.f, at: s.at, to: 9, matches: []tape.Entry{at(out, 1)}, want: runstore.ErrInvalid},
		"no position":         {f: s.f, at: s.at, to: 9, matches: []tape.Entry{in}, want: runstore.ErrInvalid},
		"out of order":        {f: s.f, at: s.at, to: 9, matches: []tape.Entry{at(in, 2), at(in, 2)}, want: runstore.ErrInvalid},
		"behind the position": {f: s.f, at: s.at, to: 9, matches: []tape.Entry{at(in, 10)}, want: runstore.ErrInvalid},
		"a cursor that moved": {f: s.f, at: tape.Cursor{Version: 7}, to: 9, matches: []tape.Entry{at(in, 1)}, want: runstore.ErrConflict},
	} {
		if c2, err := tp.Advance(t.Context(), c.f, s.Reaction, c.at, c.matches, c.to); !errors.Is(err, c.want) || c2 != c.at {
			t.Errorf("%s: %+v, %v, want %v", what, c2, err, c.want)
		}
	}
	zombie := s.f
	s.f = leaseOf(t, store, s.f.Run())
	if _, err := tp.Advance(t.Context(), zombie, s.Reaction, s.at, []tape.Entry{at(in, 1)}, 9); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a zombie's Advance = %v", err)
	}
	after := historyOf(t, store, s.f.Run())
	if fmt.Sprint(after.records) != fmt.Sprint(before.records) || fmt.Sprint(after.events) != fmt.Sprint(before.events) {
		t.Errorf("refused calls changed %v to %v", before.records, after.records)
	}
	s.advance(9, at(in, 1))
	if listTasks(t, tp, "r", 0) != "1:1" {
		t.Errorf("tasks: %s", listTasks(t, tp, "r", 0))
	}
}

// What does not fit into one commit is left for the next.
func TestAdvanceInPieces(t *testing.T) {
	t.Parallel()
	large := func(n int) (all []tape.Entry) {
		for p := range n {
			e := match(runstore.Position(p+1), "/s")
			e.Payload = `"` + strings.Repeat("x", 1<<20-2) + `"`
			all = append(all, e)
		}
		return all
	}
	var many []runstore.Position
	for p := range 600 {
		many = append(many, runstore.Position(2*p+1))
	}
	for _, c := range []struct {
		matches []tape.Entry
		to      runstore.Position
		want    string
	}{{matches(many...), 2000, "[509 1019 2000]"}, {large(20), 30, "[7 14 30]"}} {
		tp, _, _ := newTape(t)
		s := openShard(t, tp, tape.Reaction{ID: "r"})
		var ends []runstore.Position
		for s.at.Position < c.to {
			s.advance(c.to, c.matches...)
			ends = append(ends, s.at.Position)
		}
		if fmt.Sprint(ends) != c.want {
			t.Errorf("the cursor moved to %v, want %s", ends, c.want)
		}
		claimAllTasks(t, tp, "r", c.matches)
	}
}

// claimAllTasks claims the tasks of a reaction and checks that there is one for each match, in order.
func claimAllTasks(t *testing.T, tp *tape.Tape, reaction string, matches []tape.Entry) {
	t.Helper()
	var got []tape.Task
	for {
		claimed, err := tp.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: reaction, Shard: -1, Owner: "w", Max: 100})
		if err != nil {
			t.Fatal(err)
		}
		if len(claimed) == 0 {
			break
		}
		got = append(got, claimed...)
	}
	if len(got) != len(matches) {
		t.Fatalf("%d tasks, want %d", len(got), len(matches))
	}
	for i, k := range got {
		if k.Source != matches[i].Position || k.Payload != matches[i].Payload {
			t.Fatalf("task %d has the source %d, want %d", i, k.Source, matches[i].Position)
		}
	}
}

// An entry that no answer could carry makes no task. Text that is not UTF-8 is mended.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	inner, store, _ := newTape(t)
	var log strings.Builder
	tp := tape.New(store, &tape.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s := openShard(t, inner, tape.Reaction{ID: "r"})
	s.tp = tp
	odd, huge := match(1, "/\xff"), match(2, strings.Repeat("x", tape.MaxTask))
	odd.Payload = "\xff"
	full := match(3, strings.Repeat("x", tape.MaxTask-1000))
	full.Payload = strings.Repeat("\x01", 1000)
	s.advance(3, odd, huge, full)
	if got := listTasks(t, tp, "r", 0); got != "3:1 1:1" || !strings.Contains(log.String(), "limit=3500000") {
		t.Errorf("tasks: %s; log: %s", got, log.String())
	}
	claimed, err := tp.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: "r", Owner: strings.Repeat("\x01", tape.MaxClaimer)})
	if err != nil || len(claimed) != 2 || claimed[0].Subject != "/\uFFFD" || claimed[0].Payload != "\uFFFD" {
		t.Fatalf("claimed %d, %v", len(claimed), err)
	}
	for _, k := range claimed {
		if _, err := tp.NackTask(t.Context(), k.ID, k.LeaseOwner, strings.Repeat("\x01", 1<<20), false); err != nil {
			t.Error(err)
		}
	}
}

func TestDebounce(t *testing.T) { // 73
	t.Parallel()
	tp, _, store := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", DebounceMS: 3_000_000}) // 50 minutes: real time also moves the store clock
	want := func(tasks string) {
		t.Helper()
		if got := listTasks(t, tp, "r", 0); got != tasks {
			t.Errorf("tasks: %s, want %s", got, tasks)
		}
	}
	s.advance(4, match(1, "a"), match(2, "b"), match(3, "a"), match(4, "a"))
	want("4:1 2:1")
	store.Advance(40 * time.Minute)
	s.advance(6, match(5, "a"), match(6, "c"))
	want("6:1 5:1 2:1")
	before, _ := tp.ListTasks(t.Context(), "r", 0, 0)
	store.Advance(20 * time.Minute) // the first two are old now, though one was changed since
	s.advance(7, match(7, "a"))
	want("7:1 6:1 5:1 2:1")
	store.Advance(time.Millisecond)
	claimed := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "w"})
	if k := claimed[1]; len(claimed) != 4 || k.Source != 5 || k.Payload != `{"n":5}` || k.CreatedAt != before[1].CreatedAt || k.ID != before[1].ID {
		t.Errorf("claimed %+v", claimed)
	}
	s.advance(8, match(8, "a")) // the one before is CLAIMED
	want("8:1 7:2 6:2 5:2 2:2")
	// One that is PENDING again may change.
	if _, err := tp.NackTask(t.Context(), claimed[3].ID, "w", "", false); err != nil {
		t.Fatal(err)
	}
	s.advance(9, match(9, "a"))
	want("9:1 7:1 6:2 5:2 2:2") // the newest of the subject
	s.advance(10, match(10, "c"))
	want("10:1 9:1 7:1 6:2 5:2 2:2")
	for _, k := range claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "w"}) {
		if _, err := tp.CompleteTask(t.Context(), k.ID, "w"); err != nil {
			t.Error(err)
		}
	}
}

// A match changes the newest PENDING task of its subject, also if a newer one is CLAIMED.
func TestDebouncePassesOverANewerClaim(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", DebounceMS: 3_000_000})
	s.advance(1, match(1, "a"))
	older := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "w"})
	store.Advance(time.Millisecond)
	s.advance(2, match(2, "a"))
	if newer := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "w"}); len(older) != 1 || len(newer) != 1 {
		t.Fatalf("claimed %+v and %+v, want one each", older, newer)
	}
	if _, err := tp.NackTask(t.Context(), older[0].ID, "w", "", false); err != nil {
		t.Fatal(err)
	}
	s.advance(3, match(3, "a"))
	if got := listTasks(t, tp, "r", 0); got != "2:2 3:1" {
		t.Errorf("tasks: %s, want the older one to have the match", got)
	}
}

// A task that is claimed between the look and the commit is not changed: the match gets another one.
func TestDebounceMeetsAClaim(t *testing.T) {
	t.Parallel()
	inner, store, _ := newTape(t)
	s := openShard(t, inner, tape.Reaction{ID: "r", DebounceMS: 60_000})
	s.advance(1, match(1, "a"))
	s.tp = tape.New(ahead(store, "commit", 1, func() {
		if got := claimTasks(t, inner, tape.TaskClaim{Reaction: "r", Owner: "w"}); len(got) != 1 {
			t.Errorf("claimed %v", got)
		}
	}), nil)
	s.advance(2, match(2, "a"))
	if got := listTasks(t, inner, "r", 0); got != "2:1 1:2" {
		t.Errorf("tasks: %s", got)
	}
	k := claimTasks(t, inner, tape.TaskClaim{Reaction: "r", Owner: "v"})
	if len(k) != 1 || k[0].Source != 2 {
		t.Errorf("claimed %+v", k)
	}
}

// Debounced matches of more subjects than one commit takes.
func TestManyDebouncedSubjects(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", DebounceMS: 60_000})
	var all []tape.Entry
	for p := range 900 {
		all = append(all, match(runstore.Position(p+1), fmt.Sprint(p%300)))
	}
	for s.at.Position < 900 {
		s.advance(900, all...)
	}
	claimAllTasks(t, tp, "r", all[600:])
}

// TestAnAdvanceCutAnywhereHandlesEachEntryOnce cuts the advance of a shard at each store call: before
// it, behind it, and with a lost reply. Another matcher then takes the shard over and goes on.
func TestAnAdvanceCutAnywhereHandlesEachEntryOnce(t *testing.T) {
	t.Parallel()
	for _, debounce := range []int32{0, 60_000} {
		for _, harm := range []string{"dead before", "dead behind", "reply lost", "fenced before", "fenced behind"} {
			for n, whole := int64(1), false; !whole; n++ {
				tp, store, _ := newTape(t)
				s := openShard(t, tp, tape.Reaction{ID: "r", DebounceMS: debounce})
				s.advance(2, match(1, "a"), match(2, "b"))
				var calls, replies atomic.Int64 // some calls are made at the same time
				takeOver := func() { leaseOf(t, store, s.f.Run()) }
				before := func(string) error {
					switch c := calls.Add(1); {
					case harm == "dead before" && c >= n, harm == "dead behind" && c > n:
						return errDown
					case harm == "fenced before" && c == n:
						takeOver()
					}
					return nil
				}
				after := func(string) error {
					switch r := replies.Add(1); {
					case harm == "reply lost" && r == n:
						return errReplyLost
					case harm == "fenced behind" && r == n:
						takeOver()
					}
					return nil
				}
				all := []tape.Entry{match(3, "a"), match(4, "c"), match(5, "d")}
				_, err := tape.New(hook(store, before, after), nil).Advance(t.Context(), s.f, s.Reaction, s.at, all, 6)
				whole = n > calls.Load()
				if whole && err != nil {
					t.Fatalf("%s, %d calls: %v", harm, calls.Load(), err)
				}
				c, readErr := tp.ShardCursor(t.Context(), s.f.Run())
				if readErr != nil {
					t.Fatal(readErr)
				}
				if err == nil && c.Position != 6 || runstore.OutcomeOf(err) == runstore.NotApplied && c != s.at {
					t.Errorf("%s at call %d: %v, and the cursor is %+v", harm, n, err, c)
				}
				s.f, s.at = leaseOf(t, store, s.f.Run()), c
				if c.Position < 6 {
					s.advance(6, all...)
				}
				want := "5:1 4:1 3:1 2:1 1:1"
				if debounce > 0 {
					want = "5:1 4:1 3:1 2:1"
				}
				if got := listTasks(t, tp, "r", 0); got != want || s.at.Position != 6 {
					t.Errorf("%s at call %d, debounce %d: tasks %s at %d, want %s", harm, n, debounce, got, s.at.Position, want)
				}
			}
		}
	}
}
