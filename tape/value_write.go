package tape

import (
	"context"
	"errors"
	"math"

	"github.com/tapestore/tapestore/runstore"
)

// A write to a value may present the fence of a run. It is then applied only while that grant is
// current, although the value is not part of the run; see commitUnder.

// AnyVersion makes a write unconditional.
const AnyVersion runstore.Version = -1

// WriteValue writes a value if it is at version at and returns the new value. 0 means that the
// value was never written, [AnyVersion] accepts any version. A tombstone has a version like any
// other.
//
// One round trip for a write at a version above 0, two at [AnyVersion] or 0, and two more for the
// first write; under a fence five more on an engine that does not commit to two runs at once.
//
// Errors: ErrRefused for another version, with the value's version; runstore.ErrTooLarge above
// [MaxValueNames] or if the journal entry does not fit into runstore.MaxEventData;
// runstore.ErrFenced and ErrNoSuchRun for a fence that is not current; runstore.ErrConflict if
// other writers won 16 times against a write at [AnyVersion].
func (t *Tape) WriteValue(ctx context.Context, key ValueKey, json, writer string, at runstore.Version, f runstore.Fence) (Value, error) {
	if err := t.require("WriteValue", f); err != nil {
		return Value{}, err
	}
	if err := key.check(writer); err != nil {
		return Value{}, err
	}
	if err := checkText(field{"value_json", json}); err != nil {
		return Value{}, err
	}
	next := Value{ValueKey: key, JSON: json, Writer: writer}
	write := func() (Value, error) {
		if at >= 0 {
			return t.writeValueAt(ctx, next, at, f)
		}
		return values.change(ctx, t, key.Run(), f, valueKey, func(v Value, _ bool) (Value, *step, error) {
			next.Version = v.Version + 1
			e, err := next.event()
			return next, &step{raw: []runstore.NewEvent{e}}, err
		})
	}
	v, err := write()
	if err == ErrNoSuchRun { // ErrNoSuchRun itself means the value's run; an error that wraps it means the fence's
		if at > 0 {
			return Value{}, valueConflict(0, at)
		}
		if err := t.createShared(ctx, key.Run(), f); err != nil {
			return Value{}, err
		}
		v, err = write()
	}
	return v, err
}

// writeValueAt writes a value that is at version at, in one commit.
func (t *Tape) writeValueAt(ctx context.Context, v Value, at runstore.Version, f runstore.Fence) (Value, error) {
	v.Version = min(at, math.MaxInt64-1) + 1 // no value is at MaxInt64
	e, err := v.event()
	if err != nil {
		return Value{}, err
	}
	b := runstore.NewBatch(v.Run(), runstore.AtSeq(runstore.Seq(v.Version)))
	b.Events = []runstore.NewEvent{e}
	stored, _ := v.encode()
	b.Put(valueKey, stored)
	done, err := t.commitUnder(ctx, f, b)
	var conflict *runstore.ConflictError
	switch {
	case errors.As(err, &conflict) && conflict.Guard == "seq":
		return Value{}, valueConflict(runstore.Version(conflict.NextSeq-1), at)
	case err != nil:
		return Value{}, err
	case len(done.Versions) == 0:
		// The lead recognised the repeat of a step over two runs, and does not remember versions.
		// The value may have changed since; its time is then that of the change.
		stored, err := values.reread(ctx, t, v.Run(), valueKey, v)
		v.Updated = stored.Updated
		return v, err
	}
	v.Updated = done.Time
	return v, nil
}

func valueConflict(have, want runstore.Version) error {
	return refuse(ErrRefused, "write_value: version conflict (have %d, expected %d)", have, want)
}

// DeleteValue deletes a value by writing a tombstone, which is a version. found is false for a
// value that was never written, and nothing is written then. Two round trips; under a fence one
// more if nothing was written, and five more on an engine that does not commit to two runs at once.
//
// Errors: as for [Tape.WriteValue] at [AnyVersion].
func (t *Tape) DeleteValue(ctx context.Context, key ValueKey, f runstore.Fence) (v Value, found bool, err error) {
	if err := t.require("DeleteValue", f); err != nil {
		return Value{}, false, err
	}
	if err := key.Check(); err != nil {
		return Value{}, false, err
	}
	v, err = values.change(ctx, t, key.Run(), f, valueKey, func(v Value, there bool) (Value, *step, error) {
		if found = there; !found {
			return v, nil, nil
		}
		v.Version, v.JSON, v.Deleted = v.Version+1, "", true
		e, err := v.event()
		return v, &step{raw: []runstore.NewEvent{e}}, err
	})
	return v, found && err == nil, err
}

// GetValue returns a value, which may be a tombstone. found is false for a value that was never
// written. One read.
func (t *Tape) GetValue(ctx context.Context, key ValueKey) (v Value, found bool, err error) {
	if err := key.Check(); err != nil {
		return Value{}, false, err
	}
	rec, found, err := t.readRecord(ctx, key.Run(), valueKey)
	if err != nil || !found {
		return Value{}, false, err
	}
	v, err = valueOf(key.Run(), rec)
	return v, err == nil, err
}
