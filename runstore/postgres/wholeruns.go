package postgres

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ScanRuns implements adapter.MoverCore, in the order of the ids.
func (e *engine) ScanRuns(ctx context.Context, after runstore.RunID, limit int) (ids []runstore.RunID, err error) {
	err = e.read(ctx, func(q *query) error {
		ids = nil
		var id []byte
		return q.each(limited(sqlRunsScan, limit), []any{data([]byte(after))}, []any{&id}, func() error {
			ids = append(ids, runstore.RunID(id))
			return nil
		})
	})
	return ids, err
}

// ReadPlaced implements adapter.MoverCore.
func (e *engine) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (page runstore.PlacedPage, err error) {
	err = e.read(ctx, func(q *query) error {
		page = runstore.PlacedPage{}
		found := false
		var floor int64
		var r nullRecord
		var names [][]byte
		var times []time.Time
		targets := append([]any{&floor, &r.key}, r.targets()...)
		args := []any{[]byte(id), data([]byte(after)), int64(runstore.MaxPageBytes)}
		err := q.each(limited(sqlRecordsPlaced, limit), args, append(targets, &names, &times), func() error {
			found, page.Floor = true, runstore.Version(floor)
			if !r.version.Valid {
				return nil
			}
			placed := runstore.PlacedRecord{Record: r.record(runstore.RecordKey(r.key))}
			for i, name := range names {
				placed.Index = append(placed.Index, runstore.Place{Index: runstore.IndexName(name), At: runstore.At(times[i])})
			}
			page.Records = append(page.Records, placed)
			return nil
		})
		if err == nil && !found {
			return runstore.ErrNotFound
		}
		return err
	})
	return page, err
}

// commitHistory is Commit for a part of an imported history. It is a commit of one run in the form of
// one of several, whose transaction has one more statement (sql/history.sql).
func (e *engine) commitHistory(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	r := commitRequest(batch)
	r.write.sharedTime = true
	all, err := e.performMulti(ctx, []runstore.Batch{batch}, []*request{r})
	if err != nil {
		return done, err
	}
	done = all[0]
	for i, was := range batch.History().Records {
		if i < len(done.Versions) {
			done.Versions[i] = was.Version
		}
	}
	return done, nil
}

// historyArgs returns the arguments of sql/history.sql.
func historyArgs(b runstore.Batch) []any {
	h := b.History()
	var created *time.Time
	if !h.CreatedAt.IsZero() {
		created = &h.CreatedAt
	}
	var seqs, tokens, versions, createdSeqs, createdTokens, updatedSeqs, updatedTokens []int64
	var times, createdTimes, updatedTimes []time.Time
	var owners, keys [][]byte
	for _, e := range h.Events {
		seqs, times, tokens, owners = append(seqs, int64(e.Seq)), append(times, e.Time), append(tokens, int64(e.Token)), append(owners, data([]byte(e.Owner)))
	}
	for _, r := range h.Records {
		keys, versions = append(keys, []byte(r.Key)), append(versions, int64(r.Version))
		createdSeqs, createdTimes, createdTokens = append(createdSeqs, int64(r.Created.Seq)), append(createdTimes, r.Created.Time), append(createdTokens, int64(r.Created.Token))
		updatedSeqs, updatedTimes, updatedTokens = append(updatedSeqs, int64(r.Updated.Seq)), append(updatedTimes, r.Updated.Time), append(updatedTokens, int64(r.Updated.Token))
	}
	return []any{
		[]byte(b.Run()), int64(h.Floor), created, seqs, times, tokens, owners,
		keys, versions, createdSeqs, createdTimes, createdTokens, updatedSeqs, updatedTimes, updatedTokens, b.Release,
	}
}
