package spanner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Epochs implements runstore.EpochManager.
func (s *engine) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = s.rows(ctx, spanner.StrongRead(), func(ctx context.Context, tx *spanner.ReadOnlyTransaction) *spanner.RowIterator {
		return tx.ReadWithOptions(ctx, "Epochs", spanner.AllKeys(), []string{"Epoch", "Began", "Reason"}, s.read("epochs", 0))
	}, func() { epochs = nil }, func(row *spanner.Row) (bool, error) {
		var epoch int64
		var began time.Time
		var reason []byte
		err := row.Columns(&epoch, &began, &reason)
		epochs = append(epochs, runstore.EpochChange{Epoch: runstore.Epoch(epoch), At: began.UTC(), Reason: string(reason)})
		return true, err
	})
	return epochs, err
}

// RaiseEpoch implements runstore.EpochManager.
func (s *engine) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	return s.raise(ctx, reason, func(*storeRow) bool { return true })
}

// storeRow is the only row of the table Store: the epoch and the incarnation of this store.
type storeRow struct {
	Epoch       int64
	Incarnation string
	Ended       bool
	FeedShards  int64
	Now         time.Time // set by sql/epoch_read.sql only
}

// rowReader is implemented by read-only and read-write transactions.
type rowReader interface {
	ReadRowWithOptions(ctx context.Context, table string, key spanner.Key, columns []string, opts *spanner.ReadOptions) (*spanner.Row, error)
}

// readStoreRow reads the row of Store by its key, which costs less than a SQL statement. It returns
// nil in a database that no handle has initialized yet.
func (s *engine) readStoreRow(ctx context.Context, tx rowReader) (*storeRow, error) {
	row, err := tx.ReadRowWithOptions(ctx, "Store", spanner.Key{1}, []string{"Epoch", "Incarnation", "Ended", "FeedShards"}, s.read("store", 0))
	if errors.Is(err, spanner.ErrRowNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var now storeRow
	var feed spanner.NullInt64
	err = row.Columns(&now.Epoch, &now.Incarnation, &now.Ended, &feed)
	if now.FeedShards = shards; feed.Valid {
		now.FeedShards = feed.Int64
	}
	return &now, err
}

// raise begins a new epoch if wanted returns true for the current state, and ends the grants of
// earlier epochs if they have not been ended yet. It returns the current epoch.
//
// If a commit's reply was lost and the epoch has grown since the first attempt, the epoch counts as
// raised, whether by that commit or by another handle.
func (s *engine) raise(ctx context.Context, reason string, wanted func(*storeRow) bool) (runstore.Epoch, error) {
	var now storeRow
	tracker := &commitTracker{here: s.here}
	first := int64(-1)
	err := s.retry(tracker.watch(ctx), func(ctx context.Context) error {
		_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			now = storeRow{}
			err := tx.QueryWithOptions(ctx, spanner.Statement{SQL: sqlEpochRead}, s.query("store")).Do(func(row *spanner.Row) error {
				return row.ToStruct(&now)
			})
			if err != nil {
				return err
			}
			if first < 0 {
				first = now.Epoch
			}
			if now.Epoch > first && tracker.unknown() || !wanted(&now) { // already raised, perhaps by another handle
				return errNothingToWrite
			}
			now.Epoch++
			if err := runstore.CheckEpoch(runstore.Epoch(now.Epoch)); err != nil {
				return err
			}
			now.Ended = false
			// A handle that does not know the creation time keeps the stored one, so that the next
			// handle that knows it notices a restore under the same name.
			if s.created != "" || !s.sameIncarnation(now.Incarnation) {
				now.Incarnation = s.incarnation()
			}
			key := feedKey(spanner.CommitTimestamp, slots-1, shards)
			list := []*spanner.Mutation{
				spanner.InsertOrUpdate("Store", []string{"One", "Epoch", "Incarnation", "Ended"}, []any{1, now.Epoch, now.Incarnation, false}),
				spanner.Insert("Epochs", []string{"Epoch", "Began", "Reason"}, []any{now.Epoch, now.Now.Truncate(runstore.TimePrecision), []byte(reason)}),
				// An entry of the feed without an event, so that a reader whose position was lost in a
				// restore finds a later entry and does not get ErrStoreBehind for ever.
				spanner.InsertOrUpdate("Feed", names(key), values(key)),
			}
			return tx.BufferWrite(append(list, epochShards(now.Epoch)...))
		}, s.transaction("raise"))
		return ignoreNothingToWrite(err)
	})
	if err != nil {
		if tracker.unknown() {
			err = outcome.Unknown(err)
		}
		return 0, err
	}
	if !now.Ended {
		if err := s.endGrants(ctx, now.Epoch); err != nil { // the epoch is raised, but grants of earlier epochs may still be in force
			return 0, outcome.Unknown(err)
		}
	}
	return runstore.Epoch(now.Epoch), nil
}

// epochShards returns mutations that write the epoch to each shard's row of GrantEpochs.
func epochShards(epoch int64) (list []*spanner.Mutation) {
	for shard := range shards {
		list = append(list, spanner.InsertOrUpdate("GrantEpochs", []string{"Shard", "Epoch"}, []any{shard, epoch}))
	}
	return list
}

