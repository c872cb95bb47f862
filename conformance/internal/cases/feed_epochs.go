package cases

import (
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

func feedThroughEpochs(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	raises := e.Scaled(t, "epochs", 128, 256)
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Append("event", nil)
	kit.MustCommit(t, e.Store, b)
	for i := range raises {
		if i == raises/2 && e.AdvanceClock != nil {
			e.Advance(t, 30*365*24*time.Hour) // the mere passage of time consumes few positions or none
		}
		e.RaiseEpoch(t, e.Store, fmt.Sprintf("raise %d", i))
		kit.MustCommit(t, e.Store, b)
	}
	feed := kit.FeedOf(t, e, e.Store, raises+1)
	for i, event := range feed {
		if event.Position <= 0 || event.Position > runstore.MaxPosition || i > 0 && event.Position <= feed[i-1].Position {
			t.Fatalf("after %d raises an event has position %d, want one that grows, up to %d", i, event.Position, runstore.MaxPosition)
		}
	}
	cost := (feed[raises].Position - feed[0].Position) / runstore.Position(raises)
	if cost > runstore.MaxPosition/runstore.Position(runstore.MaxEpoch) {
		t.Errorf("a raise costs %d positions, so %d epochs cost more than %d", cost, runstore.MaxEpoch, runstore.MaxPosition)
	}
}
