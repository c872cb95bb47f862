package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// A write to a session may present the fence of a run. It is then applied only while that grant is
// current, though the session is no part of the run; see commitUnder. Which run that is, the fence
// says: most often the one whose events the session keeps.

// CreateSession creates a session with a state, or replaces the state of one that exists and keeps
// its events. An empty id becomes a new one. Three round trips; under a fence one more, and five
// more on an engine that does not commit to two runs at once.
//
// Errors: runstore.ErrTooLarge above [MaxSessionState] and [MaxSessionNames]; runstore.ErrFenced and
// ErrNoSuchRun for a fence that is not current.
func (t *Tape) CreateSession(ctx context.Context, key SessionKey, state string, f runstore.Fence) (Session, error) {
	if err := t.require("CreateSession", f); err != nil {
		return Session{}, err
	}
	if key.Session == "" {
		key.Session = newUUID()
	}
	if state == "" {
		state = "{}"
	}
	if err := key.check(); err != nil {
		return Session{}, err
	}
	if err := checkState(state, field{"state_json", state}); err != nil {
		return Session{}, err
	}
	if err := t.createShared(ctx, key.run(), f); err != nil {
		return Session{}, err
	}
	s, err := t.changeSession(ctx, key, f, func(s storedSession, _ bool) (storedSession, *step, error) {
		s.SessionKey, s.State, s.updated = key, state, runstore.After(0)
		return s, &step{}, nil
	})
	return s.Session, err
}

// AppendEvent appends an event to a session and merges a delta into its state, in one commit. A
// session that does not exist is created. It returns the event with its time. An event that is given none has that of its commit; if
// the replies to the commit were lost and the session was changed since, the answer has the time of
// that change. Two round trips, and five for a new session; under a fence five more on an engine that
// does not commit to two runs at once.
//
// Errors: runstore.ErrTooLarge above [MaxSessionEvent], [MaxSessionNames], and where the state
// would become larger than [MaxSessionState]; runstore.ErrTooLarge, field "records", for the fence of
// a run that is full, on an engine that limits the records of a run and does not commit to two runs
// at once; runstore.ErrFenced and ErrNoSuchRun for a fence that is not current.
func (t *Tape) AppendEvent(ctx context.Context, key SessionKey, e SessionEvent, delta string, f runstore.Fence) (SessionEvent, error) {
	if err := t.require("AppendEvent", f); err != nil {
		return SessionEvent{}, err
	}
	if err := key.check(); err != nil {
		return SessionEvent{}, err
	}
	if err := e.check(); err != nil {
		return SessionEvent{}, err
	}
	change := field{"state_delta_json", delta}
	if err := checkState(delta, change); err != nil {
		return SessionEvent{}, err
	}
	entries := e.entries()
	s, err := t.changeSession(ctx, key, f, func(s storedSession, found bool) (storedSession, *step, error) {
		if !found {
			s.State = "{}"
		}
		s.SessionKey, s.State = key, mergeState(s.State, delta)
		if s.updated = whenAt(e.Time); s.updated.IsZero() {
			s.updated = runstore.After(0)
		}
		return s, &step{raw: entries}, checkState(s.State, change)
	})
	if e.Time.IsZero() || err != nil {
		e.Time = s.Updated
	} else {
		e.Time = e.Time.UTC().Truncate(runstore.TimePrecision) // as stored; the session may have a later time by now
	}
	return e, err
}

func checkState(state string, blame field) error {
	if err := checkText(blame); err != nil {
		return err
	}
	return checkSize("the state of a session", len(state), MaxSessionState, blame)
}

// errSessionDeleted: the record says that the session was deleted, and its run is to be purged.
var errSessionDeleted = errors.New("the session was deleted")

// changeSession applies a transition to a session, whose run it creates first if there is none.
func (t *Tape) changeSession(ctx context.Context, key SessionKey, f runstore.Fence, decide transition[storedSession]) (storedSession, error) {
	run := key.run()
	for range maxAttempts {
		s, err := sessions.change(ctx, t, run, f, sessionKey, func(s storedSession, found bool) (storedSession, *step, error) {
			if s.deleted {
				return s, nil, errSessionDeleted
			}
			return decide(s, found)
		})
		switch err { // ErrNoSuchRun itself: the session's, not the fence's
		case ErrNoSuchRun:
			err = t.createShared(ctx, run, f)
		case errSessionDeleted:
			err = t.finishDeletion(ctx, run)
		default:
			return s, err
		}
		if err != nil {
			return storedSession{}, err
		}
	}
	return storedSession{}, refuse(runstore.ErrUnavailable, "the session was deleted again and again")
}

