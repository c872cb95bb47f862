package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// kind is the kind of an operation.
type kind string

const (
	acquire kind = "acquire"
	renew   kind = "renew"
	release kind = "release"
	commit  kind = "commit"
	head    kind = "read head"
	trusted kind = "trusted" // the runtime reports that a lease may be relied on
	ended   kind = "ended"   // the runtime reports how a holder's lease ended
)

// input is an operation without its result.
type input struct {
	kind     kind
	run      runstore.RunID
	token    runstore.Token   // of the fence presented, or of the lease that the runtime reports on
	grant    runstore.GrantID // the grant to make, or that of the fence presented
	ttl      time.Duration
	preempts bool
	atToken  runstore.Token // guarded; -1 means no guard
	guards   bool           // the request has guards that the model does not know
	id       runstore.BatchID
	events   int
	releases bool

	call, ret int64 // when the operation was called and returned, in nanoseconds
}

// output is the result of an operation.
type output struct {
	err     error          // its kind; nil means success
	token   runstore.Token // granted, found by a read, or handed off to
	holder  runstore.Token // the holder that a read or a refusal names
	expires int64
	at      int64        // when the grant was made
	seq     runstore.Seq // of the first event appended, or the last one found
	last    runstore.Seq
	former  runstore.GrantEnd
	replay  bool
	over    bool // the grant was made before, and has ended
	end     end
}

// end is how the runtime reports the end of a lease to the holder.
type end string

const (
	endReleased  end = "released"
	endAbandoned end = "abandoned" // by Held.Abandon, without a loss
	endHandedOff end = "handed off"
	endFenced    end = "fenced"
	endUnknown   end = "unknown" // by expiry, or with a failed release: the model allows anything
)

// String describes the operation for the message of a failed test.
func (in input) String() string {
	s := fmt.Sprintf("%v under token %v, grant %.6s, at %v", in.kind, in.token, in.grant, time.Unix(0, in.call).UTC().Format(time.StampMicro))
	for what, is := range map[string]bool{
		"preempting": in.preempts, "guarded": in.guards, "with events": in.events > 0, "releasing": in.releases,
		fmt.Sprint("at token ", in.atToken): in.atToken > 0,
	} {
		if is {
			s += ", " + what
		}
	}
	return s
}

// String describes the result.
func (out output) String() (s string) {
	if out.err != nil {
		s = " " + out.err.Error()
	}
	if out.expires != 0 {
		s += time.Unix(0, out.expires).UTC().Format(" expires " + time.StampMicro)
	}
	return fmt.Sprintf("%s token %v, holder %v, seq %v %v, former %v, replay %t %t %s", s, out.token, out.holder, out.seq, out.last, out.former, out.replay, out.over, out.end)
}

// Log is a history. It is safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	clock int64 // orders calls and returns
	ops   []porcupine.Operation
}

// record adds an operation that f performs.
func (l *Log) record(client int, in input, f func() output) {
	in.call = time.Now().UnixNano()
	call := l.tick()
	out := f()
	in.ret = time.Now().UnixNano()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	l.ops = append(l.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: l.clock})
}

func (l *Log) tick() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	return l.clock
}

// Len returns the number of operations.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ops)
}

// Trusted asks a holder whether it trusts its lease, and records that it does. It returns the answer.
func (l *Log) Trusted(client int, held *lease.Held) (ok bool) {
	fence := held.Fence()
	at := time.Now().UnixNano()
	call := l.tick()
	if _, ok = held.Trusted(); !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	l.ops = append(l.ops, porcupine.Operation{
		ClientId: client, Call: call, Output: output{}, Return: l.clock,
		Input: input{kind: trusted, run: fence.Run(), token: fence.Token(), grant: fence.Grant(), call: at, ret: at},
	})
	return true
}

// Ended records how a holder's lease ended: err is the result of Keeper.Hold. abandoned is true if the
// work did not run or called Held.Abandon.
func (l *Log) Ended(client int, granted lease.Granted, err error, abandoned bool) {
	out := output{end: endReleased}
	var handed *lease.HandedOffError
	var lost *lease.LostError
	var failed *lease.ReleaseError
	switch {
	case errors.As(err, &handed):
		out.end, out.token = endHandedOff, handed.Next
	case errors.As(err, &lost) && errors.Is(lost, runstore.ErrFenced):
		out.end = endFenced
	case errors.As(err, &lost), errors.As(err, &failed):
		out.end = endUnknown
	case abandoned:
		out.end = endAbandoned
	}
	in := input{kind: ended, run: granted.Lease.Run, token: granted.Lease.Token, grant: granted.Lease.Grant}
	l.record(client, in, func() output { return out })
}

// Check checks the history, and fails the test with the smallest run of it that no lease explains.
func (l *Log) Check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for run, ops := range byRun(l.ops) {
		if !porcupine.CheckOperations(model, ops) {
			t.Errorf("the history of run %q is not linearizable:\n%s", string(run), describe(ops))
		}
	}
}

