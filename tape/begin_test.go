package tape_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// A run whose summary names another key than the one that its id was made from (a collision of ids, or
// a run that another program copied) is not taken over.
func TestBeginRunOfARunThatBelongsToAnotherKey(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	a, b := begin(t, tp, "a"), beginRequest("b")
	status := runstore.Status(tape.RunRunning)
	foreign := runstore.RunSpec{ID: b.Key.ID(), Status: status}
	for _, rec := range historyOf(t, s, a.ID).records {
		if rec.Key == runstore.SummaryKey {
			foreign.Writes.Put(rec.Key, rec.Value)
		}
	}
	if len(foreign.Writes.Records) != 1 {
		t.Fatalf("run a has %d summaries", len(foreign.Writes.Records))
	}
	if _, err := s.CreateRun(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	before := historyOf(t, s, foreign.ID)
	got, err := tp.BeginRun(t.Context(), b)
	if !errors.Is(err, tape.ErrRefused) || !strings.Contains(err.Error(), "belongs to another key") {
		t.Errorf("BeginRun = %+v, %v, want ErrRefused", got, err)
	}
	if after := historyOf(t, s, foreign.ID); after.run.Token != 0 || len(after.events) != len(before.events) || len(after.records) != len(before.records) {
		t.Errorf("the refused call changed the run from %+v to %+v", before, after)
	}
}
