package claim_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Input out of the limits is refused with the field and the limit, before the store is asked.
func TestLimits(t *testing.T) {
	s := &scripted{RunStore: memory.New(nil).Open()}
	ctx := t.Context()
	q := open(t, s, claim.QueueOptions{Shards: 3})
	c := capacity(t, s, 10)
	put(t, q, "m", true)
	r := claimOne(t, q, "a", time.Minute)
	h := hold(t, c, "a", 1, time.Minute)
	s.take()
	queue := func(name string, o claim.QueueOptions) error { _, err := claim.OpenQueue(ctx, s, name, &o); return err }
	putErr := func(id string, payload []byte, delay time.Duration) error {
		_, err := q.Put(ctx, id, payload, &claim.PutOptions{Delay: delay})
		return err
	}
	claimErr := func(owner runstore.Owner, n int, ttl time.Duration) error {
		_, err := q.Claim(ctx, owner, n, ttl)
		return err
	}
	extend := func(r claim.Receipt, ttl time.Duration) error { _, err := q.Extend(ctx, r, ttl); return err }
	holding := func(id string, owner runstore.Owner, amount int64, ttl time.Duration) error {
		_, err := c.Hold(ctx, claim.HoldRequest{ID: id, Owner: owner, Amount: amount, TTL: ttl})
		return err
	}
	newCapacity := func(name string) error { _, err := claim.NewCapacity(s, name); return err }
	get := func(id string) error { _, err := c.Get(ctx, id); return err }
	long := strings.Repeat("x", claim.MaxPayload+1)
	for i, c := range []struct {
		err          error
		kind         error
		field, limit string
	}{
		{queue("", claim.QueueOptions{}), runstore.ErrInvalid, "name", "128"},
		{queue(long[:129], claim.QueueOptions{}), runstore.ErrTooLarge, "name", "128"},
		{queue("x", claim.QueueOptions{Shards: 65}), runstore.ErrInvalid, "shards", "64"},
		{queue("x", claim.QueueOptions{Shards: -1}), runstore.ErrInvalid, "shards", "64"},
		{queue("x", claim.QueueOptions{Remember: claim.MaxDelay + 1000}), runstore.ErrInvalid, "remember", "8760h"},
		{putErr("", nil, 0), runstore.ErrInvalid, "id", "256"},
		{putErr(long[:257], nil, 0), runstore.ErrTooLarge, "id", "256"},
		{putErr("x", []byte(long), 0), runstore.ErrTooLarge, "payload", "262144"},
		{putErr("x", nil, -1), runstore.ErrInvalid, "delay", "8760h"},
		{claimErr("", 1, time.Second), runstore.ErrInvalid, "owner", "256"},
		{claimErr("\xff", 1, time.Second), runstore.ErrInvalid, "owner", "UTF-8"},
		{claimErr("x", 0, time.Second), runstore.ErrInvalid, "max", "128"},
		{claimErr("x", 129, time.Second), runstore.ErrInvalid, "max", "128"},
		{claimErr("x", 1, 0), runstore.ErrInvalid, "ttl", "1ms"},
		{claimErr("x", 1, 25*time.Hour), runstore.ErrInvalid, "ttl", "24h"},
		{extend(r, 0), runstore.ErrInvalid, "ttl", "1ms"},
		{extend(claim.Receipt{}, time.Second), runstore.ErrInvalid, "receipt", "Claim"},
		{q.Ack(ctx, claim.Receipt{Message: claim.Message{ID: "m"}}), runstore.ErrInvalid, "receipt", "Claim"},
		{q.Nack(ctx, r, -1, ""), runstore.ErrInvalid, "delay", "8760h"},
		{q.Redrive(ctx, ""), runstore.ErrInvalid, "id", "256"},
		{q.Discard(ctx, long[:257]), runstore.ErrTooLarge, "id", "256"},
		{newCapacity(""), runstore.ErrInvalid, "name", "128"},
		{c.Set(ctx, -1), runstore.ErrInvalid, "amount", "9007199254740991"},
		{c.Set(ctx, claim.MaxAmount+1), runstore.ErrInvalid, "amount", "9007199254740991"},
		{holding(long[:257], "x", 1, time.Second), runstore.ErrTooLarge, "id", "256"},
		{holding("x", "", 1, time.Second), runstore.ErrInvalid, "owner", "256"},
		{holding("x", "x", 0, time.Second), runstore.ErrInvalid, "amount", "1 and"},
		{holding("x", "x", 1, 25*time.Hour), runstore.ErrInvalid, "ttl", "24h"},
		{c.Commit(ctx, claim.Reservation{ID: "a"}), runstore.ErrInvalid, "reservation", "Hold"},
		{get(""), runstore.ErrInvalid, "id", "256"},
	} {
		var input *runstore.InputError
		if !errors.As(c.err, &input) || input.Kind != c.kind || input.Field != c.field || !strings.Contains(input.Problem, c.limit) {
			t.Errorf("%d: got %v, want %v naming %s and %s", i, c.err, c.kind, c.field, c.limit)
		}
	}
	if calls := s.take(); calls != "" {
		t.Errorf("refused input made the calls %q", calls)
	}
	if err := queue("mail", claim.QueueOptions{Shards: 4}); runstore.KindOf(err) != runstore.ErrInvalid || !strings.Contains(err.Error(), "4, but the queue has 3") {
		t.Errorf("another number of shards: %v", err)
	}
	must(t, queue("mail", claim.QueueOptions{}))
	must(t, c.Cancel(ctx, h))

	// The largest message there can be, through all of its states.
	id, payload := long[:claim.MaxID], []byte(long[:claim.MaxPayload])
	_, err := q.Put(ctx, id, payload, nil)
	must(t, err)
	owner := runstore.Owner(strings.Repeat("\x01", runstore.MaxOwner))
	r = claimAll(t, q, owner, time.Minute)[0]
	must(t, q.Nack(ctx, r, 0, strings.Repeat("\x01", claim.MaxReason+1)))
	r = claimAll(t, q, owner, time.Minute)[0]
	if len(r.Reason) != claim.MaxReason || string(r.Payload) != string(payload) || r.Owner != owner {
		t.Errorf("the reason has %d bytes, the payload %d", len(r.Reason), len(r.Payload))
	}
	must(t, q.Nack(ctx, r, 0, "not \xff UTF-8"))
	r = claimAll(t, q, owner, time.Minute)[0]
	if r.Reason != "not  UTF-8" {
		t.Errorf("reason %q", r.Reason)
	}
	must(t, q.Bury(ctx, r, "x"))
}
