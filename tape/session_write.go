package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// CreateSession creates a session with a state, or replaces the state of one that exists and keeps
// its events. An empty id becomes a new one. Three round trips.
//
// Errors: runstore.ErrTooLarge above [MaxSessionState] and [MaxSessionNames].
func (t *Tape) CreateSession(ctx context.Context, key SessionKey, state string) (Session, error) {
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
	if err := t.createSessionRun(ctx, key); err != nil {
		return Session{}, err
	}
	s, err := t.changeSession(ctx, key, func(s storedSession, _ bool) (storedSession, *step, error) {
		s.SessionKey, s.State, s.updated = key, state, runstore.After(0)
		return s, &step{}, nil
	})
	return s.Session, err
}

// AppendEvent appends an event to a session and merges a delta into its state, in one commit. A
// session that does not exist is created. It returns the event with its time. Two round trips, and
// five for a new session.
//
// Errors: runstore.ErrTooLarge above [MaxSessionEvent], [MaxSessionNames], and where the state
// would become larger than [MaxSessionState].
func (t *Tape) AppendEvent(ctx context.Context, key SessionKey, e SessionEvent, delta string) (SessionEvent, error) {
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
	s, err := t.changeSession(ctx, key, func(s storedSession, found bool) (storedSession, *step, error) {
		if !found {
			s.State = "{}"
		}
		s.SessionKey, s.State = key, mergeState(s.State, delta)
		if s.updated = whenAt(e.Time); s.updated.IsZero() {
			s.updated = runstore.After(0)
		}
		return s, &step{raw: entries}, checkState(s.State, change)
	})
	e.Time = s.Updated
	return e, err
}

func checkState(state string, blame field) error {
	if err := checkText(blame); err != nil {
		return err
	}
	return checkSize("the state of a session", len(state), MaxSessionState, blame)
}

// changeSession applies a transition to a session, whose run it creates first if there is none.
func (t *Tape) changeSession(ctx context.Context, key SessionKey, decide transition[storedSession]) (storedSession, error) {
	run := key.run()
	for range maxAttempts {
		s, err := sessions.change(ctx, t, run, runstore.Fence{}, sessionKey, decide)
		if err != ErrNoSuchRun {
			return s, err
		}
		if err := t.createSessionRun(ctx, key); err != nil {
			return storedSession{}, err
		}
	}
	return storedSession{}, refuse(runstore.ErrUnavailable, "the session was deleted again and again")
}

// createSessionRun creates the run of a session, unless there is one. It is created empty, so that a
// repeat of the creation adds nothing.
func (t *Tape) createSessionRun(ctx context.Context, key SessionKey) error {
	_, err := retry(ctx, func() (runstore.Created, error) {
		return t.store.CreateRun(ctx, runstore.RunSpec{ID: key.run(), Unlisted: true})
	})
	return err
}

// DeleteSession removes a session with its events, and reports whether there was one. Two round
// trips.
func (t *Tape) DeleteSession(ctx context.Context, key SessionKey) (deleted bool, err error) {
	if err := key.check(); err != nil {
		return false, err
	}
	run := key.run()
	retries := t.retries(sessionKey, run)
	defer retries.end()
	for {
		rec, found, err := t.readRecord(ctx, run, sessionKey)
		if err != nil || !found {
			return false, err
		}
		b := runstore.NewBatch(run, runstore.AtVersion(sessionKey, rec.Version))
		b.Purge, b.ID = true, runstore.NewBatchID()
		sent := 0
		_, err = retry(ctx, func() (runstore.Committed, error) {
			sent++
			return t.store.Commit(ctx, b)
		})
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, runstore.ErrNotFound):
			// A purge forgets its own id: a repeat that finds nothing follows a purge whose reply
			// was lost.
			return sent > 1, nil
		case !errors.Is(err, runstore.ErrConflict):
			return false, err
		}
		if err := retries.next(ctx, err); err != nil {
			return false, err
		}
	}
}
