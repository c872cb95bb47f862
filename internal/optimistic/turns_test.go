package optimistic_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Operations with one key take turns in the order in which they came, those with other keys do not
// wait, and a caller whose context ends before its turn gets ErrUnavailable. Keys that are not in use
// take no memory.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns optimistic.Turns[string]
		first, err := turns.Take(t.Context(), "a", "test")
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		for i := range 5 {
			go func() {
				end, err := turns.Take(t.Context(), "a", "test")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i) // the turn guards it
				end()
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		given := make(chan error)
		go func() {
			_, err := turns.Take(ctx, "a", "test")
			given <- err
		}()
		synctest.Wait()
		cause := errors.New("the caller's cause")
		cancel(cause)
		if err := <-given; !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, cause) {
			t.Errorf("a caller that gives up: %v, want ErrUnavailable with its cause", err)
		}
		other, err := turns.Take(t.Context(), "b", "test")
		if err != nil || turns.Len() != 2 {
			t.Errorf("another key: %v, %d keys in use, want 2", err, turns.Len())
		}
		other()
		first()
		synctest.Wait()
		if !slices.IsSorted(order) || len(order) != 5 || turns.Len() != 0 {
			t.Errorf("turns in the order %v, then %d keys in use, want 0 to 4 and none", order, turns.Len())
		}
	})
}

// An operation that waits for a reply that never comes keeps the others with its key waiting for a
// bounded time. Its own end, however late, takes no turn from them.
func TestTurnOfAnOperationThatNeverEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns optimistic.Turns[string]
		stuck, err := turns.Take(t.Context(), "a", "test")
		if err != nil {
			t.Fatal(err)
		}
		second, err := turns.Take(t.Context(), "a", "test")
		if err != nil {
			t.Fatal(err)
		}
		stuck()
		given := make(chan func())
		go func() {
			third, err := turns.Take(t.Context(), "a", "test")
			if err != nil {
				t.Error(err)
			}
			given <- third
		}()
		synctest.Wait()
		select {
		case <-given:
			t.Fatal("two operations have a turn")
		default:
		}
		second()
		(<-given)()
		if turns.Len() != 0 {
			t.Errorf("%d keys in use, want none", turns.Len())
		}
	})
}
