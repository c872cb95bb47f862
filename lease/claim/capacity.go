package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Capacity is a named amount, on a store, of which callers reserve parts: of seats, licences, slots
// of a service. It is safe for concurrent use, and all capacities of one name on one store are the
// same. Calls on one handle wait for each other; a call that loses to another process is repeated
// until ctx ends.
type Capacity struct {
	store runstore.RunStore
	run   runstore.RunID
	holds runstore.IndexName               // of the holds, by their expiry
	turns optimistic.Turns[runstore.RunID] // the calls of one handle take turns
}

// NewCapacity returns the capacity of a name. It makes no request; [Capacity.Set] creates the
// capacity. Errors: runstore.ErrInvalid and runstore.ErrTooLarge for a name out of the limits.
func NewCapacity(s runstore.RunStore, name string) (*Capacity, error) {
	if err := checkSize("name", name, 1, MaxName); err != nil {
		return nil, err
	}
	return &Capacity{
		store: s, run: runstore.RunID("claim/capacity/" + name),
		holds: runstore.IndexName("claim.hold/" + name),
	}, nil
}

// account is the summary of a capacity's run: the sums over all reservations.
type account struct {
	Format    int   `json:"v"`
	Capacity  int64 `json:"capacity"`
	Committed int64 `json:"committed"`
	// Held and Holds are the amount and the number of all holds, expired ones among them.
	Held  int64 `json:"held"`
	Holds int   `json:"holds"`

	version runstore.Version
}

func (a account) encode() []byte {
	a.Format = format
	value, err := json.Marshal(a)
	if err != nil {
		panic(err) // a struct of numbers
	}
	return value
}

// put adds the write of the account. It reserves room for longer numbers, so that a store that limits
// the records of a run never refuses the end of a reservation.
func (a account) put(w *runstore.Writes) {
	w.Put(runstore.SummaryKey, a.encode())
	w.Records[len(w.Records)-1].Reserve = []runstore.RecordWrite{{Key: runstore.SummaryKey, Value: make([]byte, 256)}}
}

// fits reports whether the reservations keep the limits.
func (a account) fits() bool { return a.Held+a.Committed <= a.Capacity && a.Holds <= MaxHolds }

// reservation is the stored form of a reservation.
type reservation struct {
	Format    int            `json:"v"`
	Amount    int64          `json:"amount"`
	Owner     runstore.Owner `json:"owner"`
	Committed bool           `json:"committed,omitempty"`
	// TTL is the time that the hold lasts from the record's last change on, in microseconds.
	TTL int64 `json:"ttl,omitempty"`

	id     string
	record runstore.Record
}

const holdPrefix = "hold/"

func holdKey(id string) runstore.RecordKey { return runstore.RecordKey(holdPrefix + id) }

func (h reservation) encode() []byte {
	h.Format = format
	value, err := json.Marshal(h)
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	return value
}

// unmarshal decodes a record of a capacity; v has the field Format at f.
func (c *Capacity) unmarshal(rec runstore.Record, v any, f *int) error {
	err := json.Unmarshal(rec.Value, v)
	if err == nil && *f != format {
		err = fmt.Errorf("format %d, this version reads %d", *f, format)
	}
	if err != nil {
		return &runstore.CorruptError{Run: c.run, Cause: fmt.Errorf("record %.64q: %w", string(rec.Key), err)}
	}
	return nil
}

func (c *Capacity) decodeHold(rec runstore.Record) (reservation, error) {
	h := reservation{id: string(rec.Key[min(len(holdPrefix), len(rec.Key)):]), record: rec}
	err := c.unmarshal(rec, &h, &h.Format)
	return h, err
}

// read returns the account and the reservation of an id, nil if there is none. The run must exist.
func (c *Capacity) read(ctx context.Context, id string) (a account, h *reservation, err error) {
	recs, err := c.store.ReadRecords(ctx, c.run, runstore.RecordQuery{Keys: []runstore.RecordKey{runstore.SummaryKey, holdKey(id)}})
	if err != nil {
		return a, nil, err
	}
	for _, rec := range recs {
		if rec.Key == runstore.SummaryKey {
			a.version = rec.Version
			err = c.unmarshal(rec, &a, &a.Format)
		} else {
			var found reservation
			found, err = c.decodeHold(rec)
			h = &found
		}
		if err != nil {
			return a, nil, err
		}
	}
	if a.version == 0 {
		return a, nil, &runstore.CorruptError{Run: c.run, Cause: errors.New("the run has no account")}
	}
	return a, h, nil
}

// Set creates the capacity or changes its amount, from 0 to [MaxAmount]. A call can be repeated.
// Three round trips; if the amount is less than the sum of all reservations, expired holds are
// cancelled until it is not.
//
// Errors: runstore.ErrInvalid for an amount out of the limits; NoCapacityError if holds and
// commitments exceed it, then nothing is changed but holds that have expired; those of
// RunStore.CreateRun and RunStore.Commit.
func (c *Capacity) Set(ctx context.Context, amount int64) error {
	if err := checkNumber("amount", amount, 0, MaxAmount); err != nil {
		return err
	}
	spec := runstore.RunSpec{ID: c.run, Unlisted: true}
	account{Capacity: amount}.put(&spec.Writes)
	made, err := optimistic.Repeat(ctx, func() (runstore.Created, error) { return c.store.CreateRun(ctx, spec) })
	if err != nil || made.New {
		return err
	}
	_, err = c.change(ctx, "", amount, func(a *account, _ *reservation) (*change, error) {
		a.Capacity = amount
		return &change{}, nil
	})
	return err
}

