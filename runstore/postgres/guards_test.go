package postgres_test

import (
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// A token guard holds or not beside a fence that holds, also in an append of events, which
// without the guard has a statement of its own.
func TestTokenGuardBesideAFence(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, address)
	for token, want := range map[runstore.Token]error{
		lease.Token - 1: runstore.ErrConflict, lease.Token: nil, lease.Token + 1: runstore.ErrStoreBehind,
	} {
		before := stored(t, conn)
		b := appending(lease, "event")
		b.Require(runstore.AtToken(token))
		other := runstore.NewBatch("other", runstore.AtToken(0))
		other.Append("test", []byte("event"))
		_, err := s.Commit(t.Context(), b)
		_, multi := s.CommitMulti(t.Context(), []runstore.Batch{other, b})
		for what, err := range map[string]error{"a batch": err, "a batch among several": multi} {
			if !errors.Is(err, want) || (want == nil) != (err == nil) {
				t.Errorf("%s at token %d: got error %v, want %v", what, token, err, want)
			}
		}
		if after := stored(t, conn); want != nil && after != before {
			t.Errorf("refused writes changed\n%s\nto\n%s", before, after)
		}
	}
}
