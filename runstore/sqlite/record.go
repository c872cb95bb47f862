package sqlite

import (
	"github.com/tapestore/tapestore/runstore"
)

// change puts or deletes one record and replaces its index entries. r is the run's row if the
// caller has read it; change keeps r up to date.
func (tx *tx) change(no int64, r *row, w runstore.RecordWrite, stamp runstore.Stamp) (runstore.Version, error) {
	if w.Delete {
		return 0, tx.delete(no, r, w.Key)
	}
	at, seq := stamp.Time.UnixMicro(), int64(stamp.Seq)
	v, err := tx.c.one(tx.ctx, sqlRecordPut, no, blob(w.Key), data(w.Value), seq, at, int64(stamp.Token))
	if err != nil {
		return 0, err
	}
	version, had := runstore.Version(v[0].(int64)), v[1].(int64)
	return version, tx.place(no, w, had, at)
}

// place replaces the index entries of a record, which had so many, by those of a write at a time.
func (tx *tx) place(no int64, w runstore.RecordWrite, had, at int64) error {
	if had > 0 {
		if _, err := tx.c.exec(tx.ctx, sqlEntriesDelete, no, blob(w.Key)); err != nil {
			return err
		}
	}
	for _, p := range w.Index {
		if _, err := tx.c.exec(tx.ctx, sqlEntryInsert, blob(p.Index), p.At.Resolve(tx.now).UnixMicro(), at, no, blob(w.Key)); err != nil {
			return err
		}
	}
	if had == int64(len(w.Index)) {
		return nil
	}
	_, err := tx.c.exec(tx.ctx, sqlRecordCountEntries, int64(len(w.Index)), no, blob(w.Key))
	return err
}

func (tx *tx) delete(no int64, r *row, key runstore.RecordKey) error {
	v, err := tx.c.one(tx.ctx, sqlRecordDelete, no, blob(key))
	if err != nil || v == nil {
		return err
	}
	if v[1].(int64) > 0 {
		if _, err := tx.c.exec(tx.ctx, sqlEntriesDelete, no, blob(key)); err != nil {
			return err
		}
	}
	floor, err := tx.c.one(tx.ctx, sqlRecordRaiseFloor, v[0], no)
	if err == nil && r != nil {
		r.floor = runstore.Version(floor[0].(int64))
	}
	return err
}
