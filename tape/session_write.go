package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// A write to a session may present the fence of a run. It is then applied only while that grant is
// current, although the session is not part of the run; see commitUnder. The fence itself names the
// run: usually the one whose events the session keeps.

// CreateSession creates a session with a state, or replaces the state of an existing session and
// keeps its events. An empty id is replaced by a new one. Three round trips; under a fence one
// more, and five more on an engine that does not commit to two runs at once.
//
// Errors: runstore.ErrTooLarge above [MaxSessionState] and [MaxSessionNames]; runstore.ErrFenced
// and ErrNoSuchRun for a fence that is not current.
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

// AppendEvent appends an event to a session and merges a delta into its state, in one commit. It
// creates a session that does not exist. It returns the event with its time. An event without a
// time gets that of its commit; if the replies to the commit were lost and the session was changed
// since, the returned time is that of the change. Two round trips, and five for a new session;
// under a fence five more on an engine that does not commit to two runs at once.
//
// Errors: runstore.ErrTooLarge above [MaxSessionEvent], [MaxSessionNames], and if the state would
// exceed [MaxSessionState]; runstore.ErrTooLarge, field "records", for the fence of a run that is
// full, on an engine that limits the records of a run and does not commit to two runs at once;
// runstore.ErrFenced and ErrNoSuchRun for a fence that is not current.
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
		e.Time = e.Time.UTC().Truncate(runstore.TimePrecision) // as stored; another write may have moved the session's time
	}
	return e, err
}

func checkState(state string, blame field) error {
	if err := checkText(blame); err != nil {
		return err
	}
	return checkSize("the state of a session", len(state), MaxSessionState, blame)
}

// errSessionDeleted: the record marks the session as deleted; its run is to be purged.
var errSessionDeleted = errors.New("the session was deleted")

// changeSession applies a transition to a session. It creates the session's run first if there is
// none.
func (t *Tape) changeSession(ctx context.Context, key SessionKey, f runstore.Fence, decide transition[storedSession]) (storedSession, error) {
	run := key.run()
	for range optimistic.MaxAttempts {
		s, err := sessions.change(ctx, t, run, f, sessionKey, func(s storedSession, found bool) (storedSession, *step, error) {
			if s.deleted {
				return s, nil, errSessionDeleted
			}
			return decide(s, found)
		})
		switch err { // ErrNoSuchRun itself means the session's run; an error that wraps it means the fence's
		case ErrNoSuchRun:
			err = t.createShared(ctx, run, f)
		case errSessionDeleted:
			err = notSent(t.finishDeletion(ctx, run))
		default:
			return s, err
		}
		if err != nil {
			return storedSession{}, err
		}
	}
	return storedSession{}, refuse(runstore.ErrUnavailable, "the session was deleted again and again")
}

// DeleteSession deletes a session with its events and reports whether it existed. Two round trips.
// Under a fence it first marks the session as deleted, because a step over two runs cannot purge a
// run: one round trip more, and five more on an engine that does not commit to two runs at once. If
// the deletion stops between the two, the session is deleted; the next write to it or deletion of
// it removes the events.
//
// Errors: runstore.ErrFenced and ErrNoSuchRun for a fence that is not current;
// runstore.ErrUnknownOutcome if the session was marked and its events may remain.
func (t *Tape) DeleteSession(ctx context.Context, key SessionKey, f runstore.Fence) (deleted bool, err error) {
	if err := t.require("DeleteSession", f); err != nil {
		return false, err
	}
	if err := key.check(); err != nil {
		return false, err
	}
	run := key.run()
	retries, err := t.retries(ctx, sessionKey, run)
	if err != nil {
		return false, err
	}
	defer retries.leave()
	var doubted runstore.Stamp // creation of the session whose purge was repeated and then refused
	for {
		s, version, err := t.readSession(ctx, run)
		switch {
		case err != nil:
			return false, err
		case doubted != (runstore.Stamp{}) && s.created != doubted:
			return true, nil // it was purged; another caller has created the present session since
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

// readSession returns a session and the version of its record, which is 0 if there is none.
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

// markDeleted marks the session as deleted if it is at a version, under the fence of another run.
func (t *Tape) markDeleted(ctx context.Context, key SessionKey, f runstore.Fence, version runstore.Version) (bool, error) {
	b := runstore.NewBatch(key.run(), runstore.AtVersion(sessionKey, version))
	b.Put(sessionKey, encode(sessionHead{App: key.App, User: key.User, Session: key.Session, Deleted: true}, ""))
	_, err := t.commitUnder(ctx, f, b)
	if err == ErrNoSuchRun { // the session's run: the session was deleted meanwhile
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := t.finishDeletion(ctx, key.run()); err != nil {
		return false, unknown("step over two runs", key.run(), err)
	}
	return true, nil
}

// finishDeletion purges the run of a session that is marked as deleted. It does nothing if another
// caller has purged the session or created it again.
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

// errRepeated marks the conflict of a repeated purge: the first copy may have been applied, and the
// conflict may be with a session that was created since.
var errRepeated = errors.New("the purge was repeated")

// purgeSession purges the run of a session at a version and reports whether it did.
func (t *Tape) purgeSession(ctx context.Context, run runstore.RunID, version runstore.Version) (purged bool, err error) {
	b := runstore.NewBatch(run, runstore.AtVersion(sessionKey, version))
	b.Purge, b.ID = true, runstore.NewBatchID()
	sent := 0
	_, err = optimistic.Repeat(ctx, func() (runstore.Committed, error) {
		sent++
		return t.store.Commit(ctx, b)
	})
	if errors.Is(err, runstore.ErrNotFound) {
		// A purge also deletes the store's memory of its batch id: if a repeat finds nothing, an
		// earlier copy was applied and its reply lost.
		return sent > 1, nil
	}
	if errors.Is(err, runstore.ErrConflict) && sent > 1 {
		err = errors.Join(err, errRepeated)
	}
	return err == nil, err
}