// ignoreNothingToWrite returns nil for errNothingToWrite and any other error unchanged.
func ignoreNothingToWrite(err error) error {
	if errors.Is(err, errNothingToWrite) {
		return nil
	}
	return err
}

// endGrants ends the grants of epochs before this one and records that this is done. It takes long
// in a store with many runs.
func (s *engine) endGrants(ctx context.Context, epoch int64) error {
	stmt := spanner.Statement{SQL: sqlEpochEndGrants, Params: map[string]any{"floor": int64(runstore.Epoch(epoch).Floor())}}
	err := s.retryUnbounded(ctx, func(ctx context.Context) error {
		_, err := s.client.PartitionedUpdateWithOptions(ctx, stmt, s.query("end-grants"))
		return err
	})
	if err != nil {
		return err
	}
	return s.retry(ctx, func(ctx context.Context) error {
		_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			now, err := s.readStoreRow(ctx, tx)
			if err != nil || now == nil || now.Epoch != epoch {
				return err
			}
			return tx.BufferWrite([]*spanner.Mutation{spanner.Update("Store", []string{"One", "Ended"}, []any{1, true})})
		}, s.transaction("end-grants"))
		return err
	})
}

// incarnation returns a name that changes when a backup is restored into another database, or under
// the name of a deleted one: the database's full name and its creation time.
func (s *engine) incarnation() string {
	if s.created == "" {
		return s.opts.database()
	}
	return s.opts.database() + "@" + s.created
}

// sameIncarnation reports whether the stored incarnation is this database. A creation time that is
// unknown on either side matches any, because not every account may read it.
func (s *engine) sameIncarnation(stored string) bool {
	name, created, _ := strings.Cut(stored, "@")
	return name == s.opts.database() && (created == s.created || created == "" || s.created == "")
}

// checkIncarnation prepares a database for a new handle. It inserts the row of Store if there is
// none, raises the epoch if the database was restored or copied, and finishes a raise that was cut
// short.
func (s *engine) checkIncarnation(ctx context.Context) error {
	var now *storeRow
	err := s.retry(ctx, func(ctx context.Context) (err error) {
		now, err = s.readStoreRow(ctx, s.client.Single())
		return err
	})
	switch {
	case err != nil:
		return err
	case now == nil:
		return s.initStoreRow(ctx)
	}
	s.feedShards = now.FeedShards
	switch {
	case !s.sameIncarnation(now.Incarnation):
		reason := fmt.Sprintf("restored: the store was in %s", now.Incarnation)
		if len(reason) > runstore.MaxOwner {
			reason = reason[:runstore.MaxOwner]
		}
		epoch, err := s.raise(ctx, reason, func(now *storeRow) bool { return !s.sameIncarnation(now.Incarnation) })
		if err == nil {
			s.opts.Logger.Warn("spanner: this database was restored or copied: the epoch was raised and every lease ended",
				"epoch", epoch, "was", now.Incarnation, "is", s.incarnation())
		}
		return err
	}
	if now.Incarnation == s.opts.database() && s.created != "" { // stored by a handle that did not know the creation time
		if err := s.addCreation(ctx); err != nil {
			return err
		}
	}
	if !now.Ended {
		return s.endGrants(ctx, now.Epoch)
	}
	return nil
}

// addCreation adds the creation time to an incarnation that was stored without one.
func (s *engine) addCreation(ctx context.Context) error {
	return s.retry(ctx, func(ctx context.Context) error {
		_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			now, err := s.readStoreRow(ctx, tx)
			if err != nil || now == nil || now.Incarnation != s.opts.database() {
				return err
			}
			return tx.BufferWrite([]*spanner.Mutation{spanner.Update("Store", []string{"One", "Incarnation"}, []any{1, s.incarnation()})})
		}, s.transaction("incarnation"))
		return err
	})
}

// initStoreRow inserts the row of Store and the rows of GrantEpochs, unless another handle has.
func (s *engine) initStoreRow(ctx context.Context) error {
	return s.retry(ctx, func(ctx context.Context) error {
		_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			if now, err := s.readStoreRow(ctx, tx); err != nil || now != nil {
				return err
			}
			list := []*spanner.Mutation{spanner.Insert("Store", []string{"One", "Epoch", "Incarnation", "Ended"}, []any{1, 0, s.incarnation(), true})}
			return tx.BufferWrite(append(list, epochShards(0)...))
		}, s.transaction("begin"))
		return err
	})
}

// growFeed raises the number of feed shards to that of the options, if it is lower, and sets
// s.feedShards to the result. It must run before the handle's first write.
func (s *engine) growFeed(ctx context.Context) error {
	return s.retry(ctx, func(ctx context.Context) error {
		var shards int64
		_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			now, err := s.readStoreRow(ctx, tx)
			if err != nil {
				return err
			}
			shards = max(now.FeedShards, s.opts.FeedShards)
			if shards == now.FeedShards {
				return errNothingToWrite
			}
			return tx.BufferWrite([]*spanner.Mutation{spanner.Update("Store", []string{"One", "FeedShards"}, []any{1, shards})})
		}, s.transaction("grow-feed"))
		if err = ignoreNothingToWrite(err); err == nil {
			s.feedShards = shards
		}
		return err
	})
}