// change is what a call writes besides the account.
type change struct {
	// put replaces the reservation; nil leaves it as it is.
	put *reservation
	// deletes removes the reservation.
	deletes bool
}

// write adds the change of the reservation of an id.
func (ch change) write(c *Capacity, b *runstore.Batch, id string) {
	switch {
	case ch.deletes:
		b.Delete(holdKey(id))
	case ch.put != nil && ch.put.Committed:
		b.Put(holdKey(id), ch.put.encode())
	case ch.put != nil:
		b.Put(holdKey(id), ch.put.encode(), runstore.Place{Index: c.holds, At: runstore.After(ch.put.ttl())})
	}
}

// change reads the account and the reservation of an id, lets decide change the account, and commits
// the outcome if the account has not changed since. Every change of a reservation changes the
// account, so its version guards all of them. If the changed account does not fit, expired holds make
// room. A nil change and no error means that nothing is to be written. requested is the amount that
// a NoCapacityError reports. The result's record is that of the reservation after the change.
func (c *Capacity) change(ctx context.Context, id string, requested int64, decide func(a *account, h *reservation) (*change, error)) (rec runstore.Record, err error) {
	end, err := c.turns.Take(ctx, c.run, "change capacity")
	if err != nil {
		return rec, err
	}
	defer end()
	for n := 0; ; n++ {
		a, found, err := c.read(ctx, id)
		if err != nil {
			return rec, err
		}
		wanted := a
		ch, err := decide(&wanted, found)
		if err != nil || ch == nil {
			if found != nil {
				rec = found.record
			}
			return rec, err
		}
		var expired reclaimed
		if !wanted.fits() {
			if expired, err = c.reclaim(ctx, wanted, id); err != nil {
				return rec, err
			}
		}
		b := runstore.NewBatch(c.run, runstore.AtVersion(runstore.SummaryKey, a.version))
		expired.end(&b)
		rest, changed := a.without(expired), wanted.without(expired)
		ends := changed.fits()
		switch {
		case ends:
			ch.write(c, &b, id)
		case expired.more:
			changed = rest // this commit only makes room
		default:
			// The expired holds were read after the account, and one of them may have ended between.
			same, _, err := c.read(ctx, id)
			if err == nil && same.version != a.version {
				continue
			}
			if err == nil {
				err = &NoCapacityError{requested, rest.Capacity, rest.Committed, rest.Held, rest.Holds}
			}
			return rec, err
		}
		changed.put(&b.Writes)
		committed, err := optimistic.Commit(ctx, c.store, b)
		switch {
		case err == nil && ends:
			return c.written(b, committed, id), nil
		case err == nil: // there was no room yet
		case !errors.Is(err, runstore.ErrConflict):
			return rec, err
		case optimistic.Rest(ctx, n, err) != nil:
			return rec, &runstore.OpError{Op: "change capacity", Run: c.run, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
		}
	}
}

// written returns the record of a reservation as a batch has put it.
func (c *Capacity) written(b runstore.Batch, done runstore.Committed, id string) (rec runstore.Record) {
	for i, w := range b.Records {
		if w.Key == holdKey(id) && !w.Delete {
			rec = runstore.Record{Key: w.Key, Value: w.Value, Version: done.Versions[i]}
			rec.Updated.Time = done.Time
		}
	}
	return rec
}

// reclaimPage is the number of expired holds that one commit can replace: with the account and the
// new hold, fewer than runstore.MaxRecordWrites.
const reclaimPage = 200

// reclaimed is a set of expired holds that end so that other reservations fit.
type reclaimed struct {
	holds  []reservation
	amount int64
	// more reports that there may be further expired holds.
	more bool
}

// without returns the account after the end of expired holds.
func (a account) without(r reclaimed) account {
	a.Held -= r.amount
	a.Holds -= len(r.holds)
	return a
}

// end adds the writes that end the holds.
func (r reclaimed) end(b *runstore.Batch) {
	for _, h := range r.holds {
		b.Delete(h.record.Key)
	}
}

// reclaim returns as many expired holds as must end before an account fits, those first that expired
// first. It leaves out the reservation of an id, which the caller has read.
func (c *Capacity) reclaim(ctx context.Context, wanted account, id string) (r reclaimed, err error) {
	page, err := c.store.ScanIndex(ctx, runstore.IndexQuery{Index: c.holds, Limit: reclaimPage})
	if err != nil {
		return r, err
	}
	for _, e := range page {
		if e.Record.Key == holdKey(id) {
			continue
		}
		h, err := c.decodeHold(e.Record)
		if err != nil {
			return r, err
		}
		r.holds = append(r.holds, h)
		r.amount += h.Amount
		if wanted.without(r).fits() {
			return r, nil
		}
	}
	r.more = len(page) == reclaimPage
	return r, nil
}
