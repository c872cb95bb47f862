package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// A business key names one effect of all runs, together with its connector. The pair has a run of
// its own, the registry, which no list of runs shows. The registry has one record, the registration:
// the run and the key of the pair's effect. A registration is replaced and never deleted.
//
// Where the store is a runstore.MultiCommitter, the effect and its registration are one commit over
// both runs. Elsewhere the registration is written ahead of the effect; see business_ahead.go. A
// registration stands for one of three things:
//
//  1. Its effect is there. It is the pair's effect for as long as its run exists.
//  2. Its effect is absent and its mark is there: another caller is beginning the effect, or died.
//  3. Both are absent: the effect was never begun, or was purged with its run, and no commit can
//     begin it under this registration any more. The pair is free.

const registeredKey runstore.RecordKey = "effect"

// registration is the stored form of the record.
type registration struct {
	Run runstore.RunID `json:"run"`
	Key string         `json:"key"`
	// Mark is the key of a record on Run, and At that record's version. The effect can be begun only
	// while the mark is there at that version. Both are empty where the effect was committed
	// together with the registration.
	Mark runstore.RecordKey `json:"mark,omitempty"`
	At   runstore.Version   `json:"at,omitempty"`
}

func businessRun(connector, key string) runstore.RunID {
	return runstore.RunID("business/" + hashOf(connector, key))
}

var (
	// errRegistered: the pair has an effect already.
	errRegistered = errors.New("the business key has an effect")
	// errLost: another caller has changed the registration, or ended this one's attempt. No commit of
	// the attempt can be applied any more.
	errLost = errors.New("another caller registers the business key")
	// errBusy is errLost after the last attempt.
	errBusy = refuse(runstore.ErrUnavailable, "begin_effect: business_key: other callers are beginning its effect; try again")
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
// key. If the pair has an effect already, it returns that one and errRegistered. The guards of b are
// judged first, its fence before its versions: a zombie is refused, registered effect or not.
//
// Two round trips for a new pair, and four where the store is no runstore.MultiCommitter. After any
// error but runstore.ErrUnknownOutcome the effect is not begun and will not be.
func (t *Tape) commitRegistered(ctx context.Context, b runstore.Batch, begun Effect) (runstore.Committed, Effect, error) {
	r := registrar{t: t, begin: b, effect: begun, registry: businessRun(begun.Connector, begun.BusinessKey)}
	retries := t.retries(registeredKey, r.registry)
	defer retries.end()
	for free := (standing{}); ; { // a pair that is not registered is free
		done, err := r.commit(ctx, free.version)
		if err != errLost {
			return done, Effect{}, err
		}
		if free, err = r.settle(ctx, retries); err != nil {
			return runstore.Committed{}, Effect{}, err
		}
		if free.found {
			return runstore.Committed{}, free.effect, errRegistered
		}
	}
}

// commit begins and registers the effect if the registration is still at a version.
func (r registrar) commit(ctx context.Context, known runstore.Version) (runstore.Committed, error) {
	multi, ok := r.t.store.(runstore.MultiCommitter)
	if !ok {
		return r.commitAhead(ctx, known)
	}
	if err := r.createRegistry(ctx, known); err != nil {
		return runstore.Committed{}, err
	}
	begin, register := r.guarded(), r.register(known, registration{Run: r.effect.Run, Key: r.effect.Key})
	begin.Writes = r.begin.Writes
	begin.ID, register.ID = runstore.NewBatchID(), runstore.NewBatchID()
	done, err := retry(ctx, func() ([]runstore.Committed, error) {
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

// createRegistry creates the registry unless a registration was read from it.
func (r registrar) createRegistry(ctx context.Context, known runstore.Version) error {
	if known != 0 {
		return nil
	}
	_, err := retry(ctx, func() (runstore.Created, error) {
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

// standing is what a registration was found to stand for.
type standing struct {
	registration
	// version is the registration's; 0 where there is none.
	version runstore.Version
	// effect is the pair's effect if found.
	effect Effect
	found  bool
	// open reports that the mark is there and the effect is not.
	open bool
}

// look reads the registration, and what it stands for. The mark is read before the effect: once the
// mark is gone, an effect that is absent stays absent. Two reads, and one more for a mark.
func (r registrar) look(ctx context.Context) (standing, error) {
	var s standing
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

// find reads the effect of a registration. Another effect of the same run and key is not the pair's.
func (r registrar) find(ctx context.Context, s standing) (standing, error) {
	e, found, err := r.t.GetEffect(ctx, s.Run, s.Key)
	if found && e.Connector == r.effect.Connector && e.BusinessKey == r.effect.BusinessKey {
		s.effect, s.found, s.open = e, true, false
	}
	return s, err
}

// voidAfter is how often a caller looks at a pair whose effect is being begun before it takes the
// creator for dead. With the pauses between looks that takes about 130 ms and the time of some 20
// reads, which is several times what a live creator takes on the same engine. A creator that is
// slower starts over.
const voidAfter = 8

// settle returns what the registration stands for once its effect is there or the pair is free. It
// waits for a creator that is beginning the effect, and then ends that creator's attempt.
func (r registrar) settle(ctx context.Context, retries *retries) (standing, error) {
	for looks := 1; ; looks++ {
		if retries.next(ctx, errBusy) != nil {
			return standing{}, errBusy
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

// void ends the attempt of a registration: it deletes the mark, so that the effect is begun before
// or never.
func (r registrar) void(ctx context.Context, s standing) (standing, error) {
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

// notBegun returns the error of a call before the one that begins the effect. Its outcome may be
// unknown, but that of the effect is not.
func notBegun(err error) error {
	if err != nil && runstore.OutcomeOf(err) == runstore.Unknown {
		return refuse(runstore.ErrUnavailable, "begin_effect: business_key: the effect was not begun: %v", err)
	}
	return err
}

// conflictOn reports whether err is the conflict of a guard on the record under key.
func conflictOn(err error, key runstore.RecordKey) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Guard == "version" && conflict.Key == key
}
