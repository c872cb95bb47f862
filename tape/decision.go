package tape

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Decision is one model call of a run, as recorded.
type Decision struct {
	// Index is the number of the call within its run.
	Index         int64
	Model         string
	Request       string
	Response      string
	Rationale     string
	PolicyVersion string
	// Seq and Time are set when the decision is recorded.
	Seq  runstore.Seq
	Time time.Time
}

// decisionHead is the stored form of a decision's small fields. Its request,
// response and rationale are bodies.
type decisionHead struct {
	Model  string `json:"model,omitempty"`
	Policy string `json:"policy,omitempty"`
}

// decisionKey pads the index with zeros, so that keys sort by index.
func decisionKey(index int64) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("decision/%019d", index))
}

// RecordDecision records a decision, or returns the one that its run has under that index: the
// first one wins, and a replay writes nothing. One round trip for a new decision; a replay costs
// one more read.
//
// Errors: ErrNoSuchRun; runstore.ErrTooLarge above [MaxDecision]; runstore.ErrFenced, for a replay
// too.
func (t *Tape) RecordDecision(ctx context.Context, run runstore.RunID, d Decision, f runstore.Fence) (Decision, error) {
	if err := t.admit("RecordDecision", run, f); err != nil {
		return Decision{}, err
	}
	fields := []field{
		{"model", d.Model}, {"request_json", d.Request}, {"response_json", d.Response},
		{"rationale", d.Rationale}, {"policy_version", d.PolicyVersion},
	}
	if err := checkText(fields...); err != nil {
		return Decision{}, err
	}
	entry := map[string]any{
		"decision_index": d.Index, "model": d.Model, "policy_version": d.PolicyVersion, "rationale": d.Rationale,
	}
	value, _ := d.encode()
	if err := checkSize("a journal entry", len(compactJSON(entry)), runstore.MaxEventData,
		fields[0], fields[3], fields[4]); err != nil {
		return Decision{}, err
	}
	if err := checkSize("a decision", len(value), MaxDecision, fields...); err != nil {
		return Decision{}, err
	}
	return decisions.create(ctx, t, run, f, decisionKey(d.Index), func(stored Decision, found bool) (Decision, *step, error) {
		if found {
			return stored, nil, nil
		}
		return d, note(kindDecision, entry), nil
	})
}

// GetDecision returns a recorded decision; found is false if there is no such decision or run. One
// read.
func (t *Tape) GetDecision(ctx context.Context, run runstore.RunID, index int64) (d Decision, found bool, err error) {
	rec, found, err := t.readRecord(ctx, run, decisionKey(index))
	if err != nil || !found {
		return Decision{}, false, err
	}
	d, err = decisionOf(run, rec)
	return d, err == nil, err
}

var decisions = ledger[Decision]{decode: decisionOf, encode: Decision.encode}

func (d Decision) encode() ([]byte, []runstore.Place) {
	return encode(decisionHead{Model: d.Model, Policy: d.PolicyVersion}, d.Request, d.Response, d.Rationale), nil
}

// blank returns the decision without its bodies, and whether it had any.
func (d Decision) blank() (Decision, bool) {
	full := d.Request != "" || d.Response != "" || d.Rationale != ""
	d.Request, d.Response, d.Rationale = "", "", ""
	return d, full
}

func decisionOf(run runstore.RunID, rec runstore.Record) (Decision, error) {
	index, err := strconv.ParseInt(strings.TrimPrefix(string(rec.Key), "decision/"), 10, 64)
	d := Decision{Index: index, Seq: rec.Created.Seq, Time: rec.Created.Time}
	what := fmt.Sprintf("decision %d of run %q", index, run)
	if err != nil {
		return Decision{}, refuse(ErrFormat, "%s is damaged: %v", what, err)
	}
	var head decisionHead
	if err := decode(what, rec.Value, &head, &d.Request, &d.Response, &d.Rationale); err != nil {
		return Decision{}, err
	}
	d.Model, d.PolicyVersion = head.Model, head.Policy
	return d, nil
}

// readRecord reads one record; found is false if the record or its run is absent.
func (t *Tape) readRecord(ctx context.Context, run runstore.RunID, key runstore.RecordKey) (rec runstore.Record, found bool, err error) {
	if err := checkRun(run); err != nil {
		return runstore.Record{}, false, err
	}
	records, err := t.store.ReadRecords(ctx, run, runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
	if errors.Is(err, runstore.ErrNotFound) {
		return runstore.Record{}, false, nil
	}
	if err != nil || len(records) == 0 {
		return runstore.Record{}, false, err
	}
	return records[0], true, nil
}
