package gate_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/internal/gate"
)

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate.Gate
		if blocked, err := g.Pass(t.Context()); blocked || err != nil || g.Closed() {
			t.Fatalf("an open gate: blocked %t, error %v, closed %t", blocked, err, g.Closed())
		}
		held, open := g.Close()
		passed := make(chan bool, 2)
		for range 2 {
			go func() {
				blocked, err := g.Pass(t.Context())
				passed <- blocked && err == nil
			}()
		}
		if err := held(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		gone, leave := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		leave(enough)
		if err := held(gone, 1); !errors.Is(err, enough) {
			t.Errorf("a wait for a third caller: got %v, want the context's cause", err)
		}
		if blocked, err := g.Pass(gone); !blocked || !errors.Is(err, context.Canceled) {
			t.Errorf("a caller whose context has ended: blocked %t, error %v", blocked, err)
		}
		synctest.Wait()
		if len(passed) > 0 {
			t.Error("a caller passed a closed gate")
		}
		open()
		open()
		for range 2 {
			if !<-passed {
				t.Error("a blocked caller did not pass the gate once it was open")
			}
		}
		if err := held(t.Context(), 1); err == nil {
			t.Error("a wait for a caller of an open gate has to end")
		}
	})
}
