package tape

import (
	"context"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// AwaitRequest is the input of AwaitSignal.
type AwaitRequest struct {
	Run  runstore.RunID
	Gate string
	// Context is kept with the gate while the run waits.
	Context string
	Fence   runstore.Fence
}

// AwaitSignal returns the resolution that was delivered at a gate and marks it consumed. If none
// was delivered, it parks the run: the run becomes WAITING and its lease is released, until
// SendSignal makes the run RUNNABLE. A repeated call returns the same resolution or parks again. A run
// that is COMPENSATING does not park: once released, it would go forward again. Two round trips.
//
// Errors: ErrNoSuchRun; ErrRefused for a run that has ended or is COMPENSATING and has no signal at
// the gate; runstore.ErrFenced for a stale fence, even if there was nothing to write.
func (t *Tape) AwaitSignal(ctx context.Context, req AwaitRequest) (resolution string, delivered bool, err error) {
	if err := t.admit("AwaitSignal", req.Run, req.Fence); err != nil {
		return "", false, err
	}
	if err := checkGate(req.Gate); err != nil {
		return "", false, err
	}
	payload := field{"payload_json", req.Context}
	if err := checkText(payload); err != nil {
		return "", false, err
	}
	if err := checkLength(payload.name, payload.text, MaxGateContext); err != nil {
		return "", false, err
	}
	retries, err := t.retries(ctx, gatesKey, req.Run)
	if err != nil {
		return "", false, err
	}
	defer retries.leave()
	for {
		r, err := t.readGate(ctx, req.Run, req.Gate)
		if err != nil {
			return "", false, err
		}
		switch {
		case r.gate.Delivered && r.gate.Consumed:
			return r.gate.resolution, true, t.confirm(ctx, req.Fence)
		case r.gate.Delivered:
			err = t.consume(ctx, r, req)
		default:
			err = t.park(ctx, r, req)
		}
		if err == nil {
			return r.gate.resolution, r.gate.Delivered, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return "", false, err
		}
		if meetsStep(err) {
			if err := t.endStep(ctx, req.Run, req.Fence); err != nil {
				return "", false, err
			}
		}
		if err := retries.next(ctx, err); err != nil {
			return "", false, err
		}
	}
}

// consume marks the signal of a gate as consumed. The run's status does not change.
func (t *Tape) consume(ctx context.Context, r *gateRecords, req AwaitRequest) error {
	r.gate.Consumed = true
	r.gates.Pending--
	b := r.batch(req.Gate, req.Fence)
	_, err := t.commitParked(ctx, r, b, nil)
	return err
}

// park makes the run WAITING at a gate.
func (t *Tape) park(ctx context.Context, r *gateRecords, req AwaitRequest) error {
	r.gate.context = req.Context
	r.gates.Waiting, r.gates.Parked = req.Gate, true
	r.run.WaitingOn = req.Gate
	b := r.batch(req.Gate, req.Fence)
	// A run that has ended stays ended, and one that unwinds continues to unwind.
	b.Require(runstore.InStatus(runstore.Status(RunUnspecified), runstore.Status(RunRunnable), runstore.Status(RunRunning),
		runstore.Status(RunWaiting)))
	waiting := runstore.Status(RunWaiting)
	b.Status, b.Release = &waiting, true
	b.Require(crossrun.Idle())
	r.setWaiting(&b.Writes)
	r.putSummary(&b)
	b.Append(kindGate, compactJSON(map[string]any{"gate": req.Gate, "status": "waiting"}))
	_, err := t.commit(ctx, b)
	var conflict *runstore.ConflictError
	switch {
	case !conflictsWithStatus(err):
		return err
	case errors.As(err, &conflict) && RunStatus(conflict.Status) == RunCompensating:
		return refuse(ErrRefused, "await_signal: the run is COMPENSATING and does not wait at a gate")
	default:
		return refuse(ErrRefused, "await_signal: the run has ended")
	}
}

// commitParked commits b. If the run is WAITING at a gate, the commit also contains the changes of
// release (by default setWaiting), and parked is true. The run cannot become WAITING in between,
// because parking changes the gates record.
func (t *Tape) commitParked(ctx context.Context, r *gateRecords, b runstore.Batch, release func(b *runstore.Batch)) (parked bool, err error) {
	if r.gates.Parked {
		waiting := b
		waiting.Records = slices.Clone(b.Records)
		waiting.Require(runstore.InStatus(runstore.Status(RunWaiting)))
		if release != nil {
			release(&waiting)
		} else {
			r.setWaiting(&waiting.Writes)
		}
		_, err := t.commit(ctx, waiting)
		if !conflictsWithStatus(err) {
			return err == nil, err
		}
	}
	_, err = t.commit(ctx, b)
	return false, err
}

// conflictsWithStatus reports whether err is the conflict of a guard on the run's status.
func conflictsWithStatus(err error) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Guard == "status"
}
