package spanner

import (
	"context"
	"sync"
	"testing"

	"cloud.google.com/go/spanner"
)

// Many clients of many databases, with all that may go wrong at once: every increment is
// done once.
func TestUnderFaults(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	ctx := soonOn(t)
	s.AbortAtRandom(0.2, 1, nil)
	s.DropReplies(4, func(c Call) bool { return c.Method == "Commit" })
	s.BreakStreams(6, 0, func(c Call) bool { return c.Method == "StreamingRead" })
	s.BreakStreams(6, 1, func(c Call) bool { return c.Method == "ExecuteStreamingSql" })
	const databases, clients, times = 3, 3, 4
	var wg sync.WaitGroup
	for range databases {
		o := newTestDatabase(t, s)
		first := o.client()
		o.put(first, map[string]int64{"row": 0})
		var inDatabase sync.WaitGroup
		for range clients {
			c := o.client()
			inDatabase.Go(func() {
				for range times {
					if err := add(ctx, c, "row", 1); err != nil {
						t.Errorf("by mutation: %v", err)
					}
					if err := o.count(c); err != nil {
						t.Errorf("by DML: %v", err)
					}
				}
			})
		}
		wg.Go(func() {
			inDatabase.Wait()
			o.has(first, "row", 2*clients*times)
		})
	}
	wg.Wait()
	t.Logf("%v", s.Calls())
}

// count adds 1 by DML that returns what it did.
func (o testDatabase) count(c *spanner.Client) error {
	_, err := c.ReadWriteTransaction(soonOn(o.t), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		return tx.Query(ctx, spanner.NewStatement("UPDATE T SET N = N + 1 WHERE K = 'row' THEN RETURN N")).Do(func(*spanner.Row) error { return nil })
	})
	return err
}
