package temporal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/engines"
	"github.com/tapestore/tapestore/emulators"
)

// target is the target "postgres" with the peer; nil if the machine lacks PostgreSQL.
var target *bench.Target

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	starter := engines.Named("postgres")[0]
	started, err := starter.Start(context.Background())
	switch {
	case err != nil && starter.Missing(err) && os.Getenv("CI") == "":
		fmt.Fprintln(os.Stderr, err)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	default:
		target = &started
	}
	code := m.Run()
	if target != nil {
		if err := target.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "to stop it:", err)
			return 1
		}
	}
	return code
}

func open(t *testing.T, contenders, leases int) *contest {
	t.Helper()
	if target == nil {
		emulators.Require(t, emulators.ErrMissing)
	}
	made, err := target.Strategies[0].New(t.Context(), contenders, leases)
	if err != nil {
		t.Fatal(err)
	}
	return made.(*contest)
}

// TestTurns checks that each turn stores one task, however many contenders take the shard from each
// other.
func TestTurns(t *testing.T) {
	const contenders, leases, turns = 4, 2, 4
	c := open(t, contenders, leases)
	var all sync.WaitGroup
	for contender := range contenders {
		all.Go(func() {
			for i := range turns {
				turn, err := c.Turn(t.Context(), contender, i%leases)
				switch {
				case err != nil:
					t.Errorf("contender %d: %v", contender, err)
					return
				case turn.Waited <= 0:
					t.Error("a turn took no time")
				case turn.Attempts != len(turn.Lost)+1:
					t.Errorf("%d attempts, of which %d were refused", turn.Attempts, len(turn.Lost))
				case turn.Calls < 5:
					t.Errorf("a turn of %d statements", turn.Calls)
				}
			}
		})
	}
	all.Wait()
	if n, err := c.Committed(t.Context()); err != nil || n != contenders*turns {
		t.Errorf("%d of %d tasks are stored: %v", n, contenders*turns, err)
	}
	// A contest counts only its own tasks.
	if n, err := open(t, 1, 1).Committed(t.Context()); err != nil || n != 0 {
		t.Errorf("a new contest has %d tasks: %v", n, err)
	}
}

// TestCancelledTurn checks that a contender whose context has ended acquires nothing.
func TestCancelledTurn(t *testing.T) {
	c := open(t, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Turn(ctx, 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled turn returns %v", err)
	}
	if n, err := c.Committed(t.Context()); err != nil || n != 0 {
		t.Errorf("%d tasks of no turn: %v", n, err)
	}
}

// TestPauseAndWake checks that a shard's former owner stores nothing, as the peer's Guarantee says.
func TestPauseAndWake(t *testing.T) {
	woke, err := open(t, 2, 1).PauseAndWake(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if woke.Stored || woke.Answer == "no error" {
		t.Errorf("stored: %v; the former owner gets %q", woke.Stored, woke.Answer)
	}
	t.Logf("the former owner gets %q; taken over after %v", woke.Answer, woke.Takeover)
}
