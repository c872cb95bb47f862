package postgres_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The commit time of a purge whose reply was lost is not later than the purge, also if the run was created anew, and
// purged again, before the outcome was known.
func TestLostPurgeHasItsOwnTime(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]int{"purged": 0, "created anew": 1, "created anew and purged": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			other := open(t, address)
			var after time.Time
			i := &interloper{wire: &wire{}, before: ".settle("}
			i.do = func() {
				var err error
				if after, err = other.Now(t.Context()); err != nil {
					t.Error(err)
				}
				if again > 0 {
					anew(t, other, "run")
				}
				if again > 1 {
					purge(t, other, "run")
				}
			}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
			commit(t, s, appending(hold(t, s, "run"), "event"))
			before, err := other.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Purge = true
			i.lose(loseReply, "")
			if done := commit(t, s, b); done.Time.After(after) || again == 0 && done.Time.Before(before) {
				t.Errorf("got time %v of a purge between %v and %v", done.Time, before, after)
			}
		})
	}
}

// The same for a creation whose run was purged before the outcome was known: neither the commit nor the creation of
// the run is later than the purge.
func TestLostCreationHasItsOwnTime(t *testing.T) {
	t.Parallel()
	address := database(t)
	other := open(t, address)
	var after time.Time
	i := &interloper{wire: &wire{}, before: ".settle("}
	i.do = func() {
		var err error
		if after, err = other.Now(t.Context()); err != nil {
			t.Error(err)
		}
		purge(t, other, "run")
	}
	s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
	i.lose(loseReply, "")
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	if created.Committed.Time.After(after) || created.Run.CreatedAt.After(after) {
		t.Errorf("got a commit at %v of a run that was created at %v, want none later than %v", created.Committed.Time, created.Run.CreatedAt, after)
	}
}
