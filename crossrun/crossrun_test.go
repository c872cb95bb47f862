package crossrun_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// counting counts the calls of a store that is no MultiCommitter.
type counting struct {
	runstore.RunStore
	writes, reads int
}

func (s *counting) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.writes++
	return s.RunStore.Commit(ctx, b)
}

func (s *counting) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	s.reads++
	return s.RunStore.ReadRecords(ctx, id, q)
}

// TestCosts holds the documentation of Commit to its word.
func TestCosts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		change        func(lead, other *runstore.Batch)
		want          error
		writes, reads int
	}{
		{"applied", func(_, _ *runstore.Batch) {}, nil, 5, 0},
		{"applied, with an id", func(lead, _ *runstore.Batch) { lead.ID = "id" }, nil, 7, 0},
		{"refused by the lead", func(lead, _ *runstore.Batch) { lead.Require(runstore.AtSeq(9)) }, runstore.ErrConflict, 3, 1},
		{"refused by the other run", func(_, other *runstore.Batch) { other.Require(runstore.AtSeq(9)) }, runstore.ErrConflict, 6, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := memory.New(nil).Open()
			create(t, base, "run", "registry")
			lead, other := claim(hold(t, base, "run"))
			test.change(&lead, &other)
			s := &counting{RunStore: base}
			if _, err := crossrun.Commit(t.Context(), s, lead, other); !errors.Is(err, test.want) {
				t.Fatalf("got error %v, want %v", err, test.want)
			}
			if s.writes != test.writes || s.reads != test.reads {
				t.Errorf("%d writes and %d reads, want %d and %d", s.writes, s.reads, test.writes, test.reads)
			}
			clean(t, base, "run", "registry")
			if lead.ID == "" {
				return
			}
			s.writes, s.reads = 0, 0
			if _, err := crossrun.Commit(t.Context(), s, lead, other); err != nil || s.writes != 1 || s.reads != 0 {
				t.Errorf("the repeat: %v, %d writes and %d reads, want one write", err, s.writes, s.reads)
			}
		})
	}
}

// TestRefusedInput proves that what a step cannot hold is refused before the store
// is asked, with the same words whether or not it is a MultiCommitter.
func TestRefusedInput(t *testing.T) {
	t.Parallel()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lease := hold(t, base, "run")
	large := make([]byte, runstore.MaxRecordValue/2)
	for _, test := range []struct {
		name, field string
		change      func(lead, other *runstore.Batch)
		kind        error
	}{
		{"no fence", "lead.fence", func(lead, _ *runstore.Batch) { *lead = runstore.NewBatch("run", runstore.AtSeq(1)) }, runstore.ErrInvalid},
		{"one run", "other.run", func(_, other *runstore.Batch) { *other = runstore.NewBatch("run", runstore.AtVersion("n", 0)) }, runstore.ErrInvalid},
		{"another fence", "other.fence", func(_, other *runstore.Batch) {
			other.Require(runstore.Lease{Run: "registry", Owner: "o", Token: 1, Grant: "g"}.Fence())
		}, runstore.ErrInvalid},
		{"no version", "other.guards", func(_, other *runstore.Batch) { *other = runstore.NewBatch("registry", runstore.InStatus(1)) }, runstore.ErrInvalid},
		{"an id", "other.id", func(_, other *runstore.Batch) { other.ID = "id" }, runstore.ErrInvalid},
		{"a purge", "purge", func(_, other *runstore.Batch) { other.Writes = runstore.Writes{Purge: true} }, runstore.ErrInvalid},
		{"a reserved record", "other.records[1].key", func(_, other *runstore.Batch) { other.Put(crossrun.Reserved+"x", nil) }, runstore.ErrInvalid},
		{"a reserved guard", "lead.guards: versions[1]", func(lead, _ *runstore.Batch) { lead.Require(crossrun.Idle()) }, runstore.ErrInvalid},
		{"many records", "lead.records", func(lead, _ *runstore.Batch) {
			for i := range runstore.MaxRecordWrites - 1 {
				lead.Delete(runstore.RecordKey("k" + strings.Repeat("x", i)))
			}
		}, runstore.ErrTooLarge},
		{"many guards", "other.guards", func(_, other *runstore.Batch) {
			for i := range runstore.MaxGuards - 1 {
				other.Require(runstore.AtVersion(runstore.RecordKey("k"+strings.Repeat("x", i)), 0))
			}
		}, runstore.ErrTooLarge},
		{"much to write ahead", "intent", func(lead, other *runstore.Batch) {
			lead.Put("large", large)
			other.Put("large", large)
		}, runstore.ErrTooLarge},
		{"what the contract refuses", "run id", func(_, other *runstore.Batch) { *other = runstore.NewBatch("", runstore.AtVersion("n", 0)) }, runstore.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			lead, other := claim(lease)
			test.change(&lead, &other)
			// A store that would panic if it were asked.
			_, err := crossrun.Commit(t.Context(), nil, lead, other)
			var limit *runstore.InputError
			if !errors.As(err, &limit) || limit.Field != test.field || limit.Kind != test.kind {
				t.Errorf("got error %v, want %v of field %q", err, test.kind, test.field)
			}
		})
	}
}

