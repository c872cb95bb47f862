package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tapestore/tapestore/runstore"
)

// historyCases check histories of concurrent random operations for linearizability: some order of
// the operations, each between its call and its return, must explain every answer by a sequential
// model.
func historyCases() []Case {
	leases := mix{opAcquire: 4, opPreempt: 2, opRenew: 3, opRelease: 3, opHead: 3, opCommit: 1}
	fenced := mix{opAcquire: 2, opPreempt: 2, opRenew: 1, opRelease: 1, opCommit: 8, opHead: 1, opJournal: 2, opRecords: 1}
	expiring := mix{opAcquire: 6, opPreempt: 1, opRenew: 3, opRelease: 1, opHead: 3, opCommit: 2, opWait: 2}
	versions := mix{opAcquire: 1, opPreempt: 1, opCommit: 8, opJournal: 2, opRecords: 3, opHead: 1}
	return []Case{
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
type mix map[opKind]int

func (m mix) pick(r *rand.Rand) opKind {
	var bag []opKind
	for kind, n := range m {
		bag = append(bag, slices.Repeat([]opKind{kind}, n)...)
	}
	slices.Sort(bag) // map order is random, and a seed has to repeat the choices
	return bag[r.IntN(len(bag))]
}

// histories runs rounds of random operations by several clients, each with its own handle. If oneIn
// is not 0, one write in oneIn loses its request or its reply. Leases expire only in a mix with
// opWait.
func histories(m mix, oneIn int) func(t T, e *Env) {
	return func(t T, e *Env) {
		const clients, each, runs = 4, 30, 2
		rounds := e.Scaled(t, "histories", 1, 3)
		random := seeded(t)
		began := time.Now()
		stores := openHandles(t, e, clients)
		ttl := TTL
		if m[opWait] > 0 && e.AdvanceClock == nil {
			ttl = 20 * time.Millisecond
		}
		expired := m[opWait] == 0
		for round := 0; round < rounds || !expired; round++ {
			ids := make([]runstore.RunID, runs)
			for i := range ids {
				ids[i] = runstore.RunID(fmt.Sprintf("run-%d-%d", round, i))
				e.Create(t, ids[i])
			}
			all := make([]*client, clients)
			runConcurrently(t, clients, func(i int) error {
				r := random(round*clients + i)
				c := &client{number: i, store: stores[i], began: began, random: r, ttl: ttl, advance: e.AdvanceClock, leases: map[runstore.RunID]opInput{}}
				if oneIn > 0 {
					c.store = lossy{RunStore: stores[i], next: func() loss {
						return []loss{requestLost, replyLost, nothingLost}[min(2, r.IntN(2*oneIn))]
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
			if err := judge(history, caseTimeout); err != nil {
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
	leases  map[runstore.RunID]opInput
	known   [len(modelKeys)]runstore.Version
	history []porcupine.Operation
}

// act performs one operation and records it. If the reply is lost, it records the repeats too.
func (c *client) act(ctx context.Context, kind opKind, run runstore.RunID, n int) error {
	in := opInput{kind: kind, run: run, at: -1}
	held, ok := c.leases[run]
	switch kind {
	case opWait:
		return c.wait(ctx)
	case opAcquire, opPreempt:
		in.grant = runstore.NewGrantID()
	case opRenew, opRelease:
		if !ok {
			return nil
		}
		in.grant, in.token = held.grant, held.token
	case opCommit:
		in.batch = fmt.Sprintf("%d.%d", c.number, n)
		in.key = c.random.IntN(len(modelKeys))
		if ok && c.random.IntN(4) > 0 {
			in.grant, in.token = held.grant, held.token
		}
		if in.token == 0 || c.random.IntN(3) == 0 {
			in.at = c.known[in.key]
		}
	}
	for {
		call := time.Since(c.began)
		out, err := c.ask(ctx, in)
		if err != nil {
			return fmt.Errorf("client %d: %s of %q: %w", c.number, kind, run, err)
		}
		op := porcupine.Operation{ClientId: c.number, Input: in, Output: out, Call: int64(call), Return: int64(time.Since(c.began))}
		if out.kind == runstore.ErrUnknownOutcome {
			op.Return = openEnd
		}
		c.history = append(c.history, op)
		// Usually the client repeats a lost write; sometimes it goes on without a repeat.
		if out.kind != runstore.ErrUnknownOutcome || c.random.IntN(4) == 0 {
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
		in, out := op.Input.(opInput), op.Output.(opOutput)
		switch {
		case out.kind != nil:
		case in.kind == opAcquire && out.token > 1:
			taken[lease{in.run, out.token - 1}] = true
		case in.kind == opRelease:
			ended[lease{in.run, in.token}] = true
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
func (c *client) ask(ctx context.Context, in opInput) (out opOutput, err error) {
	fence := runstore.Lease{Run: in.run, Owner: owner, Token: in.token, Grant: in.grant}.Fence()
	switch in.kind {
	case opAcquire, opPreempt:
		req := acquire(in.run, owner, c.ttl)
		req.Grant = in.grant
		if in.kind == opPreempt {
			req.Preempt = "history"
		}
		var lease runstore.Granted
		if lease, err = c.store.AcquireLease(ctx, req); err == nil {
			out.token, in.token = lease.Token, lease.Token
			out.at, out.expires = lease.Committed.Time.UnixNano(), lease.ExpiresAt.UnixNano()
			c.leases[in.run] = in
		}
	case opRenew:
		var lease runstore.Renewed
		lease, err = c.store.RenewLease(ctx, runstore.RenewRequest{Fence: fence, TTL: c.ttl})
		out.token, out.expires = lease.Token, lease.ExpiresAt.UnixNano()
	case opRelease:
		_, err = c.store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: fence})
	case opCommit:
		out, err = c.commit(ctx, in, fence)
	default:
		out, err = c.read(ctx, in)
	}
	return classify(out, err)
}

func (c *client) commit(ctx context.Context, in opInput, fence runstore.Fence) (out opOutput, err error) {
	var guards []runstore.Guard
	if in.token != 0 {
		guards = append(guards, fence)
	}
	key := modelKeys[in.key]
	if in.at >= 0 {
		guards = append(guards, runstore.AtVersion(key, in.at))
	}
	b := runstore.NewBatch(in.run, guards[0], guards[1:]...)
	b.ID = runstore.BatchID(in.batch)
	b.Append("event", []byte(in.batch))
	b.Put(key, []byte(in.batch))
	done, err := c.store.Commit(ctx, b)
	if err == nil {
		out.seq, out.version = done.FirstSeq, done.Versions[0]
		c.known[in.key] = out.version
	}
	var conflict *runstore.ConflictError
	if errors.As(err, &conflict) {
		out.version = conflict.Current
		c.known[in.key] = out.version
	}
	return out, err
}

func (c *client) read(ctx context.Context, in opInput) (out opOutput, err error) {
	switch in.kind {
	case opHead:
		var run runstore.Run
		run, err = c.store.GetRun(ctx, in.run)
		out.token, out.holder, out.seq, out.expires = run.Token, run.Holder.Token, run.LastSeq, run.ExpiresAt.UnixNano()
	case opJournal:
		var events []runstore.Event
		events, err = c.store.ReadJournal(ctx, in.run, 1, runstore.MaxPage)
		for i, event := range events {
			if event.Seq != runstore.Seq(i+1) {
				return out, fmt.Errorf("event %d has seq %d", i+1, event.Seq)
			}
			out.found += string(event.Data) + ";"
		}
	default:
		var records []runstore.Record
		records, err = c.store.ReadRecords(ctx, in.run, runstore.RecordQuery{Keys: modelKeys[:]})
		for _, r := range records {
			out.found += recordWords(r.Key, r.Version, string(r.Value))
			c.known[slices.Index(modelKeys[:], r.Key)] = r.Version
		}
	}
	return out, err
}

// classify translates an error into an output of the model.
func classify(out opOutput, err error) (opOutput, error) {
	if err == nil {
		return out, nil
	}
	out.kind = runstore.KindOf(err)
	var held *runstore.LeaseHeldError
	var fenced *runstore.FencedError
	switch {
	case errors.As(err, &held):
		out.holder = held.Holder.Token
	case errors.As(err, &fenced):
		out.current = fenced.Current
	}
	switch out.kind {
	case runstore.ErrLeaseHeld, runstore.ErrFenced, runstore.ErrConflict, runstore.ErrUnavailable, runstore.ErrUnknownOutcome:
		return out, nil
	}
	return out, err
}
