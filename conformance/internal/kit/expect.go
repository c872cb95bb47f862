package kit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// MustCommit commits b, and ends the case unless b is applied.
func MustCommit(t harness.T, s runstore.RunStore, b runstore.Batch) runstore.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("commit to %q: %v", b.Run(), err)
	}
	return done
}

// Equal fails the case unless got is want.
func Equal[V any](t harness.T, what string, got, want V) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// CheckOrder fails the case unless got equals want. The message names the entries that are missing,
// duplicated, unexpected or out of order.
func CheckOrder(t harness.T, what string, got, want []string) {
	t.Helper()
	if text := DiffNames(got, want); text != "" {
		t.Errorf("%s: %s", what, text)
	}
}

// DiffNames describes how got differs from want, or returns "".
func DiffNames(got, want []string) string {
	if slices.Equal(got, want) {
		return ""
	}
	count := map[string]int{}
	for _, name := range want {
		count[name]--
	}
	for _, name := range got {
		count[name]++
	}
	text := fmt.Sprintf("got %d entries, want %d", len(got), len(want))
	for _, group := range []struct {
		what string
		in   []string
		is   func(n int) bool
	}{
		{"missing", want, func(n int) bool { return n < 0 }},
		{"too many of", got, func(n int) bool { return n > 0 }},
	} {
		var names []string
		for _, name := range group.in {
			if group.is(count[name]) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if n := len(names); n > maxNamed {
			names = append(names[:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
		}
		if len(names) > 0 {
			text += fmt.Sprintf("; %s: %s", group.what, strings.Join(names, ", "))
		}
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return text + fmt.Sprintf("; the first that differs is entry %d: got %s, want %s", i+1, got[i], want[i])
		}
	}
	return text
}

// NamesOf returns the names of the values that a read returned, for CheckOrder.
func NamesOf[V any](all []V, name func(V) string) (names []string) {
	for _, v := range all {
		names = append(names, name(v))
	}
	return names
}

// FeedName returns the name of an event of the feed: its run, seq, position and data.
func FeedName(event runstore.FeedEvent) string {
	return fmt.Sprintf("seq %d of %q at position %d with %.40q", event.Seq, event.Run, event.Position, event.Data)
}

// CheckRecords fails the case unless an index of one run holds exactly these records, each once.
func CheckRecords(t harness.T, index runstore.IndexName, entries []runstore.IndexEntry, records []runstore.Record) {
	t.Helper()
	got := NamesOf(entries, func(entry runstore.IndexEntry) string { return string(entry.Record.Key) })
	want := NamesOf(records, func(r runstore.Record) string { return string(r.Key) })
	CheckOrder(t, fmt.Sprintf("ScanIndex of %q, by key, beside the records", index), slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
}

// maxNamed is how many entries a message names before it only counts the rest.
const maxNamed = 10

// MustCollect returns all values of a paged read, and ends the case on an error.
func MustCollect[V any](t harness.T, what string, seq iter.Seq2[V, error]) []V {
	t.Helper()
	all, err := Collect(seq)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return all
}

// maxCollected exceeds what any case stores: a read that yields more repeats itself.
const maxCollected = 200_000

// Collect returns all values of a paged read.
func Collect[V any](seq iter.Seq2[V, error]) ([]V, error) {
	var all []V
	for v, err := range AtMost(maxCollected, seq) {
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// AtMost ends a paged read with an error once it yields more than n values. Without it, a cursor
// that does not advance would keep a case reading until memory is exhausted.
func AtMost[V any](n int, seq iter.Seq2[V, error]) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		count := 0
		for v, err := range seq {
			if count++; count > n && err == nil {
				err = fmt.Errorf("more than %d entries: do pages repeat each other?", n)
			}
			if !yield(v, err) || count > n {
				return
			}
		}
	}
}

// FeedAfter iterates over the feed after a position, in pages of limit, to its present end.
func FeedAfter(ctx context.Context, s runstore.RunStore, after runstore.Position, limit int) iter.Seq2[runstore.FeedEvent, error] {
	return func(yield func(runstore.FeedEvent, error) bool) {
		for {
			page, err := s.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: limit})
			if err != nil {
				yield(runstore.FeedEvent{}, err)
				return
			}
			if len(page) == 0 {
				return
			}
			for _, e := range page {
				if e.Position <= after {
					yield(e, fmt.Errorf("position %d follows %d", e.Position, after))
					return
				}
				after = e.Position
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// FeedOf waits until the feed holds n events and returns the feed, which may lag behind commits.
func FeedOf(t harness.T, e *harness.Env, s runstore.RunStore, n int) []runstore.FeedEvent {
	t.Helper()
	var all []runstore.FeedEvent
	say := func() string { return fmt.Sprintf("the feed holds %d events, want %d: %s", len(all), n, SeqsOf(all)) }
	e.AwaitState(t, harness.CaseTimeout, func() bool {
		all = MustCollect(t, "feed", FeedAfter(t.Context(), s, 0, runstore.MaxPage))
		return len(all) >= n
	}, say)
	if len(all) != n {
		t.Fatalf("%s", say())
	}
	return all
}

// SeqsOf lists the seqs of a feed by run, in the order of the feed.
func SeqsOf(feed []runstore.FeedEvent) string {
	seqs := map[runstore.RunID][]runstore.Seq{}
	for _, event := range feed {
		seqs[event.Run] = append(seqs[event.Run], event.Seq)
	}
	var runs []string
	for _, id := range slices.Sorted(maps.Keys(seqs)) {
		runs = append(runs, fmt.Sprintf("run %q:%s", id, SeqRanges(seqs[id])))
	}
	return strings.Join(runs, "; ")
}

// SeqRanges lists seqs as ranges of consecutive numbers, and reports where a range does not
// continue the one before, as in "seqs 1 to 7 seqs 9 to 12 (want 8)".
func SeqRanges(seqs []runstore.Seq) (text string) {
	want := runstore.Seq(1)
	for first := 0; first < len(seqs); {
		end := first + 1
		for end < len(seqs) && seqs[end] == seqs[end-1]+1 {
			end++
		}
		text += fmt.Sprintf(" seqs %d to %d", seqs[first], seqs[end-1])
		if seqs[first] != want {
			text += fmt.Sprintf(" (want %d)", want)
		}
		first, want = end, seqs[end-1]+1
	}
	return text
}

// Queue scans one index to its end, entries that are not due included.
func Queue(t harness.T, s runstore.RunStore, name runstore.IndexName) []runstore.IndexEntry {
	t.Helper()
	return MustCollect(t, fmt.Sprintf("scan of %q", name),
		runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: name, Until: runstore.EndOfTime}))
}

// Record returns one record of a run, or the zero Record if it is absent.
func Record(t harness.T, s runstore.RunStore, id runstore.RunID, key runstore.RecordKey) runstore.Record {
	t.Helper()
	found, err := s.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
	if err != nil {
		t.Fatalf("read record %q of %q: %v", key, id, err)
	}
	if len(found) == 0 {
		return runstore.Record{}
	}
	return found[0]
}

// RunConcurrently starts n calls of work at the same moment and waits for all. It ends the case if
// one of them returns an error.
func RunConcurrently(t harness.T, n int, work func(i int) error) {
	t.Helper()
	start := make(chan struct{})
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = panics.Caught(func() error { return work(i) })
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v", err)
	}
}

// During calls each watcher again and again while work runs, and once more after its end. It ends
// the case if one of the functions returns an error.
func During(t harness.T, work func() error, watchers ...func() error) {
	t.Helper()
	over := make(chan struct{})
	RunConcurrently(t, len(watchers)+1, func(i int) error {
		if i == len(watchers) {
			defer close(over)
			return work()
		}
		for {
			select {
			case <-over:
				return watchers[i]()
			default:
			}
			if err := watchers[i](); err != nil {
				return err
			}
		}
	})
}

// Seeded returns the case's source of random choices, one for each lane, and logs the seed that
// repeats them.
func Seeded(t harness.T) func(lane int) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(harness.SeedVariable); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q is no seed: %v", harness.SeedVariable, text, err)
		}
		seed = given
	}
	t.Logf("the choices of this case come again with %s=%d", harness.SeedVariable, seed)
	return func(lane int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(lane))) }
}
