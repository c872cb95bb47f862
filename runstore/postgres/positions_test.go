package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// What a raise adds grows with the time that was lost.
func TestLostPositions(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	const second, least = 50_000 << 14, 300 * 50_000 << 14
	for lost, want := range map[string]int64{
		"0":        least,
		"-1 day":   least, // the new machine's clock is behind
		"1 second": least + second,
		"1 day":    least + 86_400*second,
		"7 days":   least + 7*86_400*second,
		"8 days":   1 << 49,
		"10 years": 1 << 49,
	} {
		if got := get[int64](t, conn, `SELECT tapestore.lost_positions($1::text::interval)`, lost); got != want {
			t.Errorf("lost %s: got %d positions, want %d", lost, got, want)
		}
	}
	if limit := int64(runstore.MaxPosition) / int64(runstore.MaxEpoch); least > limit/4 {
		t.Errorf("a raise takes %d positions at least, want a quarter of %d at most", int64(least), limit)
	}
}

// A raise moves positions above all that a lost history may have had, counted from what
// is known of the common history.
func TestRaiseCoversWhatWasLost(t *testing.T) {
	t.Parallel()
	const rate, day = 50_000 << 14, 86_400
	for name, tc := range map[string]struct {
		cluster string
		aged    string // how old the last event is made
		base    int64  // the least and most that the base rises
		most    int64
	}{
		"at once":                         {"cluster", "0", 300 * rate, 400 * rate},
		"from a dump of the day before":   {"'another'", "1 day", day * rate, (day + 400) * rate},
		"from a dump of the year before":  {"'another'", "1 year", 1 << 49, 1 << 49},
		"a role that sees no cluster":     {"''", "1 day", day * rate, (day + 400) * rate},
		"in a cluster with a fresh lease": {"cluster", "1 day", 300 * rate, 400 * rate},
		"in a cluster that was idle too":  {"cluster", "2 days", 2 * day * rate, (2*day + 400) * rate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s, conn := open(t, address), connect(t, address)
			commit(t, s, appending(hold(t, s, "run"), "event"))
			// A connection that the handle makes in the background would raise the epoch for the other cluster.
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, `UPDATE tapestore.migrations SET at = at - interval '`+tc.aged+`'`)
			exec(t, conn, `UPDATE tapestore.events SET time = time - interval '`+tc.aged+`'`)
			if tc.aged == "2 days" {
				exec(t, conn, `UPDATE tapestore.runs SET created = created - interval '2 days', granted = granted - interval '2 days',
					renewed = renewed - interval '2 days', progressed = progressed - interval '2 days'`)
			}
			// Above the floor of the epochs, which would hide the difference.
			exec(t, conn, `UPDATE tapestore.store SET position_base = position_base + (1::bigint << 45)`)
			const known = `SELECT position_base FROM tapestore.store`
			before := get[int64](t, conn, known)
			exec(t, conn, `SELECT tapestore.raise_epoch('test', `+tc.cluster+`, timeline, false) FROM tapestore.store`)
			const slots = 1000 << 14 // transactions of other tests
			if rose := get[int64](t, conn, known) - before; rose < tc.base || rose > tc.most+slots {
				t.Errorf("positions rose by %d, want %d to %d", rose, tc.base, tc.most)
			}
			after := get[int64](t, conn, known)
			exec(t, conn, `SELECT tapestore.raise_epoch('again', `+tc.cluster+`, timeline, false) FROM tapestore.store`)
			if rose := get[int64](t, conn, known) - after; rose < 300*rate || rose > 400*rate+slots {
				t.Errorf("the next raise took %d positions, want those of %d to %d", rose, int64(300*rate), int64(400*rate))
			}
		})
	}
}

// A lost timeline between two may have raised the epoch too.
func TestRaiseOverLostTimelines(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	exec(t, conn, `UPDATE tapestore.store SET position_base = 1::bigint << 45`)
	exec(t, conn, `SELECT tapestore.raise_epoch('test', cluster, timeline + 3, true) FROM tapestore.store`)
	if base := get[int64](t, conn, `SELECT position_base FROM tapestore.store`); base < 1<<45+3*300*50_000<<14 {
		t.Errorf("positions go on at %d, want three raises above %d", base, int64(1)<<45)
	}
	if epoch := get[int64](t, conn, `SELECT epoch FROM tapestore.store`); epoch != 3 {
		t.Errorf("got epoch %d, want 3: timelines 2 and 3 may have had an epoch each", epoch)
	}
}