// DeleteSession removes a session with its events, and reports whether there was one. Two round
// trips. Under a fence it marks the session as deleted first, for a step over two runs removes no
// run: one more, and five more on an engine that does not commit to two runs at once. A deletion
// that ends between the two has removed the session; the next write to it or deletion of it removes
// the events.
//
// Errors: runstore.ErrFenced and ErrNoSuchRun for a fence that is not current;
// runstore.ErrUnknownOutcome where the session was marked and its events may be left.
func (t *Tape) DeleteSession(ctx context.Context, key SessionKey, f runstore.Fence) (deleted bool, err error) {
	if err := t.require("DeleteSession", f); err != nil {
		return false, err
	}
	if err := key.check(); err != nil {
		return false, err
	}
	run := key.run()
	retries := t.retries(sessionKey, run)
	defer retries.end()
	var doubted runstore.Stamp // when the session was created whose purge was repeated and then refused
	for {
		s, version, err := t.readSession(ctx, run)
		switch {
		case err != nil:
			return false, err
		case doubted != (runstore.Stamp{}) && s.created != doubted:
			return true, nil // it was purged: what is there now, another caller has created since
		case version == 0:
			return false, t.confirm(ctx, f)
		case s.deleted:
			if err := t.confirm(ctx, f); err != nil {
				return false, err
			}
			return false, t.finishDeletion(ctx, run)
		case f.IsZero():
			deleted, err = t.purgeSession(ctx, run, version)
		default:
			deleted, err = t.markDeleted(ctx, key, f, version)
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return deleted, err
		}
		if errors.Is(err, errRepeated) {
			doubted = s.created
		}
		if err := retries.next(ctx, err); err != nil {
			return false, err
		}
	}
}

// readSession returns a session's record and its version, which is 0 where there is none.
func (t *Tape) readSession(ctx context.Context, run runstore.RunID) (storedSession, runstore.Version, error) {
	rec, found, err := t.readRecord(ctx, run, sessionKey)
	if errors.Is(err, ErrNoSuchRun) || err == nil && !found {
		return storedSession{}, 0, nil
	}
	if err != nil {
		return storedSession{}, 0, err
	}
	s, err := sessionOf(run, rec)
	return s, rec.Version, err
}

// markDeleted deletes the session at a version, under the fence of another run.
func (t *Tape) markDeleted(ctx context.Context, key SessionKey, f runstore.Fence, version runstore.Version) (bool, error) {
	b := runstore.NewBatch(key.run(), runstore.AtVersion(sessionKey, version))
	b.Put(sessionKey, encode(sessionHead{App: key.App, User: key.User, Session: key.Session, Deleted: true}, ""))
	_, err := t.commitUnder(ctx, f, b)
	if err == ErrNoSuchRun { // the session's: it was deleted meanwhile
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := t.finishDeletion(ctx, key.run()); err != nil {
		return false, unknownStep(key.run(), err)
	}
	return true, nil
}

// finishDeletion purges the run of a session that is marked as deleted. It does nothing where the
// session was purged, or created again, by another caller.
func (t *Tape) finishDeletion(ctx context.Context, run runstore.RunID) error {
	s, version, err := t.readSession(ctx, run)
	if err != nil || !s.deleted {
		return err
	}
	_, err = t.purgeSession(ctx, run, version)
	if errors.Is(err, runstore.ErrConflict) { // only a purge changes a session that is marked
		return nil
	}
	return err
}

// errRepeated goes with the conflict of a purge that was repeated: the first copy may have been
// applied, and the conflict be with a session that was created since.
var errRepeated = errors.New("the purge was repeated")

// purgeSession purges the run of a session at a version, and reports whether it did.
func (t *Tape) purgeSession(ctx context.Context, run runstore.RunID, version runstore.Version) (purged bool, err error) {
	b := runstore.NewBatch(run, runstore.AtVersion(sessionKey, version))
	b.Purge, b.ID = true, runstore.NewBatchID()
	sent := 0
	_, err = retry(ctx, func() (runstore.Committed, error) {
		sent++
		return t.store.Commit(ctx, b)
	})
	if errors.Is(err, runstore.ErrNotFound) {
		// A purge forgets its own id: a repeat that finds nothing follows a purge whose reply was
		// lost.
		return sent > 1, nil
	}
	if errors.Is(err, runstore.ErrConflict) && sent > 1 {
		err = errors.Join(err, errRepeated)
	}
	return err == nil, err
}
