package tape_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// The replies of a step's last write are lost, and another event is appended before the step is repeated.
// AppendEvent returns the event with its own time.
func TestTimeOfAnEventWhoseRepliesWereLost(t *testing.T) {
	t.Parallel()
	s := twoRunStores["written ahead"](memory.New(nil).Open())
	tp := tape.New(s, nil)
	lead := prepareSession(t, tp)
	own := time.UnixMilli(1_000_000).UTC()
	losses, appended := 0, false
	cut := hook(s, func(op string) error {
		if (op == "commit" || op == "multi") && losses > 0 && losses < 6 {
			losses++
			return errReplyLost
		}
		return nil
	}, func(op string) error {
		if op != "commit" && op != "multi" || appended {
			return nil
		}
		got, _, err := tp.GetSession(t.Context(), session, 0)
		if err != nil {
			t.Error(err)
		}
		left := 0
		if recs, err := s.ReadRecords(t.Context(), lead.ID, runstore.RecordQuery{Keys: []runstore.RecordKey{"crossrun/intent"}}); err == nil {
			left = len(recs)
		}
		if len(got.Events) == 2 && left == 0 { // the step is over
			appended, losses = true, 1
			appendEvent(t, tp, session, tape.SessionEvent{ID: "later", Time: time.UnixMilli(9_000_000)}, "")
			return errReplyLost
		}
		return nil
	})
	e, err := tape.New(cut, nil).AppendEvent(t.Context(), session, tape.SessionEvent{ID: "new", Time: own}, "", lead.Lease.Fence())
	if err != nil || !e.Time.Equal(own) {
		t.Errorf("AppendEvent = %v, %v, want the time %v", e.Time, err, own)
	}
}
