package tape

import (
	"context"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// GetSession returns a session with its last events, up to limit of them; all for 0 or less. It
// leaves out the oldest events that do not fit into an answer and sets Truncated. found is false if
// there is no such session. Two reads, and more for long journals.
func (t *Tape) GetSession(ctx context.Context, key SessionKey, limit int) (s Session, found bool, err error) {
	if err := key.check(); err != nil {
		return Session{}, false, err
	}
	run := key.run()
	// The record contains the seq of the last entry that its state reflects, so state and events
	// are consistent.
	rec, found, err := t.readRecord(ctx, run, sessionKey)
	if err != nil || !found {
		return Session{}, false, err
	}
	stored, err := sessionOf(run, rec)
	if err != nil || stored.deleted {
		return Session{}, false, err
	}
	s = stored.Session
	s.Events, s.Truncated, err = t.sessionEvents(ctx, run, rec.Updated.Seq, limit, maxAnswer-s.size())
	if errors.Is(err, ErrNoSuchRun) { // the session was deleted meanwhile
		return Session{}, false, nil
	}
	return s, err == nil, err
}

// sessionEvents returns the last events of a session up to a seq: up to limit of them (0 or less
// for all), and as many as fit into room bytes of an answer. It reads the journal backwards from
// its end.
func (t *Tape) sessionEvents(ctx context.Context, run runstore.RunID, last runstore.Seq, limit, room int) (events []SessionEvent, truncated bool, err error) {
	var tail []runstore.Event // continuations of an event whose first entry is not read yet
	window := 16              // entries per read: 16 MiB at most
	for last > 0 {
		n := runstore.Seq(window)
		if limit > 0 {
			n = min(n, runstore.Seq(limit-len(events))+2) // 2 extra for an event of several entries
		}
		from := last - min(n, last) + 1
		page, err := t.journalBetween(ctx, run, from, last)
		if err != nil {
			return nil, false, err
		}
		for i := len(page) - 1; i >= 0; i-- {
			if page[i].Kind == kindMore {
				tail = append(tail, page[i])
				continue
			}
			data := slices.Clone(page[i].Data)
			for k := len(tail) - 1; k >= 0; k-- {
				data = append(data, tail[k].Data...)
			}
			tail = nil
			e, err := sessionEventOf(page[i], data)
			if err != nil {
				return nil, false, err
			}
			if room -= e.size(); room < 0 {
				slices.Reverse(events)
				return events, true, nil
			}
			if events = append(events, e); len(events) == limit {
				slices.Reverse(events)
				return events, false, nil
			}
		}
		size := 1
		for _, e := range page {
			size += len(e.Data)
		}
		window = min(max(maxAnswer*len(page)/size, 16), runstore.MaxPage) // as many entries of the average size as fit into an answer
		last = from - 1
	}
	slices.Reverse(events)
	return events, false, nil
}

// journalBetween returns the entries of a run from one seq to another, in as many reads as needed.
func (t *Tape) journalBetween(ctx context.Context, run runstore.RunID, from, to runstore.Seq) (all []runstore.Event, err error) {
	for from <= to {
		page, err := t.store.ReadJournal(ctx, run, from, min(int(to-from+1), runstore.MaxPage))
		if err != nil {
			return nil, noSuchRun(err)
		}
		if len(page) == 0 {
			return nil, ErrNoSuchRun // the session was deleted meanwhile, and perhaps created again
		}
		all = append(all, page...)
		from = page[len(page)-1].Seq + 1
	}
	return all, nil
}

// ListSessions returns the sessions of an app's user with their states and without events, last
// updated first. It returns fewer if they do not fit into one answer. A session that cannot be read
// is logged and left out. One read per page.
func (t *Tape) ListSessions(ctx context.Context, app, user string) ([]Session, error) {
	key := SessionKey{App: app, User: user}
	if err := key.check(); err != nil {
		return nil, err
	}
	q := runstore.IndexQuery{Index: key.index(), Until: runstore.EndOfTime, Newest: true, Limit: 100}
	const noLimit = 0
	return list(ctx, t, nil, "sessions", sessionOf, runstore.Entries(ctx, t.store, q), noLimit, func(s storedSession) (Session, bool) {
		return s.Session, true
	})
}
