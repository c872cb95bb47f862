package sqlite

import (
	"encoding/json"

	"github.com/tapestore/tapestore/runstore"
)

const (
	selectBatch = `SELECT batches.result FROM batches JOIN runs ON runs.no = batches.run
		WHERE runs.id = ? AND runs.purged = 0 AND batches.id = ?`
	numberBatch   = `UPDATE runs SET batches = batches + 1 WHERE no = ? RETURNING batches`
	insertBatch   = `INSERT INTO batches (run, id, no, result) VALUES (?, ?, ?, ?)`
	forgetBatches = `DELETE FROM batches WHERE run = ? AND no <= ?`
)

// forgetEvery is how many batches with an id a run commits between two deletions of its
// oldest ids. A deletion reads all ids of the run, at most forgetEvery more than are
// remembered: five of them per batch.
const forgetEvery = runstore.RememberedBatches / 4

// kept is a result as it is stored: of a batch, and of the commit of several runs that
// it was part of, if it was.
type kept struct {
	runstore.Committed
	Whole []byte `json:",omitempty"`
}

// remember stores the result of a batch under its id, and forgets ids of the run that are
// older than those which the contract names. So a run's ids are bounded, and a commit costs
// the same however many came before it.
func (tx *tx) remember(run int64, id runstore.BatchID, result kept) error {
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	v, err := tx.c.one(tx.ctx, numberBatch, run)
	if err != nil {
		return err
	}
	no := v[0].(int64)
	if _, err := tx.c.exec(tx.ctx, insertBatch, run, string(id), no, text); err != nil {
		return err
	}
	if no%forgetEvery == 0 {
		_, err = tx.c.exec(tx.ctx, forgetBatches, run, no-runstore.RememberedBatches)
	}
	return err
}

// replay returns the first result of a batch that was applied before.
func (tx *tx) replay(b runstore.Batch) (*kept, error) {
	if b.ID == "" {
		return nil, nil
	}
	v, err := tx.c.one(tx.ctx, selectBatch, blob(b.Run()), string(b.ID))
	if err != nil || v == nil {
		return nil, err
	}
	var first kept
	if err := json.Unmarshal(bytesOf(v[0]), &first); err != nil {
		return nil, err
	}
	first.Replayed = true
	return &first, nil
}

func (k *kept) committed() runstore.Committed {
	if k == nil {
		return runstore.Committed{}
	}
	return k.Committed
}
