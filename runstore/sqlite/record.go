package sqlite

import (
	"github.com/tapestore/tapestore/runstore"
)

const (
	// A new record starts above every version that a deleted record of the run had.
	putRecord = `INSERT INTO records (run, key, version, value, created_seq, created, created_token, updated_seq, updated, updated_token, places)
		VALUES (?1, ?2, (SELECT version_floor + 1 FROM runs WHERE no = ?1), ?3, ?4, ?5, ?6, ?4, ?5, ?6, 0)
		ON CONFLICT (run, key) DO UPDATE SET version = version + 1, value = excluded.value,
			updated_seq = excluded.updated_seq, updated = excluded.updated, updated_token = excluded.updated_token
		RETURNING version, places`
	countPlaces  = `UPDATE records SET places = ? WHERE run = ? AND key = ?`
	deleteRecord = `DELETE FROM records WHERE run = ? AND key = ? RETURNING version, places`
	raiseFloor   = `UPDATE runs SET version_floor = max(version_floor, ?) WHERE no = ? RETURNING version_floor`
	insertPlace  = `INSERT INTO places (name, at, written, run, key) VALUES (?, ?, ?, ?, ?)`
	deletePlaces = `DELETE FROM places WHERE run = ? AND key = ?`
)

// change puts or deletes one record and replaces its index entries. r is the run's row if the
// caller has read it; change keeps r up to date.
func (tx *tx) change(no int64, r *row, w runstore.RecordWrite, stamp runstore.Stamp) (runstore.Version, error) {
	if w.Delete {
		return 0, tx.delete(no, r, w.Key)
	}
	at, seq := stamp.Time.UnixMicro(), int64(stamp.Seq)
	v, err := tx.c.one(tx.ctx, putRecord, no, blob(w.Key), data(w.Value), seq, at, int64(stamp.Token))
	if err != nil {
		return 0, err
	}
	version, had := runstore.Version(v[0].(int64)), v[1].(int64)
	if had > 0 {
		if _, err := tx.c.exec(tx.ctx, deletePlaces, no, blob(w.Key)); err != nil {
			return 0, err
		}
	}
	for _, p := range w.Index {
		if _, err := tx.c.exec(tx.ctx, insertPlace, blob(p.Index), p.At.Resolve(tx.now).UnixMicro(), at, no, blob(w.Key)); err != nil {
			return 0, err
		}
	}
	if had != int64(len(w.Index)) {
		_, err = tx.c.exec(tx.ctx, countPlaces, int64(len(w.Index)), no, blob(w.Key))
	}
	return version, err
}

func (tx *tx) delete(no int64, r *row, key runstore.RecordKey) error {
	v, err := tx.c.one(tx.ctx, deleteRecord, no, blob(key))
	if err != nil || v == nil {
		return err
	}
	if v[1].(int64) > 0 {
		if _, err := tx.c.exec(tx.ctx, deletePlaces, no, blob(key)); err != nil {
			return err
		}
	}
	floor, err := tx.c.one(tx.ctx, raiseFloor, v[0], no)
	if err == nil && r != nil {
		r.floor = runstore.Version(floor[0].(int64))
	}
	return err
}
