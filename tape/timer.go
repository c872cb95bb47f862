package tape

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Timer is a time at which a reactor acts on a run. A timer is unfired until a claim of
// [Tape.ListDueTimers] fires it, exactly once over all callers.
type Timer struct {
	Run runstore.RunID
	// ID names the timer within its run.
	ID string
	// FireAtMS is when the timer is due, in milliseconds since 1970. A timer with 0 or less is due
	// at once.
	FireAtMS int64
	Kind     string
	// Payload is opaque text, stored verbatim.
	Payload string
	Fired   bool
	// CreatedAt is when the timer was first set. It does not change when the timer is set again,
	// until the timer is cancelled.
	CreatedAt time.Time
}

// MaxTimer is the largest sum of a timer's kind and payload, in bytes: it leaves half of an answer
// of 4 MiB for the names of a listed timer.
const MaxTimer = 2_000_000

// IndexTimers is the cross-run queue of unfired timers, ordered by the time at which they are due.
const IndexTimers runstore.IndexName = "timer.due"

const timerPrefix = "timer/"

// maxTimerID is the maximal length of a timer's id, in bytes.
const maxTimerID = runstore.MaxRecordKey - len(timerPrefix)

func timerKey(id string) runstore.RecordKey { return runstore.RecordKey(timerPrefix + id) }

// firstTime is the earliest time that a store accepts. Timers with a FireAtMS of 0 or less are
// indexed there.
var firstTime = time.UnixMicro(1).UTC()

// timerHead is the stored form of a timer's small fields. Its kind and payload are bodies; its id
// and creation time are those of the record.
type timerHead struct {
	FireAtMS int64 `json:"fire_at_ms"`
	Fired    bool  `json:"fired,omitempty"`
}

var timers = ledger[Timer]{decode: timerOf, encode: Timer.encode}

func (m Timer) encode() ([]byte, []runstore.Place) {
	value := encode(timerHead{FireAtMS: m.FireAtMS, Fired: m.Fired}, m.Kind, m.Payload)
	if m.Fired {
		return value, nil
	}
	due := firstTime
	if m.FireAtMS > 0 {
		due = time.UnixMilli(m.FireAtMS)
	}
	return value, []runstore.Place{{Index: IndexTimers, At: runstore.At(due)}}
}

// timerOf is the inverse of Timer.encode.
func timerOf(run runstore.RunID, rec runstore.Record) (Timer, error) {
	m := Timer{Run: run, ID: strings.TrimPrefix(string(rec.Key), timerPrefix), CreatedAt: rec.Created.Time}
	var head timerHead
	what := fmt.Sprintf("timer %q of run %q", clip(m.ID, 64), run)
	if err := decode(what, rec.Value, &head, &m.Kind, &m.Payload); err != nil {
		return Timer{}, err
	}
	m.FireAtMS, m.Fired = head.FireAtMS, head.Fired
	return m, nil
}

// size returns an upper bound of the bytes that the timer takes in an answer.
func (m Timer) size() int {
	const numbers = 128 // numbers, and the tags and lengths of all fields: under 100 bytes
	return numbers + len(m.Run) + len(m.ID) + len(m.Kind) + len(m.Payload)
}

// SetTimer creates or replaces a timer and returns it. A timer that exists gets the time, kind and
// payload of the request and becomes unfired. An empty ID becomes a UUID. It writes no journal
// entry. One round trip for a new timer, two for one that is set as requested already, three for
// one that changes.
//
// Errors: ErrNoSuchRun; runstore.ErrInvalid for a time after [runstore.EndOfTime];
// runstore.ErrTooLarge above [MaxTimer]; runstore.ErrFenced for a stale fence, even if there was
// nothing to write.
func (t *Tape) SetTimer(ctx context.Context, m Timer, f runstore.Fence) (Timer, error) {
	if err := t.admit("SetTimer", m.Run, f); err != nil {
		return Timer{}, err
	}
	if err := m.check(); err != nil {
		return Timer{}, err
	}
	if m.ID == "" {
		m.ID = newUUID()
	}
	return timers.create(ctx, t, m.Run, f, timerKey(m.ID), func(stored Timer, found bool) (Timer, *step, error) {
		next := Timer{Run: m.Run, ID: m.ID, FireAtMS: m.FireAtMS, Kind: m.Kind, Payload: m.Payload, CreatedAt: stored.CreatedAt}
		if found && stored == next {
			return stored, nil, nil
		}
		return next, &step{}, nil
	})
}

func (m Timer) check() error {
	id, kind, payload := field{"timer_id", m.ID}, field{"kind", m.Kind}, field{"payload_json", m.Payload}
	if err := checkText(id, kind, payload); err != nil {
		return err
	}
	if err := checkLength(id.name, id.text, maxTimerID); err != nil {
		return err
	}
	if last := runstore.EndOfTime.UnixMilli(); m.FireAtMS > last {
		return &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "fire_at_ms",
			Problem: fmt.Sprintf("%d is out of range, the limit is %d (0 or less is due at once)", m.FireAtMS, last),
		}
	}
	return checkSize("a timer", len(m.Kind)+len(m.Payload), MaxTimer, kind, payload)
}

// CancelTimer deletes a timer, fired or not, and reports whether it existed. Two round trips; one
// if there is nothing to delete and no fence.
//
// Errors: runstore.ErrFenced for a stale fence, even if there was nothing to delete.
func (t *Tape) CancelTimer(ctx context.Context, run runstore.RunID, id string, f runstore.Fence) (cancelled bool, err error) {
	if err := t.admit("CancelTimer", run, f); err != nil {
		return false, err
	}
	if err := checkText(field{"timer_id", id}); err != nil {
		return false, err
	}
	if err := checkLength("timer_id", id, maxTimerID); err != nil {
		return false, err
	}
	_, err = timers.change(ctx, t, run, f, timerKey(id), func(m Timer, found bool) (Timer, *step, error) {
		if cancelled = found; !found {
			return m, nil, nil
		}
		return m, &step{deletes: true}, nil
	})
	return cancelled && err == nil, err
}

// newUUID returns a random UUID (version 4) as text.
func newUUID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}
