package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// IndexSession is the index of the runs of a session, by the time at which they began. Each session
// has its own index; see sessionIndex.
const IndexSession runstore.IndexName = "run.session"

func sessionIndex(key RunKey) runstore.IndexName {
	return IndexSession + "/" + runstore.IndexName(hashOf(key.App, key.User, key.Session))
}

// places returns the index entries that the summary of every run has, also after its end.
func (r Run) places() []runstore.Place {
	return []runstore.Place{{Index: sessionIndex(r.RunKey), At: runstore.At(r.StartedAt)}}
}

// Signal is the input of SendSignal.
type Signal struct {
	// Run is the addressed run. If it is empty, the newest run of the session is.
	Run                runstore.RunID
	App, User, Session string
	Gate               string
	Resolution         string
	Fence              runstore.Fence
}

// Signalled is the result of SendSignal.
type Signalled struct {
	// Run is the run to which the signal was delivered.
	Run runstore.RunID
	// Released reports that the run was parked at the gate and has become RUNNABLE.
	Released bool
}

// SendSignal delivers a signal at a gate, where AwaitSignal finds it whenever the run checks. A
// later signal replaces an earlier one. A run that is parked at the gate becomes RUNNABLE in the
// same commit. Two round trips, and one more to find the run of a session.
//
// Errors: ErrNoSuchRun; ErrRefused if the session has no run; runstore.ErrFenced for a fence that
// is not current.
func (t *Tape) SendSignal(ctx context.Context, s Signal) (Signalled, error) {
	if s.Run == "" {
		if err := t.route(ctx, &s); err != nil {
			return Signalled{}, err
		}
	}
	if err := t.admit("SendSignal", s.Run, s.Fence); err != nil {
		return Signalled{}, err
	}
	if err := checkGate(s.Gate); err != nil {
		return Signalled{}, err
	}
	resolution := field{"resolution_json", s.Resolution}
	if err := checkText(resolution); err != nil {
		return Signalled{}, err
	}
	if err := checkLength(resolution.name, resolution.text, MaxSignal); err != nil {
		return Signalled{}, err
	}
	retries, err := t.retries(ctx, gatesKey, s.Run)
	if err != nil {
		return Signalled{}, err
	}
	defer retries.leave()
	for {
		r, err := t.readGate(ctx, s.Run, s.Gate)
		if err != nil {
			return Signalled{}, err
		}
		released, err := t.deliver(ctx, r, s)
		if err == nil {
			return Signalled{Run: s.Run, Released: released}, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return Signalled{}, err
		}
		if err := retries.next(ctx, err); err != nil {
			return Signalled{}, err
		}
	}
}

// deliver commits a signal and reports whether it has released the run.
func (t *Tape) deliver(ctx context.Context, r *gateRecords, s Signal) (released bool, err error) {
	if !r.gate.Delivered {
		r.gates.Pending++
	}
	r.gate.Delivered, r.gate.resolution = true, s.Resolution
	b := r.batch(s.Gate, s.Fence)
	if r.gates.Waiting != s.Gate {
		_, err = t.commitParked(ctx, r, b, nil)
		return false, err
	}
	return t.commitParked(ctx, r, b, func(b *runstore.Batch) {
		still := r.gates
		still.Waiting, still.Parked = "", false
		for i := range b.Records {
			if b.Records[i].Key == gatesKey {
				b.Records[i].Value = encode(still)
			}
		}
		r.run.WaitingOn = ""
		r.putSummary(b)
		runnable := runstore.Status(RunRunnable)
		b.Status, b.Runnable = &runnable, runstore.After(0)
		b.Append(kindGate, compactJSON(map[string]any{"gate": s.Gate, "status": "released"}))
	})
}

// route sets the run of a signal that names only a session.
func (t *Tape) route(ctx context.Context, s *Signal) error {
	key := RunKey{App: s.App, User: s.User, Session: s.Session}
	if err := checkText(field{"app_name", s.App}, field{"user_id", s.User}, field{"session_id", s.Session}); err != nil {
		return err
	}
	newest, err := t.store.ScanIndex(ctx, runstore.IndexQuery{
		Index: sessionIndex(key), Until: runstore.EndOfTime, Newest: true, Limit: 1,
	})
	if err != nil {
		return err
	}
	if len(newest) == 0 {
		return refuse(ErrRefused, "no run for that session")
	}
	s.Run = newest[0].Run
	return nil
}

// NewestRun returns the run to which a signal for a session goes among the runs of some tenants: the
// newest run of the session whose tenant admit admits, also if that run has ended. It looks at up to
// 4,000 runs of the session, newest first. Up to four reads.
//
// Errors: ErrNoSuchRun if it finds none.
func (t *Tape) NewestRun(ctx context.Context, app, user, session string, admit func(tenant string) bool) (runstore.RunID, error) {
	if err := checkText(field{"app_name", app}, field{"user_id", user}, field{"session_id", session}); err != nil {
		return "", err
	}
	s := &partScan{admit: admit}
	queue := runstore.IndexQuery{
		Index: sessionIndex(RunKey{App: app, User: user, Session: session}), Until: runstore.EndOfTime, Newest: true,
	}
	for entry, err := range s.entries(ctx, t.store, []runstore.IndexQuery{queue}) {
		return entry.Run, err
	}
	return "", ErrNoSuchRun
}
