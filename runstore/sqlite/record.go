package sqlite

import (
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

const (
	// A new record starts above every version that a deleted one of the run had.
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

	purgeEvents    = `DELETE FROM events WHERE pos BETWEEN ? AND ? AND run = ?`
	lastEvent      = `SELECT pos, run FROM events ORDER BY pos DESC LIMIT 1`
	keepPosition   = `UPDATE events SET run = 0, seq = 0, kind = '', data = x'', token = 0, owner = x'' WHERE pos = ?`
	selectExtents  = `SELECT extents FROM journal WHERE run = ? UNION ALL SELECT tail FROM runs WHERE no = ?`
	purgeJournal   = `DELETE FROM journal WHERE run = ?`
	purgeTail      = `UPDATE runs SET tail_seq = 1, tail = x'' WHERE no = ?`
	purgeRecords   = `DELETE FROM records WHERE run = ?`
	purgePlaces    = `DELETE FROM places WHERE run = ?`
	purgeBatches   = `DELETE FROM batches WHERE run = ?`
	highestVersion = `SELECT coalesce(max(version), 0) FROM records WHERE run = ?`
)

// change puts or deletes one record and moves its places. r is the run's row
// where it was read, kept up with what changes in it.
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

// purge removes everything of a run but its row, which keeps its token and what
// keeps its versions growing.
func (tx *tx) purge(r *row) error {
	highest, err := tx.c.one(tx.ctx, highestVersion, r.no)
	if err != nil {
		return err
	}
	if err := tx.purgeEvents(r.no); err != nil {
		return err
	}
	for _, statement := range []string{purgeJournal, purgeTail, purgeRecords, purgePlaces, purgeBatches} {
		if _, err := tx.c.exec(tx.ctx, statement, r.no); err != nil {
			return err
		}
	}
	r.floor = max(r.floor, runstore.Version(highest[0].(int64)))
	r.Head = r.Ended(rules.Revoked)
	r.purged, r.LastSeq = true, 0
	tx.changed = true
	return tx.save(r)
}

// purgeEvents removes a run's events from the feed. The feed's last position must
// not be given out again, so an event that stands there leaves a mark.
func (tx *tx) purgeEvents(no int64) error {
	if v, err := tx.c.one(tx.ctx, lastEvent); err != nil {
		return err
	} else if v != nil && v[1].(int64) == no {
		if _, err := tx.c.exec(tx.ctx, keepPosition, v[0]); err != nil {
			return err
		}
	}
	var extents []extent
	v, err := tx.c.all(tx.ctx, selectExtents, no, no)
	if err != nil {
		return err
	}
	for _, row := range v {
		extents = append(extents, decodeExtents(bytesOf(row[0]))...)
	}
	for _, e := range extents {
		if _, err := tx.c.exec(tx.ctx, purgeEvents, int64(e.pos), int64(e.pos)+int64(e.count)-1, no); err != nil {
			return err
		}
	}
	return nil
}
