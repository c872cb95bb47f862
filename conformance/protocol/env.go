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

// patience is how long a case waits for what must happen: 5 min, which no working server needs, however
// slow its machine is. A case that waits longer fails instead of blocking the suite.
const patience = 5 * time.Minute

// Env is what a case works with: a server, and a process of its own.
type Env struct {
	*Server
	*Process
	id      string
	leftOut []string // what Count has left out; for the case's own goroutine
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

// Name returns a name that is the case's own.
func (e *Env) Name(name string) string { return name + "-" + e.id }

// Rounds returns how often a case repeats what depends on luck: n times, or ten times n in a full
// run. On a costly engine a quick run leaves three quarters out, and says so.
func (e *Env) Rounds(n int) int {
	if effort.Full() {
		return 10 * n
	}
	return e.Count(n, "rounds")
}

// Count returns n, or a quarter of n in a quick run on a costly engine, which the report then shows.
func (e *Env) Count(n int, what string) int {
	few := max(n/4, 1)
	if !e.target.Costly || effort.Full() || few == n {
		return n
	}
	e.leftOut = append(e.leftOut, fmt.Sprintf("%d of %d %s", few, n, what))
	return few
}

// request returns the request that begins the case's run of that invocation.
func (e *Env) request(invocation string) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{
		AppName: e.Name("app"), UserId: "ana", SessionId: "s", InvocationId: invocation,
		LeaseOwner: "host:1", LeaseTtlMs: 60_000, Scopes: []string{"pay", "read"},
	}
}

// Begin begins the run of an invocation, or takes it over, by a process.
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

// run returns a run as it stands.
func (p *Process) run(t T, id string) *tapepb.RunState {
	t.Helper()
	r, _ := p.Client.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: id})
	return r
}

// effect returns an effect as it stands.
func (p *Process) effect(t T, run, key string) *tapepb.EffectRecord {
	t.Helper()
	r, _ := p.Client.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: run, IdempotencyKey: key})
	if !r.GetFound() {
		t.Fatalf("run %s has no effect %s", run, key)
	}
	return r.GetEffect()
}

// obligation returns an obligation as it stands.
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

// journal returns the entries of a run from a seq to its last one.
func (p *Process) journal(t T, id string, from int64) []*tapepb.JournalEntry {
	t.Helper()
	last := p.run(t, id).GetSeqCursor()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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

// payload returns the members of an entry's payload.
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

// countMembers returns the number of members of a JSON object; -1 for any other text.
func countMembers(text string) int {
	var o map[string]any
	if json.Unmarshal([]byte(text), &o) != nil {
		return -1
	}
	return len(o)
}

// expect reports an error unless ok.
func expect(t T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
}

// require ends the case unless ok.
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

// until calls done until it returns true, with pauses between calls that grow from 1 ms to 200 ms: on a costly engine
// the calls would else take the CPU from what they wait for.
func until(t T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for pause := time.Millisecond; !done(); pause = min(2*pause, 200*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			t.Fatalf("after %v still not: %s", patience, what)
		}
	}
}

// maxTogether bounds the calls that a case has in flight. A server may refuse a call that has waited
// too long for its share of memory: the server of this module has room for 24 calls on a connection.
const maxTogether = 16

// together calls f n times, with the numbers from 0, maxTogether at the same time, and waits for all.
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
