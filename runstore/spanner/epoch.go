package spanner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Epochs implements runstore.EpochManager.
func (s *engine) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	rows, err := selectAll[struct {
		Epoch  int64
		Began  time.Time
		Reason []byte
	}](ctx, s, byKey("Epochs", spanner.AllKeys(), []string{"Epoch", "Began", "Reason"}, s.read("epochs", 0)))
	for _, row := range rows {
		epochs = append(epochs, runstore.EpochChange{Epoch: runstore.Epoch(row.Epoch), At: row.Began.UTC(), Reason: string(row.Reason)})
	}
	return epochs, err
}

// RaiseEpoch implements runstore.EpochManager.
func (s *engine) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	return s.raise(ctx, reason, func(storeRow) bool { return true })
}

// storeRow is the only row of the table Store, as sql/epoch_read.sql returns it: the epoch and the
// incarnation of this store. It is zero in a database that no handle has initialized yet.
type storeRow struct {
	Epoch       int64
	Incarnation string
	Ended       bool
	FeedShards  int64
	Now         time.Time
}

// initialized reports whether the row exists.
func (r storeRow) initialized() bool { return r.Incarnation != "" }

// readStoreRow returns the row of Store.
func (s *engine) readStoreRow(ctx context.Context) (storeRow, error) {
	row, _, err := selectOne[storeRow](ctx, s, s.sql("store", spanner.Statement{SQL: sqlEpochRead}))
	return row, err
}

// writeStoreRow is [engine.write] for mutations that depend on the row of Store.
func (s *engine) writeStoreRow(ctx context.Context, tag string, f func(now storeRow) ([]*spanner.Mutation, error)) error {
	return s.write(ctx, tag, func(ctx context.Context, tx *spanner.ReadWriteTransaction) ([]*spanner.Mutation, error) {
		var rows []storeRow
		err := spanner.SelectAll(tx.QueryWithOptions(ctx, spanner.Statement{SQL: sqlEpochRead}, s.query("store")), &rows)
		if err != nil {
			return nil, err
		}
		return f(append(rows, storeRow{})[0])
	})
}

// updateStore returns the mutation that sets one column of the row of Store.
func updateStore(name string, value any) []*spanner.Mutation {
	return []*spanner.Mutation{spanner.Update("Store", []string{"One", name}, []any{1, value})}
}

// raise begins a new epoch if wanted returns true for the current state, and ends the grants of
// earlier epochs if they have not been ended yet. It returns the current epoch.
//
// If a commit's reply was lost and the epoch has grown since the first attempt, the epoch counts as
// raised, whether by that commit or by another handle.
func (s *engine) raise(ctx context.Context, reason string, wanted func(storeRow) bool) (runstore.Epoch, error) {
	var now storeRow
	tracker := &commitTracker{here: s.here}
	first := int64(-1)
	err := s.writeStoreRow(tracker.watch(ctx), "raise", func(row storeRow) ([]*spanner.Mutation, error) {
		now = row
		if first < 0 {
			first = now.Epoch
		}
		if now.Epoch > first && tracker.unknown() || !wanted(now) { // already raised, perhaps by another handle
			return nil, nil
		}
		now.Epoch++
		if err := runstore.CheckEpoch(runstore.Epoch(now.Epoch)); err != nil {
			return nil, err
		}
		now.Ended = false
		// A handle that does not know the creation time keeps the stored one, so that the next
		// handle that knows it notices a restore under the same name.
		if s.created != "" || !s.sameIncarnation(now.Incarnation) {
			now.Incarnation = s.incarnation()
		}
		key := feedKey(slots-1, shards)
		return append([]*spanner.Mutation{
			spanner.InsertOrUpdate("Store", []string{"One", "Epoch", "Incarnation", "Ended"}, []any{1, now.Epoch, now.Incarnation, false}),
			spanner.Insert("Epochs", []string{"Epoch", "Began", "Reason"}, []any{now.Epoch, now.Now.Truncate(runstore.TimePrecision), []byte(reason)}),
			// An entry of the feed without an event, so that a reader whose position was lost in a
			// restore finds a later entry and does not get ErrStoreBehind for ever.
			spanner.InsertOrUpdate("Feed", names(key), values(key)),
		}, epochShards(now.Epoch)...), nil
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
	return s.writeStoreRow(ctx, "end-grants", func(now storeRow) ([]*spanner.Mutation, error) {
		if now.Epoch != epoch {
			return nil, nil
		}
		return updateStore("Ended", true), nil
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
	now, err := s.readStoreRow(ctx)
	if err != nil {
		return err
	}
	if !now.initialized() {
		return s.initStoreRow(ctx)
	}
	s.feedShards = now.FeedShards
	if !s.sameIncarnation(now.Incarnation) {
		reason := fmt.Sprintf("restored: the store was in %s", now.Incarnation)
		reason = reason[:min(len(reason), runstore.MaxOwner)]
		epoch, err := s.raise(ctx, reason, func(now storeRow) bool { return !s.sameIncarnation(now.Incarnation) })
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
	return s.writeStoreRow(ctx, "incarnation", func(now storeRow) ([]*spanner.Mutation, error) {
		if now.Incarnation != s.opts.database() {
			return nil, nil
		}
		return updateStore("Incarnation", s.incarnation()), nil
	})
}

// initStoreRow inserts the row of Store and the rows of GrantEpochs, unless another handle has.
func (s *engine) initStoreRow(ctx context.Context) error {
	return s.writeStoreRow(ctx, "begin", func(now storeRow) ([]*spanner.Mutation, error) {
		if now.initialized() {
			return nil, nil
		}
		row := spanner.Insert("Store", []string{"One", "Epoch", "Incarnation", "Ended"}, []any{1, 0, s.incarnation(), true})
		return append(epochShards(0), row), nil
	})
}

// growFeed raises the number of feed shards to that of the options, if it is lower, and sets
// s.feedShards to the result. It must run before the handle's first write.
func (s *engine) growFeed(ctx context.Context) error {
	var shards int64
	err := s.writeStoreRow(ctx, "grow-feed", func(now storeRow) ([]*spanner.Mutation, error) {
		shards = max(now.FeedShards, s.opts.FeedShards)
		if shards == now.FeedShards {
			return nil, nil
		}
		return updateStore("FeedShards", shards), nil
	})
	if err == nil {
		s.feedShards = shards
	}
	return err
}
