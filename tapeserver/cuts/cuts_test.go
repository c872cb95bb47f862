package cuts_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// result is what an execution leaves, and what its last caller is answered.
type result struct{ content, answer string }

func (r result) String() string { return "answer: " + r.answer + "\n" + r.content }

// executions are those of a case without an interruption, by the order of the requests: "" is the
// preparation, "R" the request, "RR" the request and its repeat, "V" the rival.
type executions struct {
	c    entry
	open func(t *testing.T, c entry) *env

	mu    sync.Mutex
	known map[string][]result
	calls []string
}

func newExecutions(c entry, open func(*testing.T, entry) *env) *executions {
	return &executions{c: c, open: open, known: map[string][]result{}}
}

// shared are the executions on the memory store, by the name of the case. Each is made once for all
// tests: its outcome is always the same.
var shared sync.Map

// executionsOf returns the executions of a case on the memory store.
func executionsOf(c entry) *executions {
	x, _ := shared.LoadOrStore(c.name(), newExecutions(c, newEnv))
	return x.(*executions)
}

// storeCalls returns the store calls of the request.
func (x *executions) storeCalls(t *testing.T) []string {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.calls == nil {
		x.calls = x.c.calls(t, false)
	}
	if len(x.calls) == 0 {
		t.Fatal("the request makes no call of the store")
	}
	return x.calls
}

// steps returns the result of each request of an order.
func (x *executions) steps(t *testing.T, order string) []result {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.known[order] == nil {
		e := x.open(t, x.c)
		defer e.close()
		all := []result{{content: e.content()}}
		for _, step := range order {
			all = append(all, x.c.make(e, step))
		}
		x.known[order] = all
	}
	return x.known[order]
}

// make makes the request of a step and returns its result.
func (c entry) make(e *env, step rune) result {
	e.t.Helper()
	var m proto.Message
	var err error
	if step == 'V' {
		m, err = c.act(e)
	} else {
		m, err = c.do(e, e.first(e.clean))
	}
	return result{e.content(), e.answer(m, err)}
}

// after returns the result of an order.
func (x *executions) after(t *testing.T, order string) result {
	t.Helper()
	return x.steps(t, order)[len(order)]
}

// calls returns the store calls of the request.
func (c entry) calls(t *testing.T, hideMulti bool) []string {
	t.Helper()
	e := newEnv(t, c)
	defer e.close()
	e.hideMulti = hideMulti
	count := newCutter(e.touched, 0, 0)
	_, _ = c.do(e, e.first(tapepb.NewTapeClient(e.serve(count))))                                          // a refusal is a case, too
	return slices.CompactFunc(count.trace(), func(a, b string) bool { return a == opFeed && b == opFeed }) // its client ends a feed at any page
}

// eachCall runs a test for each harm at each store call of each case. What follows a call is what comes
// before the next one, so harm after a call is done at the last call only.
func eachCall(t *testing.T, harms []harm, test func(t *testing.T, x *executions, calls []string, n int, h harm)) {
	for _, c := range entries() {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			x := executionsOf(c)
			calls := x.storeCalls(t)
			for n := 1; n <= len(calls); n++ {
				for _, h := range harms {
					switch {
					case (h == killedAfter || h == frozenAfter) && n < len(calls):
					case (h == lostRequest || h == silenced || h == lostLate || h == unheard) && isRead(calls[n-1]): // as lostReply
					default:
						t.Run(fmt.Sprintf("%v call %d, %s", h, n, calls[n-1]), func(t *testing.T) { test(t, x, calls, n, h) })
					}
				}
			}
		})
	}
}

// A request and its repeat leave what one does, unless the case says why not.
func TestRepeats(t *testing.T) {
	t.Parallel()
	for _, c := range entries() {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			x := executionsOf(c)
			none, once, twice := x.after(t, ""), x.after(t, "R"), x.after(t, "RR")
			if none.content == once.content && !strings.Contains(c.what, "another run's effect") {
				t.Errorf("the request changes nothing:\n%v", once)
			}
			if same := once.answer == twice.answer; c.again == "" && same != (c.answers == "") {
				t.Errorf("a repeat is answered the same: %t, and the case says %q\n--- once\n%v--- twice\n%v", same, c.answers, once, twice)
			}
			if same := once.content == twice.content; same != (c.again == "") {
				t.Errorf("a repeat leaves the same: %t, and the case says %q\n--- once\n%v--- twice\n%v", same, c.again, once, twice)
			}
		})
	}
}

// A server is killed at a store call. Then the client repeats its request on another server, or
// another caller does its work.
func TestKilled(t *testing.T) {
	t.Parallel()
	eachCall(t, []harm{killedBefore, killedAfter}, func(t *testing.T, x *executions, calls []string, n int, h harm) {
		for _, next := range "RV" {
			e := x.open(t, x.c)
			defer e.close()
			cut := newCutter(e.touched, h, n)
			m, err := x.c.do(e, e.first(tapepb.NewTapeClient(e.serve(cut))))
			if got := e.answer(m, err); got != "Unavailable " {
				t.Errorf("the client of the killed server is answered %s, want a broken connection", got)
			}
			x.wantContinued(t, e, n, h, len(calls), next)
		}
	})
}

