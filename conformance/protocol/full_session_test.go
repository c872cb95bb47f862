package protocol_test

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestDriverOfAFullRunAppendsEvents appends to a session under the fence of a full run. On Bigtable
// the step over both runs begins with a record on the full run that is in no queue.
func TestDriverOfAFullRunAppendsEvents(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		f := &fullRun{t: t, s: store, tp: tape.New(store, nil)}
		f.take("first")
		f.fill()
		f.complete(f.inline[0], 100)
		f.top()
		key := tape.SessionKey{App: "app", User: "u", Session: "s"}
		_, err := f.tp.AppendEvent(t.Context(), key, tape.SessionEvent{ID: "e"}, "{}", f.fence())
		f.check("AppendEvent", err)
		s, _, err := f.tp.GetSession(t.Context(), key, 0)
		f.check("GetSession", err)
		if len(s.Events) != 1 {
			t.Errorf("the session has %d events, want the one that was acknowledged", len(s.Events))
		}
	})
}
