package protocol

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// waitTimeout is how long a case waits for an event that must happen: 5 minutes, more than a working
// server needs on a slow machine. A case that waits longer fails instead of blocking the suite.
const waitTimeout = 5 * time.Minute

// Env is the environment of a case: a server, and a process of its own.
type Env struct {
	*Server
	*Process
	id      string
	leftOut []string // names of what Count reduced; used by the case's own goroutine only
}

func newEnv(t T, s *Server) *Env {
	t.Helper()
	own := *s
	own.called = &methods{names: map[string]bool{}}
	return &Env{Server: &own, Process: own.process(t, s.target.Address), id: unique()}
}

// NewProcess returns another process.
func (e *Env) NewProcess(t T) *Process {
	t.Helper()
	return e.process(t, e.target.Address)
}

// Name returns a name that is unique to the case.
func (e *Env) Name(name string) string { return name + "-" + e.id }

// Rounds returns how often a case repeats a step whose outcome depends on timing: n times, or 10n
// times in a full run. On a costly engine it returns a quarter of n, or n in a full run, and the report
// says so.
func (e *Env) Rounds(n int) int { return e.rounds(n, 10*n) }

// RoundsSquared is Rounds for a case whose cost grows with the square of the rounds: 3n in a full
// run, which costs nine times as much.
func (e *Env) RoundsSquared(n int) int { return e.rounds(n, 3*n) }

func (e *Env) rounds(n, full int) int {
	switch {
	case !effort.Full():
		return e.Count(n, "rounds")
	case e.target.Costly:
		e.leave(n, full, "rounds")
		return n
	default:
		return full
	}
}

// Count returns n. In a quick run on a costly engine it returns a quarter of n, and the report
// shows the reduction of what.
func (e *Env) Count(n int, what string) int {
	few := max(n/4, 1)
	if !e.target.Costly || effort.Full() || few == n {
		return n
	}
	e.leave(few, n, what)
	return few
}

func (e *Env) leave(few, n int, what string) {
	e.leftOut = append(e.leftOut, fmt.Sprintf("%d of %d %s", few, n, what))
}

// request returns a BeginRun request for an invocation of the case.
func (e *Env) request(invocation string) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{
		AppName: e.Name("app"), UserId: "ana", SessionId: "s", InvocationId: invocation,
		LeaseOwner: "host:1", LeaseTtlMs: 600_000, Scopes: []string{"pay", "read"},
	}
}

// Begin has process p begin or take over the run of an invocation.
func (e *Env) Begin(t T, p *Process, invocation string) *tapepb.BeginRunResponse {
	t.Helper()
	r, _ := p.Client.BeginRun(t.Context(), e.request(invocation))
	return r
}

// begin begins the case's run, and returns its id.
func (e *Env) begin(t T) string {
	t.Helper()
	return e.Begin(t, e.Process, "i").GetRunId()
}

// run returns the current state of a run.
func (p *Process) run(t T, id string) *tapepb.RunState {
	t.Helper()
	r, _ := p.Client.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: id})
	return r
}

// effect returns the current state of an effect.
func (p *Process) effect(t T, run, key string) *tapepb.EffectRecord {
	t.Helper()
	r, _ := p.Client.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: run, IdempotencyKey: key})
	if !r.GetFound() {
		t.Fatalf("run %s has no effect %s", run, key)
	}
	return r.GetEffect()
}

// obligation returns the current state of an obligation.
func (p *Process) obligation(t T, run string, seq int64) *tapepb.ObligationRecord {
	t.Helper()
	r, _ := p.Client.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: run})
	for _, o := range r.GetObligations() {
		if o.GetSeq() == seq {
			return o
		}
	}
	t.Fatalf("run %s has no obligation %d", run, seq)
	return nil
}

// journal returns the entries of a run from the given seq to the last entry.
func (p *Process) journal(t T, id string, from int64) []*tapepb.JournalEntry {
	t.Helper()
	last := p.run(t, id).GetSeqCursor()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	stream, err := p.Try.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id, FromSeq: from})
	if err != nil {
		t.Fatalf("SubscribeRun: %v", err)
	}
	var entries []*tapepb.JournalEntry
	for len(entries) == 0 || entries[len(entries)-1].GetSeq() < last {
		entry, err := stream.Recv()
		if err != nil {
			t.Fatalf("the journal of run %s has %d entries and then %v; seq_cursor is %d", id, len(entries), err, last)
		}
		entries = append(entries, entry)
	}
	return entries
}

// payload returns the members of an entry's JSON payload.
func payload(t T, e *tapepb.JournalEntry) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(e.GetPayloadJson()), &p); err != nil {
		t.Fatalf("entry %d has the payload %q: %v", e.GetSeq(), e.GetPayloadJson(), err)
	}
	return p
}

// object returns the members of a JSON object.
func object(t T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%q is not an object: %v", text, err)
	}
	return o
}

// countMembers returns the number of members of a JSON object, or -1 for any other text.
func countMembers(text string) int {
	var o map[string]any
	if json.Unmarshal([]byte(text), &o) != nil {
		return -1
	}
	return len(o)
}

// expect reports an error unless ok is true.
func expect(t T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
}

// require ends the case unless ok is true.
func require(t T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// expectStatus checks an error's code and that its message contains text.
func expectStatus(t T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, text)
	}
}

// until polls done until it returns true. The pause between calls grows from 1 ms to 200 ms,
// because on a costly engine tight polling would take the CPU from the awaited work.
func until(t T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for pause := time.Millisecond; !done(); pause = min(2*pause, 200*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			t.Fatalf("after %v still not: %s", waitTimeout, what)
		}
	}
}

// maxTogether bounds the calls that a case has in flight: 16. A server may refuse a call that has
// waited too long for its share of memory; this module's server has room for 24 calls on a
// connection.
const maxTogether = 16

// together calls f(0) to f(n-1), at most maxTogether at a time, and waits for all of them.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	slots := make(chan struct{}, maxTogether)
	for i := range n {
		wg.Go(func() {
			<-start
			slots <- struct{}{}
			defer func() { <-slots }()
			f(i)
		})
	}
	close(start)
	wg.Wait()
}
