package cases

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/model"
	"github.com/tapestore/tapestore/runstore"
)

// Histories returns the cases that check histories of concurrent random operations for
// linearizability: some order of the operations, each between its call and its return, must explain
// every answer by a sequential model.
func Histories() []harness.Case {
	leases := mix{model.Acquire: 4, model.Preempt: 2, model.Renew: 3, model.Release: 3, model.Head: 3, model.Commit: 1}
	fenced := mix{model.Acquire: 2, model.Preempt: 2, model.Renew: 1, model.Release: 1, model.Commit: 8, model.Head: 1, model.Journal: 2, model.Records: 1}
	expiring := mix{model.Acquire: 6, model.Preempt: 1, model.Renew: 3, model.Release: 1, model.Head: 3, model.Commit: 2, model.Wait: 2}
	versions := mix{model.Acquire: 1, model.Preempt: 1, model.Commit: 8, model.Journal: 2, model.Records: 3, model.Head: 1}
	return []harness.Case{
		{Guarantee: "I1", Name: "lease-histories-are-linearizable", Run: histories(leases, 0), Doc: `
			Four handles acquire, preempt, renew, release, commit to and read two runs at random, all under one owner
			name. Some order of the operations, each between its call and its return, must explain every answer by a
			sequential model of the lease. A store in which two grants overlap, or a stale head is read, has a
			history that no order explains.`},
		{Guarantee: "I1", Name: "histories-of-leases-that-expire-are-linearizable", Run: histories(expiring, 0), Doc: `
			Four handles acquire, preempt, renew, release, commit to and read two runs at random, under leases that
			expire meanwhile, until some lease was taken at its expiry. Some order of the operations must explain
			every answer, and no acquire may succeed before the expiry that the last grant or renewal returned. A
			store that ignores a renewal, or grants an expired lease twice, has a history that no order explains.`},
		{Guarantee: "I3", Name: "histories-of-fenced-writes-are-linearizable", Run: histories(fenced, 0), Doc: `
			Four handles mostly commit at random to two runs, often under a grant that others have just preempted or
			released, and read journals and records. Some order of the operations must explain every answer by a
			sequential model. A store that applies one write under an ended grant has a history that no order
			explains.`},
		{Guarantee: "I5", Name: "journal-and-record-histories-are-linearizable", Run: histories(versions, 0), Doc: `
			Four handles commit at random to two runs, guarded by fences and record versions, and read journals and
			records. Some order of the operations must explain every answer by a sequential model, and each journal
			is dense. A store that assigns one seq twice, loses an update, or answers a read from the past has a
			history that no order explains.`},
		{Guarantee: "I8", Name: "histories-with-lost-replies-are-linearizable", Run: histories(fenced, 8), Doc: `
			Four handles act at random, and one write in eight loses its request or its reply; mostly the client
			repeats it under the same id. Some order of the operations, with an unknown outcome applied once or
			never, must explain every answer. A store that applies a repeated batch or grant twice has a history that
			no order explains.`},
	}
}

// mix holds the relative frequency of each kind of operation.
type mix map[model.Kind]int

func (m mix) pick(r *rand.Rand) model.Kind {
	var bag []model.Kind
	for kind, n := range m {
		bag = append(bag, slices.Repeat([]model.Kind{kind}, n)...)
	}
	slices.Sort(bag) // map order is random, and a seed has to repeat the choices
	return bag[r.IntN(len(bag))]
}

