package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// This file implements business keys. A business key, together with its connector, identifies one
// effect across all runs. Each pair has a run of its own, the registry, which no list of runs
// shows. The registry has one record, the registration: the run and the key of the pair's effect. A
// registration may be replaced but is never deleted.
//
// If the store is a runstore.MultiCommitter, the effect and its registration are one commit over
// both runs. On other stores the registration is a write-ahead intent; see business_ahead.go. A
// registration is in one of three states:
//
//  1. Its effect exists. It is the pair's effect for as long as its run exists.
//  2. Its effect is absent and its mark exists: another caller is beginning the effect, or died.
//  3. Both are absent: the effect was never begun or was purged with its run, and no commit can
//     begin it under this registration any more. The pair is free.

const registeredKey runstore.RecordKey = "effect"

// registration is the stored form of the registry's record.
type registration struct {
	Run runstore.RunID `json:"run"`
	Key string         `json:"key"`
	// Mark is the key of a record on Run, and At the version of that record. The effect can be
	// begun only while the mark is at that version. Both are empty if the effect and its
	// registration were one commit.
	Mark runstore.RecordKey `json:"mark,omitempty"`
	At   runstore.Version   `json:"at,omitempty"`
}

// businessRun returns the id of the registry of a connector and business key.
func businessRun(connector, key string) runstore.RunID {
	return runstore.RunID("business/" + hashOf(connector, key))
}

var (
	// errRegistered: the pair already has an effect.
	errRegistered = errors.New("the business key has an effect")
	// errLost: another caller has changed the registration or ended this caller's attempt. No
	// commit of the attempt can be applied any more.
	errLost = errors.New("another caller registers the business key")
	// errBusy is returned when errLost recurs until the last attempt.
	errBusy = refuse(ErrEffectExists, "begin_effect: business_key: other callers are beginning its effect: do not act, and try again")
)

// registrar begins one effect that has a business key.
type registrar struct {
	t *Tape
	// begin is the batch that begins the effect.
	begin    runstore.Batch
	effect   Effect
	registry runstore.RunID
}

// commitRegistered commits b, which begins an effect, and registers the effect under its business
// key. If the pair already has an effect, it returns that effect and errRegistered. The guards of b
// are checked first, its fence before its versions, so a zombie is refused even if the effect is
// registered.
//
// Two round trips for a new pair; four if the store is not a runstore.MultiCommitter. After any
// error except runstore.ErrUnknownOutcome and ErrEffectExists the effect is not begun and will not be.
func (t *Tape) commitRegistered(ctx context.Context, b runstore.Batch, begun Effect) (runstore.Committed, Effect, error) {
	r := registrar{t: t, begin: b, effect: begun, registry: businessRun(begun.Connector, begun.BusinessKey)}
	// The first attempt waits for no other caller: one that is beginning the effect may have been paused,
	// and settle ends its attempt.
	retries := t.retriesAfterLoss(registeredKey, r.registry)
	defer retries.leave()
	for free := (registrationState{}); ; { // the first round assumes a pair without a registration
		done, err := r.commit(ctx, free.version)
		if err != errLost {
			return done, Effect{}, err
		}
		if free, err = r.settle(ctx, retries); err != nil {
			return runstore.Committed{}, Effect{}, unread(err) // another caller has registered the pair
		}
		if free.found {
			return runstore.Committed{}, free.effect, errRegistered
		}
	}
}

// commit begins and registers the effect if the registration is still at version known.
func (r registrar) commit(ctx context.Context, known runstore.Version) (runstore.Committed, error) {
	multi, ok := runstore.As[runstore.MultiCommitter](r.t.store)
	if !ok {
		return r.commitAhead(ctx, known)
	}
	if err := r.createRegistry(ctx, known); err != nil {
		return runstore.Committed{}, err
	}
	begin, register := r.guarded(), r.register(known, registration{Run: r.effect.Run, Key: r.effect.Key})
	begin.Writes = r.begin.Writes
	begin.ID, register.ID = runstore.NewBatchID(), runstore.NewBatchID()
	done, err := optimistic.Repeat(ctx, func() ([]runstore.Committed, error) {
		return multi.CommitMulti(ctx, []runstore.Batch{begin, register})
	})
	switch {
	case err == nil:
		return done[0], nil
	case errors.Is(err, runstore.ErrUnsupported):
		return r.commitAhead(ctx, known)
	case conflictOn(err, registeredKey):
		return runstore.Committed{}, errLost
	default:
		return runstore.Committed{}, noSuchRun(err)
	}
}