// describe returns the shortest beginning of a history that is not linearizable, its last operations
// only.
func describe(ops []porcupine.Operation) string {
	const shown = 40
	least, most := 0, len(ops) // ops[:most] is illegal
	for least+1 < most {
		if middle := (least + most) / 2; porcupine.CheckOperations(model, ops[:middle]) {
			least = middle
		} else {
			most = middle
		}
	}
	text := ""
	for _, op := range ops[max(0, most-shown):most] {
		text += fmt.Sprintf("client %d, %d to %d: %s\n", op.ClientId, op.Call, op.Return, model.DescribeOperation(op.Input, op.Output))
	}
	return text
}

// Through returns a store whose requests for leases, commits and reads of heads are recorded for a
// client.
func (l *Log) Through(client int, store runstore.RunStore) runstore.RunStore {
	return &recorder{RunStore: store, log: l, client: client}
}

type recorder struct {
	runstore.RunStore
	log    *Log
	client int
}

// Unwrap gives access to the store's capabilities.
func (r *recorder) Unwrap() runstore.RunStore { return r.RunStore }

// failure returns the output of a request that failed.
func failure(err error) output {
	out := output{err: runstore.KindOf(err)}
	if out.err == nil {
		out.err = err
	}
	var held *runstore.LeaseHeldError
	var fenced *runstore.FencedError
	switch {
	case errors.As(err, &held):
		out.holder = held.Holder.Token
	case errors.As(err, &fenced):
		out.token = fenced.Current
	}
	return out
}

// guarded sets the guards of a request.
func (in *input) guarded(g runstore.Guards) {
	in.atToken = -1
	if g.Token != nil {
		in.atToken = *g.Token
	}
	if !g.Fence.IsZero() {
		in.token = g.Fence.Token()
	}
	in.guards = len(g.Versions) > 0 || g.NextSeq > 0 || len(g.Statuses) > 0
}

// AcquireLease implements runstore.RunStore.
func (r *recorder) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	in := input{kind: acquire, run: req.Run, grant: req.Grant, ttl: req.TTL, preempts: req.Preempt != "", events: len(req.Writes.Events)}
	in.guarded(runstore.GuardsOf(req.Guards...))
	r.log.record(r.client, in, func() output {
		if granted, err = r.RunStore.AcquireLease(ctx, req); err != nil {
			return failure(err)
		}
		return output{
			token: granted.Token, expires: granted.ExpiresAt.UnixNano(), at: granted.Committed.Time.UnixNano(), former: granted.Former,
			seq: granted.Committed.FirstSeq, replay: granted.Committed.Replayed, over: granted.Ended,
		}
	})
	return granted, err
}

// RenewLease implements runstore.RunStore.
func (r *recorder) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	in := input{kind: renew, run: req.Fence.Run(), token: req.Fence.Token(), grant: req.Fence.Grant(), ttl: req.TTL, atToken: -1, id: req.ID, events: len(req.Writes.Events)}
	r.log.record(r.client, in, func() output {
		if renewed, err = r.RunStore.RenewLease(ctx, req); err != nil {
			return failure(err)
		}
		return output{expires: renewed.ExpiresAt.UnixNano(), seq: renewed.Committed.FirstSeq, replay: renewed.Committed.Replayed}
	})
	return renewed, err
}

// ReleaseLease implements runstore.RunStore.
func (r *recorder) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	in := input{kind: release, run: req.Fence.Run(), token: req.Fence.Token(), grant: req.Fence.Grant(), events: len(req.Writes.Events)}
	in.guarded(runstore.GuardsOf(append(req.Guards, req.Fence)...))
	r.log.record(r.client, in, func() output {
		if done, err = r.RunStore.ReleaseLease(ctx, req); err != nil {
			return failure(err)
		}
		return output{seq: done.FirstSeq, replay: done.Replayed}
	})
	return done, err
}

// Commit implements runstore.RunStore.
func (r *recorder) Commit(ctx context.Context, b runstore.Batch) (done runstore.Committed, err error) {
	in := input{kind: commit, run: b.Run(), id: b.ID, events: len(b.Events), releases: b.Release}
	guards := b.Guards()
	in.guarded(guards)
	in.grant = guards.Fence.Grant()
	r.log.record(r.client, in, func() output {
		if done, err = r.RunStore.Commit(ctx, b); err != nil {
			return failure(err)
		}
		return output{seq: done.FirstSeq, replay: done.Replayed}
	})
	return done, err
}

// GetRun implements runstore.RunStore.
func (r *recorder) GetRun(ctx context.Context, id runstore.RunID) (run runstore.Run, err error) {
	r.log.record(r.client, input{kind: head, run: id}, func() output {
		if run, err = r.RunStore.GetRun(ctx, id); err != nil {
			return failure(err)
		}
		return output{token: run.Token, holder: run.Holder.Token, last: run.LastSeq, former: run.Holder.Former}
	})
	return run, err
}