// The positions of purged events are not given out again.
func TestRaisePassesPurgedPositions(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	exec(t, conn, `UPDATE tapestore.store SET last_purged = 1::bigint << 50`)
	exec(t, conn, `SELECT tapestore.raise_epoch('test', 'another', 1, false)`)
	if base := get[int64](t, conn, `SELECT position_base FROM tapestore.store`); base <= 1<<50 {
		t.Errorf("positions go on at %d, want above the purged %d", base, int64(1)<<50)
	}
}

// Where no position is left, what has events is refused, and stores nothing. All else goes on.
func TestPositionsRunOut(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	first := open(t, address)
	lease := hold(t, first, "run")
	commit(t, first, appending(lease, "one", "two"))
	exec(t, conn, `UPDATE tapestore.store SET position_base = (1::bigint << 53) - 1000`)
	exec(t, conn, `SELECT tapestore.raise_epoch('test', 'another', 1, false)`)
	exec(t, conn, `UPDATE tapestore.store SET (cluster, timeline) = (SELECT system_identifier::text, timeline_id FROM pg_control_system(), pg_control_checkpoint())`)
	if base := get[int64](t, conn, `SELECT position_base FROM tapestore.store`); base != int64(runstore.MaxPosition)+1 {
		t.Fatalf("positions go on at %d, want %d: none", base, int64(runstore.MaxPosition)+1)
	}
	s := open(t, address)
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	before := stored(t, conn)
	record := appending(granted.Lease, "with a record")
	record.Put("record", nil)
	unfenced := runstore.NewBatch("run", runstore.Unguarded("test"))
	unfenced.Append("test", nil)
	for what, b := range map[string]runstore.Batch{
		"an event without a fence": unfenced,
		"an event":                 appending(granted.Lease, "event"), "events": appending(granted.Lease, "one", "two"), "a record and an event": record,
	} {
		_, err := s.Commit(t.Context(), b)
		var limit *runstore.InputError
		if !errors.Is(err, runstore.ErrTooLarge) || !errors.As(err, &limit) || limit.Field != "position" {
			t.Errorf("%s: got error %v, want ErrTooLarge of the position", what, err)
		}
	}
	if after := stored(t, conn); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
	if page := feed(t, s, 0, 2); len(page) != 2 {
		t.Errorf("the feed has %d events, want 2", len(page))
	}
	bare := runstore.NewBatch("run", granted.Fence())
	bare.Put("record", []byte("value"))
	commit(t, s, bare)
}

// TestRunWithTheLastPosition checks that an event finds no position in a run whose last event has
// the last one, where other runs have room.
func TestRunWithTheLastPosition(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	s := open(t, address)
	full, other := hold(t, s, "full"), hold(t, s, "other")
	exec(t, conn, `UPDATE tapestore.runs SET last_position = $1 WHERE id = 'full'`, int64(runstore.MaxPosition))
	before := stored(t, conn)
	if _, err := s.Commit(t.Context(), appending(full, "event")); !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("got error %v, want ErrTooLarge", err)
	}
	if after := stored(t, conn); after != before {
		t.Errorf("the store was\n%s\nand is\n%s", before, after)
	}
	commit(t, s, appending(other, "event"))
}

// TestAppendOfALaterEpoch checks that a handle sends no base of positions with a fence of a later epoch than it
// knows: the base is that of an earlier one.
func TestAppendOfALaterEpoch(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	lease := runstore.Lease{Run: "run", Owner: "owner", Grant: "grant", Token: 1}
	if sql, _ := postgres.StatementOf(s, appending(lease, "x")); sql != postgres.StatementOfAnEvent() {
		t.Error("an append has no statement of its own")
	}
	lease.Token += runstore.Epoch(1).Floor()
	if sql, _ := postgres.StatementOf(s, appending(lease, "x")); sql == postgres.StatementOfAnEvent() {
		t.Error("an append under a fence of a later epoch has a base of the handle")
	}
}
