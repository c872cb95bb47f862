package tape_test

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// A deletion purges a session and its reply is lost. Before it is repeated, another caller finds the
// session gone and creates it again. One deletion removes one session: that one stays. A deletion under
// a fence has marked its session before, so it knows that this one is another.
func TestLostReplyOfADeletionRemovesOneSession(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		store  string
		fenced bool
		purge  int // which of the deletion's commits purges the run
	}{
		"at once":               {"at once", false, 1},
		"at once, fenced":       {"at once", true, 1},
		"written ahead":         {"written ahead", false, 1},
		"written ahead, fenced": {"written ahead", true, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := twoRunStores[c.store](memory.New(nil).Open())
			tp := tape.New(s, nil)
			lead := prepareSession(t, tp)
			var f runstore.Fence
			if c.fenced {
				f = lead.Lease.Fence()
			}
			commits := 0
			losing := hook(s, nil, func(op string) error {
				if op != "commit" {
					return nil
				}
				if commits++; commits != c.purge {
					return nil
				}
				appendEvent(t, tp, session, tape.SessionEvent{ID: "new"}, "")
				return errReplyLost
			})
			deleted, err := tape.New(losing, nil).DeleteSession(t.Context(), session, f)
			if err != nil || !deleted {
				t.Errorf("DeleteSession = %t, %v, want true", deleted, err)
			}
			if got := stateOf(t, s); got != "new {}" {
				t.Errorf("the session that was created after the deletion is %s, want new {}", got)
			}
		})
	}
}

// A deletion does not arrive, and the session is changed before it is repeated. It is still the
// session to delete.
func TestDeletionOfASessionThatChangesBeforeTheRepeat(t *testing.T) {
	t.Parallel()
	s := twoRunStores["at once"](memory.New(nil).Open())
	tp := tape.New(s, nil)
	prepareSession(t, tp)
	lost := false
	losing := hook(s, func(op string) error {
		if op != "commit" || lost {
			return nil
		}
		lost = true
		appendEvent(t, tp, session, tape.SessionEvent{ID: "new"}, "")
		return errReplyLost
	}, nil)
	deleted, err := tape.New(losing, nil).DeleteSession(t.Context(), session, runstore.Fence{})
	if err != nil || !deleted {
		t.Errorf("DeleteSession = %t, %v, want true", deleted, err)
	}
	if _, found, err := tp.GetSession(t.Context(), session, 0); err != nil || found {
		t.Errorf("the session is found: %t, %v", found, err)
	}
}
