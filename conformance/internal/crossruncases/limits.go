package crossruncases

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// unitsMoved returns one run's part of a transfer, guarded by the version of the record that it
// read.
func unitsMoved(ctx context.Context, s runstore.RunStore, id runstore.RunID, name string, by int, guards ...runstore.Guard) (runstore.Batch, error) {
	found, err := s.ReadRecords(ctx, id, runstore.RecordQuery{Keys: []runstore.RecordKey{"units"}})
	if err != nil {
		return runstore.Batch{}, err
	}
	var has int
	if _, err := fmt.Sscan(string(found[0].Value), &has); err != nil {
		return runstore.Batch{}, err
	}
	b := runstore.NewBatch(id, runstore.AtVersion("units", found[0].Version), guards...)
	b.Append("transfer", []byte(name))
	b.Put("units", fmt.Append(nil, has+by))
	return b, nil
}

// stepLimits checks that every store makes the largest step and refuses a larger one.
func stepLimits(t harness.T, e *harness.Env, m stepMode) {
	ctx := t.Context()
	p := newPair(t, e, "1", false)
	s := m.lossless(e.Store)
	before := p.dump(t, e.Store)
	key := func(i int) runstore.RecordKey { return runstore.RecordKey(fmt.Sprintf("key-%d", i)) }
	for _, test := range []struct {
		name, field string
		kind        error
		change      func(lead, other *runstore.Batch)
	}{
		{"a purge", "purge", runstore.ErrInvalid, func(_, other *runstore.Batch) { other.Writes = runstore.Writes{Purge: true} }},
		{"no version and no seq of the other run", "other.guards", runstore.ErrInvalid, func(_, other *runstore.Batch) {
			*other = runstore.NewBatch(p.other, runstore.InStatus(1))
		}},
		{"a reserved key", "lead.records[4].key", runstore.ErrInvalid, func(lead, _ *runstore.Batch) { lead.Put(crossrun.IntentKey, nil) }},
		{"a reserve of the caller's", "lead.records[4].reserve", runstore.ErrInvalid, func(lead, _ *runstore.Batch) {
			lead.Put("reserving", nil)
			lead.Records[4].Reserve = []runstore.RecordWrite{{Key: "later"}}
		}},
		{"too many records", "other.records", runstore.ErrTooLarge, func(_, other *runstore.Batch) {
			for i := range runstore.MaxRecordWrites - 1 {
				other.Put(key(i), nil)
			}
		}},
		{"too many guards", "other.guards", runstore.ErrTooLarge, func(_, other *runstore.Batch) {
			for i := range runstore.MaxGuards - 2 {
				other.Require(runstore.AtVersion(key(i), 0))
			}
		}},
		{"too much to write ahead", "intent", runstore.ErrTooLarge, func(_, other *runstore.Batch) {
			other.Put("large", make([]byte, runstore.MaxRecordValue-100))
		}},
	} {
		lead, other := p.step("refused")
		test.change(&lead, &other)
		_, err := crossrun.Commit(ctx, s, lead, other)
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Kind != test.kind || limit.Field != test.field {
			t.Errorf("%s: got error %v, want %v of field %q", test.name, err, test.kind, test.field)
		}
		kit.CheckUnchanged(t, "a step refused for "+test.name, before, p.dump(t, e.Store))
	}
	lead, other := p.step("large")
	for i := range runstore.MaxRecordWrites - 1 - len(other.Records) {
		other.Put(key(i), nil)
	}
	for i := range runstore.MaxGuards - 2 - len(other.Guards().Versions) {
		other.Require(runstore.AtVersion(key(i), 0))
	}
	for i := range runstore.MaxRecordWrites - 1 - len(lead.Records) {
		lead.Put(key(i), nil)
	}
	for i := range runstore.MaxGuards - 2 - len(lead.Guards().Versions) - len(lead.Guards().Statuses) {
		lead.Require(runstore.AtVersion(key(i), 0))
	}
	lead.Append("large", make([]byte, runstore.MaxEventData))
	other.Append("large", make([]byte, runstore.MaxEventData))
	other.Append("large", make([]byte, runstore.MaxEventData))
	if _, err := crossrun.Commit(ctx, s, lead, other); err != nil {
		t.Errorf("the largest step: %v", err)
	}
	p.checkAtomic(t, e, "the largest step", "large", nil)
}
