package bigtable_test

import (
	"fmt"
	"slices"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A failover loses the end of the feed's log, but not what the rows of its runs say. Events that
// were in it come into the feed again; those that the log still has stay where they are, whether
// they are in its last segments, in others, or in those of an epoch before.
func TestLogLosesItsEnd(t *testing.T) {
	t.Parallel()
	for _, raised := range []bool{false, true} {
		t.Run(fmt.Sprint("raised before ", raised), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			old, tbl := openBare(t, table), raw(t, table)
			put := func(events ...string) {
				t.Helper()
				for _, event := range events {
					commit(t, old, signal(runstore.RunID(event[:4]), event))
				}
				if err := bigtable.Sequence(t.Context(), old, "busy", "rare"); err != nil {
					t.Fatal(err)
				}
			}
			skip := func() {
				t.Helper()
				if err := bigtable.SkipSegments(t.Context(), old); err != nil {
					t.Fatal(err)
				}
			}
			hold(t, old, "busy")
			hold(t, old, "rare")
			put("busy 1", "rare 1")
			if raised {
				if _, err := old.RaiseEpoch(t.Context(), "test"); err != nil {
					t.Fatal(err)
				}
				put("busy 2")
			}
			skip()
			put("busy 3")
			skip()
			put("busy 4")
			put("busy 5")
			kept := keys(t, tbl, "l")
			read := whole(t, old, 0, 10, nil)
			put("busy 6", "rare 2")
			skip()
			put("busy 7")
			for _, key := range keys(t, tbl, "l") {
				if !slices.Contains(kept, key) {
					m := client.NewMutation()
					m.DeleteRow()
					if err := tbl.Apply(t.Context(), key, m); err != nil {
						t.Fatal(err)
					}
				}
			}
			move(t, table, tbl)
			s := open(t, table)
			want := len(read) + 3
			feed(t, s, 0, want)
			var news []string
			for _, e := range feed(t, s, read[len(read)-1].Position, 3) {
				news = append(news, string(e.Data))
			}
			slices.Sort(news)
			if fmt.Sprint(news) != "[busy 6 busy 7 rare 2]" {
				t.Errorf("behind what it had read, a reader has %v, want the lost events", news)
			}
			for i, e := range whole(t, s, 0, 3, nil)[:len(read)] {
				if e.Position != read[i].Position || string(e.Data) != string(read[i].Data) {
					t.Errorf("the feed has %s at %d, and had %s at %d", e.Data, e.Position, read[i].Data, read[i].Position)
				}
			}
		})
	}
}