// histories runs rounds of random operations by several clients, each with its own handle. If oneIn
// is not 0, one write in oneIn loses its request or its reply. Leases expire only in a mix with
// Wait.
func histories(m mix, oneIn int) func(t harness.T, e *harness.Env) {
	return func(t harness.T, e *harness.Env) {
		const clients, each, runs = 4, 30, 2
		rounds := e.Scaled(t, "histories", 1, 3)
		random := kit.Seeded(t)
		began := time.Now()
		stores := kit.OpenHandles(t, e, clients)
		ttl := harness.TTL
		if m[model.Wait] > 0 && e.AdvanceClock == nil {
			ttl = 20 * time.Millisecond
		}
		expired := m[model.Wait] == 0
		for round := 0; round < rounds || !expired; round++ {
			ids := make([]runstore.RunID, runs)
			for i := range ids {
				ids[i] = runstore.RunID(fmt.Sprintf("run-%d-%d", round, i))
				e.Create(t, ids[i])
			}
			all := make([]*client, clients)
			kit.RunConcurrently(t, clients, func(i int) error {
				r := random(round*clients + i)
				c := &client{number: i, store: stores[i], began: began, random: r, ttl: ttl, advance: e.AdvanceClock, leases: map[runstore.RunID]model.Input{}}
				if oneIn > 0 {
					c.store = kit.Lossy{RunStore: stores[i], Next: func() kit.Loss {
						return []kit.Loss{kit.RequestLost, kit.ReplyLost, kit.NothingLost}[min(2, r.IntN(2*oneIn))]
					}}
				}
				all[i] = c
				for n := range each {
					if err := c.act(t.Context(), m.pick(r), ids[r.IntN(runs)], n); err != nil {
						return err
					}
				}
				return nil
			})
			var history []porcupine.Operation
			for _, c := range all {
				history = append(history, c.history...)
			}
			if err := model.Judge(history, harness.CaseTimeout); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			expired = expired || takenAtExpiry(history)
		}
	}
}

// client performs the operations of one handle. It remembers the last lease that it was granted on
// each run, current or ended.
type client struct {
	number  int
	store   runstore.RunStore
	began   time.Time
	random  *rand.Rand
	ttl     time.Duration // of its leases
	advance func(time.Duration)
	leases  map[runstore.RunID]model.Input
	known   [len(model.Keys)]runstore.Version
	history []porcupine.Operation
}

// act performs one operation and records it. If the reply is lost, it records the repeats too.
func (c *client) act(ctx context.Context, kind model.Kind, run runstore.RunID, n int) error {
	in := model.Input{Kind: kind, Run: run, At: -1}
	held, ok := c.leases[run]
	switch kind {
	case model.Wait:
		return c.wait(ctx)
	case model.Acquire, model.Preempt:
		in.Grant = runstore.NewGrantID()
	case model.Renew, model.Release:
		if !ok {
			return nil
		}
		in.Grant, in.Token = held.Grant, held.Token
	case model.Commit:
		in.Batch = fmt.Sprintf("%d.%d", c.number, n)
		in.Key = c.random.IntN(len(model.Keys))
		if ok && c.random.IntN(4) > 0 {
			in.Grant, in.Token = held.Grant, held.Token
		}
		if in.Token == 0 || c.random.IntN(3) == 0 {
			in.At = c.known[in.Key]
		}
	}
	for {
		call := time.Since(c.began)
		out, err := c.ask(ctx, in)
		if err != nil {
			return fmt.Errorf("client %d: %s of %q: %w", c.number, kind, run, err)
		}
		op := porcupine.Operation{ClientId: c.number, Input: in, Output: out, Call: int64(call), Return: int64(time.Since(c.began))}
		if out.Kind == runstore.ErrUnknownOutcome {
			op.Return = model.OpenEnd
		}
		c.history = append(c.history, op)
		// Usually the client repeats a lost write; sometimes it goes on without a repeat.
		if out.Kind != runstore.ErrUnknownOutcome || c.random.IntN(4) == 0 {
			return nil
		}
	}
}