// wantContinued checks what an interruption has left, and what follows when the next request is made
// on another server: the results of an order of whole requests.
func (x *executions) wantContinued(t *testing.T, e *env, n int, h harm, calls int, next rune) {
	t.Helper()
	left := e.content()
	got := x.c.make(e, next)
	possible := []string{"", "R"}
	switch {
	case h == killedBefore && n == 1:
		possible = []string{""}
	case (h == killedAfter || h == silenced) && n == calls: // the last call is a write, and was applied
		possible = []string{"R"}
	}
	whole := false
	for _, before := range possible {
		if x.after(t, before).content != left && !x.c.steps {
			continue
		}
		whole = true
		if want := x.after(t, before+string(next)); got == want {
			return
		}
	}
	if !whole {
		t.Errorf("half done:\n%s--- of\n%s--- and\n%s", left, x.after(t, "").content, x.after(t, "R").content)
		return
	}
	t.Errorf("the interruption left\n%s--- and the next request (%c)\n%v", left, next, got)
	for _, before := range possible {
		t.Logf("--- %q gives\n%v", before+string(next), x.after(t, before+string(next)))
	}
}

// A request or a reply of one store call is lost. A write is repeated by the server and leaves no
// trace of the loss. A read fails, and so does a write when the store stays away; then the client
// repeats its request, or another caller does its work.
func TestLost(t *testing.T) {
	t.Parallel()
	eachCall(t, []harm{lostRequest, lostReply, silenced}, func(t *testing.T, x *executions, calls []string, n int, h harm) {
		for _, next := range "RV" {
			e := x.open(t, x.c)
			defer e.close()
			cut := newCutter(e.touched, h, n)
			m, err := x.c.do(e, e.first(tapepb.NewTapeClient(e.serve(cut))))
			got := result{e.content(), e.answer(m, err)}
			if !isRead(calls[n-1]) && h != silenced {
				if want := x.after(t, "R"); got != want {
					t.Fatalf("got\n%v\nwant\n%v", got, want)
				}
				return
			}
			switch code, _, _ := strings.Cut(got.answer, " "); {
			case got == x.after(t, "R"): // what was applied is answered, if not all that could have been
				return
			case code == "Unknown":
			case got.answer == "PermissionDenied EFFECT_EXISTS" && isRead(calls[n-1]): // a client that acts after a passing fault must not
			case code != "Unavailable":
				t.Errorf("the client is answered %s, want Unavailable or Unknown", got.answer)
			case got.content != x.after(t, "").content && !x.c.steps && !x.c.heartbeat:
				t.Errorf("the client is answered %s, which says that nothing is stored, and the store has\n%s", got.answer, got.content)
			}
			x.wantContinued(t, e, n, h, len(calls), next)
		}
	})
}

// A store call is held while another caller works on the run, and then goes on, or turns out to be
// lost and is repeated by the server.
func TestFrozen(t *testing.T) {
	t.Parallel()
	eachCall(t, []harm{frozenBefore, frozenAfter, lostLate, unheard}, func(t *testing.T, x *executions, calls []string, n int, h harm) {
		e := x.open(t, x.c)
		defer e.close()
		cut := newCutter(e.touched, h, n)
		c := tapepb.NewTapeClient(e.serve(cut))
		answered := make(chan string, 1)
		go func() { answered <- e.answer(x.c.do(e, e.first(c))) }()
		select {
		case <-cut.reached:
		case got := <-answered:
			t.Fatalf("the request is answered %s before it makes the call", got)
		}
		rival := e.answer(x.c.act(e))
		close(cut.resume)
		first := <-answered
		left := e.content()
		orders := []string{"RV", "VR"}
		for _, order := range orders {
			want := x.steps(t, order)
			wantFirst := []string{want[1+strings.IndexByte(order, 'R')].answer}
			wantRival := want[1+strings.IndexByte(order, 'V')].answer
			if x.c.steps { // the rival may have finished what the first began
				wantFirst = append(wantFirst, x.after(t, "RR").answer)
			}
			if x.c.comparable(left) == x.c.comparable(want[2].content) && slices.Contains(wantFirst, first) && rival == wantRival {
				return
			}
		}
		t.Errorf("no order of the two requests explains\nfirst: %s\nrival: %s\n%s", first, rival, left)
		for _, order := range orders {
			for i, r := range x.steps(t, order)[1:] {
				t.Logf("%s, after %d: %v", order, i+1, r)
			}
		}
	})
}

var versions = regexp.MustCompile(` v[0-9]+ `)

// comparable returns the content of the store as rivals are compared by it.
func (c entry) comparable(content string) string {
	if c.recreated {
		return versions.ReplaceAllString(content, " ")
	}
	return content
}

// Every RPC that the server serves is in the table.
func TestEveryRPCHasACase(t *testing.T) {
	t.Parallel()
	e := newEnv(t, entry{})
	defer e.close()
	conn := e.serve(newCutter(e.touched, 0, 0))
	var known []string
	for _, c := range entries() {
		known = append(known, c.rpc)
	}
	for _, r := range reads {
		known = append(known, r.rpc)
	}
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		if served := isServed(t, conn, m); served != slices.Contains(known, string(m.Name())) {
			t.Errorf("%s: served %t, has a case %t", m.Name(), served, !served)
		}
		writes := m.Input().Fields().ByName("fence") != nil
		if writes && slices.ContainsFunc(reads, func(r entry) bool { return r.rpc == string(m.Name()) }) {
			t.Errorf("%s takes a fence, so it writes, and is in the table of reads", m.Name())
		}
	}
}
