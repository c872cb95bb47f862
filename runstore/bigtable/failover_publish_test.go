package bigtable_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A handle that was suspended over a failover has events to publish, of which the failover lost all but
// one. The lost ones do not come into the feed, and each event of the history that goes on does once,
// whether the handle appends, reviews its page or creates one when it wakes, and whichever of its reads
// fails then.
func TestFeedAfterAFailoverWithEventsToPublish(t *testing.T) {
	t.Parallel()
	writeBack := func(t *testing.T, s *bigtable.Store) {
		t.Helper()
		if err := bigtable.WriteBack(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []sleeper{
		{name: "it appends to its page"},
		{name: "it reviews its page", awake: writeBack},
		{name: "it creates a page", asleep: func(t *testing.T, s *bigtable.Store) {
			writeBack(t, s)
			writeBack(t, s) // nothing was appended since, so it closes the page
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 0; c.publishes(t, n); n++ {
			}
		})
	}
}

// sleeper is what a handle does around a failover: asleep is the last before it is suspended, and awake
// the first after.
type sleeper struct {
	name          string
	asleep, awake func(t *testing.T, s *bigtable.Store)
}

// publishes checks the feed after a failover. The read after the first n that publish events of the handle
// is refused; publishes returns false if there was none.
func (c sleeper) publishes(t *testing.T, n int) (refused bool) {
	t.Helper()
	table := newTable(t)
	tbl := raw(t, table)
	reads := refusal{byTest: true}
	old, heir := openBare(t, table, reads.through), openBare(t, table)
	hold(t, old, "run 0")
	hold(t, heir, "run 1")
	inPages(t, []*bigtable.Store{old}, 3)
	if c.asleep != nil {
		c.asleep(t, old)
	}
	commit(t, old, signal("run 0", "kept"))
	survived := snapshot(t, tbl)
	commit(t, old, signal("run 0", "lost"))
	commit(t, old, signal("run 0", "lost"))
	survived.rollBack(t, tbl)
	if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	if c.awake != nil {
		c.awake(t, old)
	}
	reads.next("ReadRows", append(make([]codes.Code, n), codes.PermissionDenied)...)
	bigtable.PublishAgain(t.Context(), old, "run 0")
	refused = reads.calls() > n
	for range 2 {
		bigtable.PublishAgain(t.Context(), old, "run 0")
	}
	var got []string
	after, next := runstore.Position(0), map[runstore.RunID]runstore.Seq{}
	for _, run := range []runstore.RunID{"run 1", "run 0", "run 0", "run 0"} {
		commit(t, heir, signal(run, "next"))
		bigtable.PublishPending(t.Context(), heir)
		for _, e := range whole(t, heir, after, 10, next) {
			got = append(got, fmt.Sprint(e.Run, " ", e.Seq, " ", string(e.Data)))
			after = e.Position
		}
	}
	want := []string{"run 0 1 0", "run 0 2 1", "run 0 3 2", "run 0 4 kept", "run 1 1 next", "run 0 5 next", "run 0 6 next", "run 0 7 next"}
	if !slices.Equal(got, want) {
		t.Errorf("without the read after %d others the feed has the events %q, want %q", n, got, want)
	}
	return refused
}