// wait returns once every lease has expired that was granted before the call and is not renewed
// during the call.
func (c *client) wait(ctx context.Context) error {
	if c.advance != nil {
		c.advance(c.ttl)
		return nil
	}
	until := time.Time{}
	for {
		now, err := c.store.Now(ctx)
		if err != nil || !until.IsZero() && !now.Before(until) {
			return err
		}
		if until.IsZero() {
			until = now.Add(c.ttl)
		}
		select {
		case <-time.After(until.Sub(now)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takenAtExpiry reports whether some lease was acquired by another client after its expiry, with
// neither a release nor a preempt in between.
func takenAtExpiry(history []porcupine.Operation) bool {
	type lease struct {
		run   runstore.RunID
		token runstore.Token
	}
	taken, ended := map[lease]bool{}, map[lease]bool{}
	for _, op := range history {
		in, out := op.Input.(model.Input), op.Output.(model.Output)
		switch {
		case out.Kind != nil:
		case in.Kind == model.Acquire && out.Token > 1:
			taken[lease{in.Run, out.Token - 1}] = true
		case in.Kind == model.Release:
			ended[lease{in.Run, in.Token}] = true
		}
	}
	for l := range taken {
		if !ended[l] {
			return true
		}
	}
	return false
}

// owner is the owner name of all clients, so only tokens distinguish them.
const owner = "client"

// ask performs one operation. It returns an error only for an answer that no operation of a history
// can explain.
func (c *client) ask(ctx context.Context, in model.Input) (out model.Output, err error) {
	fence := runstore.Lease{Run: in.Run, Owner: owner, Token: in.Token, Grant: in.Grant}.Fence()
	switch in.Kind {
	case model.Acquire, model.Preempt:
		req := kit.Acquiring(in.Run, owner, c.ttl)
		req.Grant = in.Grant
		if in.Kind == model.Preempt {
			req.Preempt = "history"
		}
		var lease runstore.Granted
		if lease, err = c.store.AcquireLease(ctx, req); err == nil {
			out.Token, in.Token = lease.Token, lease.Token
			out.At, out.Expires = lease.Committed.Time.UnixNano(), lease.ExpiresAt.UnixNano()
			c.leases[in.Run] = in
		}
	case model.Renew:
		var lease runstore.Renewed
		lease, err = c.store.RenewLease(ctx, runstore.RenewRequest{Fence: fence, TTL: c.ttl})
		out.Token, out.Expires = lease.Token, lease.ExpiresAt.UnixNano()
	case model.Release:
		_, err = c.store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: fence})
	case model.Commit:
		out, err = c.commit(ctx, in, fence)
	default:
		out, err = c.read(ctx, in)
	}
	return classify(out, err)
}

func (c *client) commit(ctx context.Context, in model.Input, fence runstore.Fence) (out model.Output, err error) {
	var guards []runstore.Guard
	if in.Token != 0 {
		guards = append(guards, fence)
	}
	key := model.Keys[in.Key]
	if in.At >= 0 {
		guards = append(guards, runstore.AtVersion(key, in.At))
	}
	b := runstore.NewBatch(in.Run, guards[0], guards[1:]...)
	b.ID = runstore.BatchID(in.Batch)
	b.Append("event", []byte(in.Batch))
	b.Put(key, []byte(in.Batch))
	done, err := c.store.Commit(ctx, b)
	if err == nil {
		out.Seq, out.Version = done.FirstSeq, done.Versions[0]
		c.known[in.Key] = out.Version
	}
	var conflict *runstore.ConflictError
	if errors.As(err, &conflict) {
		out.Version = conflict.Current
		c.known[in.Key] = out.Version
	}
	return out, err
}

func (c *client) read(ctx context.Context, in model.Input) (out model.Output, err error) {
	switch in.Kind {
	case model.Head:
		var run runstore.Run
		run, err = c.store.GetRun(ctx, in.Run)
		out.Token, out.Holder, out.Seq, out.Expires = run.Token, run.Holder.Token, run.LastSeq, run.ExpiresAt.UnixNano()
	case model.Journal:
		var events []runstore.Event
		events, err = c.store.ReadJournal(ctx, in.Run, 1, runstore.MaxPage)
		for i, event := range events {
			if event.Seq != runstore.Seq(i+1) {
				return out, fmt.Errorf("event %d has seq %d", i+1, event.Seq)
			}
			out.Found += string(event.Data) + ";"
		}
	default:
		var records []runstore.Record
		records, err = c.store.ReadRecords(ctx, in.Run, runstore.RecordQuery{Keys: model.Keys[:]})
		for _, r := range records {
			out.Found += model.RecordText(r.Key, r.Version, string(r.Value))
			c.known[slices.Index(model.Keys[:], r.Key)] = r.Version
		}
	}
	return out, err
}

// classify translates an error into an output of the model.
func classify(out model.Output, err error) (model.Output, error) {
	if err == nil {
		return out, nil
	}
	out.Kind = runstore.KindOf(err)
	var held *runstore.LeaseHeldError
	var fenced *runstore.FencedError
	switch {
	case errors.As(err, &held):
		out.Holder = held.Holder.Token
	case errors.As(err, &fenced):
		out.Current = fenced.Current
	}
	switch out.Kind {
	case runstore.ErrLeaseHeld, runstore.ErrFenced, runstore.ErrConflict, runstore.ErrUnavailable, runstore.ErrUnknownOutcome:
		return out, nil
	}
	return out, err
}