// createRegistry creates the registry, unless a registration was read from it.
func (r registrar) createRegistry(ctx context.Context, known runstore.Version) error {
	if known != 0 {
		return nil
	}
	_, err := optimistic.Repeat(ctx, func() (runstore.Created, error) {
		return r.t.store.CreateRun(ctx, runstore.RunSpec{ID: r.registry, Unlisted: true})
	})
	return notBegun(err)
}

func (r registrar) register(known runstore.Version, reg registration) runstore.Batch {
	b := runstore.NewBatch(r.registry, runstore.AtVersion(registeredKey, known))
	b.Put(registeredKey, encode(reg))
	return b
}

// guarded returns a batch with the guards of the batch that begins the effect, and no writes.
func (r registrar) guarded() runstore.Batch {
	g := r.begin.Guards()
	b := guards(r.begin.Run(), g.Fence, g.Versions[0])
	for _, v := range g.Versions[1:] {
		b.Require(v)
	}
	return b
}

// registrationState is the state of a registration as read.
type registrationState struct {
	registration
	// version is the registration's version; 0 if there is none.
	version runstore.Version
	// effect is the pair's effect; set only if found.
	effect Effect
	found  bool
	// open reports that the mark exists and the effect does not.
	open bool
}

// look reads the registration and its state. It reads the mark before the effect: once the mark is
// gone, an absent effect stays absent. Two reads, and one more for a mark.
func (r registrar) look(ctx context.Context) (registrationState, error) {
	var s registrationState
	rec, found, err := r.t.readRecord(ctx, r.registry, registeredKey)
	if err != nil || !found {
		return s, err
	}
	s.version = rec.Version
	if err := decode("the registration of a business key", rec.Value, &s.registration); err != nil {
		return s, err
	}
	if s.Mark != "" {
		mark, found, err := r.t.readRecord(ctx, s.Run, s.Mark)
		if err != nil {
			return s, err
		}
		s.open = found && mark.Version == s.At
	}
	return r.find(ctx, s)
}

// find reads the effect of a registration. An effect of the same run and key but with another
// business key does not count.
func (r registrar) find(ctx context.Context, s registrationState) (registrationState, error) {
	e, found, err := r.t.GetEffect(ctx, s.Run, s.Key)
	if found && e.Connector == r.effect.Connector && e.BusinessKey == r.effect.BusinessKey {
		s.effect, s.found, s.open = e, true, false
	}
	return s, err
}

// voidAfter is the number of looks at a pair whose effect is being begun, after which the creator
// is presumed dead. With the pauses between looks this takes about 130 ms plus the time of some 20
// reads, several times what a live creator takes on the same engine. A slower creator starts over.
const voidAfter = 8

// settle returns the registration's state once its effect exists or the pair is free. It waits for
// a caller that is beginning the effect, and ends that caller's attempt after voidAfter looks.
func (r registrar) settle(ctx context.Context, retries *retries) (registrationState, error) {
	for looks := 1; ; looks++ {
		if retries.next(ctx, errBusy) != nil {
			return registrationState{}, errBusy
		}
		s, err := r.look(ctx)
		switch {
		case err != nil || !s.open:
			return s, err
		case looks == voidAfter:
			return r.void(ctx, s)
		}
	}
}

// void ends the attempt of a registration by deleting its mark. The effect was begun before this or
// never will be.
func (r registrar) void(ctx context.Context, s registrationState) (registrationState, error) {
	err := r.unmark(ctx, s.registration)
	switch {
	case err == nil:
		s.open = false
		return s, nil
	case errors.Is(err, runstore.ErrConflict), errors.Is(err, ErrNoSuchRun): // gone already
		s.open = false
		return r.find(ctx, s)
	default:
		return s, notBegun(err)
	}
}

// notBegun returns the error of a call that precedes the one that begins the effect. Its outcome
// may be unknown, but the effect is surely not begun, so an unknown outcome becomes ErrUnavailable.
func notBegun(err error) error {
	if isUnknown(err) {
		return refuse(runstore.ErrUnavailable, "begin_effect: business_key: the effect was not begun: %v", err)
	}
	return err
}

// conflictOn reports whether err is the conflict of a version guard on the record under key.
func conflictOn(err error, key runstore.RecordKey) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Guard == "version" && conflict.Key == key
}
