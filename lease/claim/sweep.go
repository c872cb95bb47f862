package claim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// The ids of acknowledged messages are forgotten in passing: one ack in sweepEvery reads sweepPage
// of the shard's remembered ids, from a random one on, and deletes those that are over. As many ids
// are deleted as are added once a quarter of them is over, so on average the shard keeps a third more
// ids than it has to remember. An id that is over and not deleted has no effect.
const (
	sweepEvery = 16
	sweepPage  = 64
)

// sweep deletes remembered ids that are over at a time of the store clock. A failure is logged: a
// later sweep finds the same ids.
func (q *Queue) sweep(ctx context.Context, run runstore.RunID, now time.Time) {
	var start [8]byte
	binary.BigEndian.PutUint64(start[:], rand.Uint64())
	query := runstore.RecordQuery{Prefix: donePrefix, After: runstore.RecordKey(fmt.Sprintf("%s%x", donePrefix, start)), Limit: sweepPage}
	page, err := q.store.ReadRecords(ctx, run, query)
	if err == nil && len(page) < sweepPage { // few ids, or the start was near the end
		query.After, query.Limit = "", sweepPage-len(page)
		var first []runstore.Record
		first, err = q.store.ReadRecords(ctx, run, query)
		page = unite(first, page)
	}
	if err == nil {
		err = q.forget(ctx, run, page, now)
	}
	if err != nil {
		q.opts.Logger.DebugContext(ctx, "claim: a sweep of acknowledged ids failed", "queue", q.name, "run", run, "error", err)
	}
}

// unite returns the records of two pages, those with a key in both once.
func unite(a, b []runstore.Record) []runstore.Record {
	seen := map[runstore.RecordKey]bool{}
	for _, rec := range b {
		seen[rec.Key] = true
	}
	for _, rec := range a {
		if !seen[rec.Key] {
			b = append(b, rec)
		}
	}
	return b
}

func (q *Queue) forget(ctx context.Context, run runstore.RunID, page []runstore.Record, now time.Time) error {
	var guards []runstore.Guard
	var w runstore.Writes
	for _, rec := range page {
		_, id, _ := strings.Cut(strings.TrimPrefix(string(rec.Key), donePrefix), "/")
		m, err := decode(id, rec)
		if err != nil {
			return err
		}
		if m.State == done && !now.Before(m.remembered()) {
			guards = append(guards, runstore.AtVersion(rec.Key, rec.Version))
			w.Delete(rec.Key)
		}
	}
	if len(guards) == 0 {
		return nil
	}
	b := runstore.NewBatch(run, guards[0], guards[1:]...)
	b.Writes = w
	_, err := optimistic.Commit(ctx, q.store, b)
	return err
}