// TestLargestStep proves that a step with the longest id is refused before the store is asked, or fits.
func TestLargestStep(t *testing.T) {
	t.Parallel()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lease := hold(t, base, "run")
	large := make([]byte, runstore.MaxRecordValue)
	var fits, refused int
	for room := 0; room < 512; room += 16 {
		lead, other := runstore.NewBatch("run", lease.Fence()), runstore.NewBatch("registry", runstore.AtVersion("n", 0))
		lead.ID = runstore.BatchID(fmt.Sprintf("%0*d", runstore.MaxGrantID, room))
		lead.Put("large", large[:len(large)/2])
		other.Put("large", large[:len(large)/2-room])
		_, err := crossrun.Commit(t.Context(), struct{ runstore.RunStore }{base}, lead, other)
		var limit *runstore.InputError
		switch {
		case err == nil:
			fits++
		case errors.As(err, &limit) && limit.Field == "intent":
			refused++
		default:
			t.Errorf("with %d bytes of room: %v", room, err)
		}
	}
	if fits == 0 || refused == 0 {
		t.Errorf("%d steps fit and %d are refused, want some of both", fits, refused)
	}
}

// TestEverythingIsWrittenAhead proves that a successor makes the very writes that
// the driver meant, whatever they were.
func TestEverythingIsWrittenAhead(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	at := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	story := func(cut bool) string {
		base := memory.New(nil).Open()
		create(t, base, "run", "registry")
		lease := hold(t, base, "run")
		lead, other := claim(lease)
		status := runstore.Status(-3)
		for _, w := range []*runstore.Writes{&lead.Writes, &other.Writes} {
			n := w.Append("second \x00\xff", []byte{0, 255})
			w.Put("placed", nil, runstore.Place{Index: "absolute", At: runstore.At(at)}, runstore.Place{Index: "relative", At: runstore.After(time.Hour)})
			w.Records[len(w.Records)-1].Event = n
			w.Delete("absent")
			w.Status, w.Runnable = &status, runstore.After(0)
		}
		lead.Release, lead.Runnable = true, runstore.Never()
		lead.Require(runstore.AtSeq(1), runstore.InStatus(0, 1))
		other.Require(runstore.AtSeq(1), runstore.InStatus(7, 0))
		var s runstore.RunStore = struct{ runstore.RunStore }{base}
		if cut {
			s = &dying{RunStore: base, after: 2}
		}
		if _, err := crossrun.Commit(ctx, s, lead, other); (err != nil) != cut {
			t.Fatalf("commit: %v", err)
		}
		if cut {
			if _, err := crossrun.Recover(ctx, base, lease.Fence()); err != nil {
				t.Fatalf("recover: %v", err)
			}
		}
		return content(t, base, "run") + content(t, base, "registry")
	}
	if whole, cut := story(false), story(true); whole != cut {
		t.Errorf("the successor's step differs:\n--- uncut\n%s--- cut\n%s", whole, cut)
	}
}
