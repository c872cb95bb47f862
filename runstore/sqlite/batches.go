package sqlite

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// forgetEvery is how many batches with an id a run commits between two deletions of its oldest ids:
// 32. A deletion reads all ids of the run, at most forgetEvery more than are remembered, which is
// five ids for each batch.
const forgetEvery = runstore.RememberedBatches / 4

// storedResult is the result of a request in its stored form.
type storedResult struct {
	runstore.Committed
	// MultiCommitID is the id of the commit of several runs that a batch was part of, or nil. Its
	// stored name is older.
	MultiCommitID []byte `json:"Whole,omitempty"`
	// Token is the token of the grant that the request made or released. Former is how the grant
	// before that one ended.
	Token  runstore.Token    `json:",omitempty"`
	Former runstore.GrantEnd `json:",omitempty"`
}

// append appends the result as JSON. json.Marshal takes four times as long, a fiftieth of a commit.
func (k *storedResult) append(b []byte) []byte {
	field := func(name string, n int64) { b = strconv.AppendInt(append(b, name...), n, 10) }
	field(`{"FirstSeq":`, int64(k.FirstSeq))
	field(`,"LastSeq":`, int64(k.LastSeq))
	b = k.Time.AppendFormat(append(b, `,"Time":"`...), time.RFC3339Nano)
	b = append(b, '"')
	if len(k.Versions) > 0 {
		field(`,"Versions":[`, int64(k.Versions[0]))
		for _, v := range k.Versions[1:] {
			field(`,`, int64(v))
		}
		b = append(b, ']')
	}
	if len(k.MultiCommitID) > 0 {
		b = append(base64.StdEncoding.AppendEncode(append(b, `,"Whole":"`...), k.MultiCommitID), '"')
	}
	if k.Token != 0 {
		field(`,"Token":`, int64(k.Token))
	}
	if k.Former != 0 {
		field(`,"Former":`, int64(k.Former))
	}
	return append(b, '}')
}

// remember stores a result under its name (rules.BatchResult, rules.GrantResult or
// rules.ReleaseResult); an empty name stores nothing. It deletes the run's oldest results beyond
// those that the contract requires. So a run's results are bounded, and a commit costs the same
// however many came before it.
func (tx *tx) remember(run int64, name string, result *storedResult) error {
	if name == "" {
		return nil
	}
	v, err := tx.c.one(tx.ctx, sqlResultNumber, run)
	if err != nil {
		return err
	}
	return tx.storeResult(run, name, v[0].(int64), result)
}

// storeResult is remember for a result that already has its number.
func (tx *tx) storeResult(run int64, name string, no int64, result *storedResult) error {
	tx.c.text = result.append(tx.c.text[:0])
	if _, err := tx.c.exec(tx.ctx, sqlResultInsert, run, name, no, tx.c.text); err != nil {
		return err
	}
	if no%forgetEvery != 0 {
		return nil
	}
	_, err := tx.c.exec(tx.ctx, sqlResultsEvict, run, no-runstore.RememberedBatches)
	return err
}

// repeatedError reports that a batch was applied before. It carries the first result.
type repeatedError struct{ first *storedResult }

func (*repeatedError) Error() string { return "sqlite: the batch was applied before" }

// replay returns the result that is stored under a name, nil if there is none.
func (tx *tx) replay(run runstore.RunID, name string) (*storedResult, error) {
	if name == "" {
		return nil, nil
	}
	v, err := tx.c.one(tx.ctx, sqlResultRead, blob(run), name)
	if err != nil || v == nil {
		return nil, err
	}
	var first storedResult
	if err := json.Unmarshal(bytesOf(v[0]), &first); err != nil {
		return nil, err
	}
	first.Replayed = true
	return &first, nil
}

func (k *storedResult) committed() runstore.Committed {
	if k == nil {
		return runstore.Committed{}
	}
	return k.Committed
}
