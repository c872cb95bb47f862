package protocol_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// The driver of a full run appends to a session under its fence where the engine commits to two runs
// at once. On Bigtable the event is refused before anything is written, and the driver goes on: it is
// appended under the same fence when the run has room again.
func TestDriverOfAFullRunAppendsEvents(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		f := &fullRun{t: t, s: store, tp: tape.New(store, nil)}
		f.take("first")
		f.fill()
		f.complete(f.inline[0], 100)
		f.top()
		key := tape.SessionKey{App: "app", User: "u", Session: "s"}
		appendEvent := func(id string) error {
			_, err := f.tp.AppendEvent(t.Context(), key, tape.SessionEvent{ID: id}, "{}", f.fence())
			return err
		}
		err := appendEvent("e")
		if strings.HasSuffix(t.Name(), "/bigtable") {
			var limit *runstore.LimitError
			if !errors.As(err, &limit) || limit.Kind != runstore.ErrTooLarge || limit.Field != "records" {
				t.Fatalf("AppendEvent under the fence of a full run: %v, want ErrTooLarge that names the records", err)
			}
			b := runstore.NewBatch(f.run.ID, f.fence())
			for i := range f.pebbles {
				b.Delete(numbered("pebble", i))
			}
			for i := range 20 {
				b.Delete(numbered("ballast", i))
			}
			_, err = f.s.Commit(t.Context(), b)
			f.check("making room", err)
			err = appendEvent("later")
		}
		f.check("AppendEvent", err)
		s, _, err := f.tp.GetSession(t.Context(), key, 0)
		f.check("GetSession", err)
		if len(s.Events) != 1 {
			t.Errorf("the session has %d events, want the one that was acknowledged", len(s.Events))
		}
	})
}
