package tape_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// sessionWrites are the writes to a session with one event, "old", and the state {"a":1}.
var sessionWrites = []struct {
	name string
	do   func(context.Context, *tape.Tape, runstore.Fence) error
	want string
}{
	{"CreateSession", func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.CreateSession(ctx, session, `{"new":1}`, f)
		return err
	}, `old {"new":1}`},
	{"AppendEvent", func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.AppendEvent(ctx, session, tape.SessionEvent{ID: "new"}, `{"b":2}`, f)
		return err
	}, `old new {"a":1,"b":2}`},
	{"DeleteSession", func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.DeleteSession(ctx, session, f)
		return err
	}, "none"},
}

// A store commits to two runs at once, or, behind the interface alone, writes steps ahead.
var twoRunStores = map[string]func(h *memory.Handle) runstore.RunStore{
	"at once":       func(h *memory.Handle) runstore.RunStore { return h },
	"written ahead": func(h *memory.Handle) runstore.RunStore { return struct{ runstore.RunStore }{h} },
}

// sessionCase is a write to a session on either kind of store.
type sessionCase struct {
	// fresh returns a store of its own.
	fresh func() runstore.RunStore
	do    func(context.Context, *tape.Tape, runstore.Fence) error
	// want is the session after the write; see stateOf.
	want string
}

func eachSessionWrite(t *testing.T, test func(t *testing.T, c sessionCase)) {
	for kind, wrap := range twoRunStores {
		for _, w := range sessionWrites {
			t.Run(kind+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				fresh := func() runstore.RunStore { return wrap(memory.New(nil).Open()) }
				test(t, sessionCase{fresh, w.do, w.want})
			})
		}
	}
}

func prepareSession(t *testing.T, tp *tape.Tape) tape.BeginRunResult {
	t.Helper()
	appendEvent(t, tp, session, tape.SessionEvent{ID: "old"}, `{"a":1}`)
	return begin(t, tp, "i")
}

// stateOf returns all that can be seen of the session.
func stateOf(t *testing.T, s runstore.RunStore) string {
	t.Helper()
	tp := tape.New(s, nil)
	got, found, err := tp.GetSession(t.Context(), session, 0)
	if err != nil {
		t.Fatal(err)
	}
	all, err := tp.ListSessions(t.Context(), session.App, session.User)
	if err != nil {
		t.Fatal(err)
	}
	if found != (len(all) == 1) || found && got.State != all[0].State {
		t.Errorf("GetSession found %t, %s, and ListSessions %+v", found, got.State, all)
	}
	if !found {
		return "none"
	}
	return ids(got.Events) + " " + got.State
}

const stateBefore = `old {"a":1}`

func TestSessionWriteUnderTheCurrentGrant(t *testing.T) {
	t.Parallel()
	eachSessionWrite(t, func(t *testing.T, c sessionCase) {
		s := c.fresh()
		tp := tape.New(s, nil)
		lead := prepareSession(t, tp)
		before := historyOf(t, s, lead.ID)
		if err := c.do(t.Context(), tp, lead.Lease.Fence()); err != nil {
			t.Fatal(err)
		}
		if got, want := stateOf(t, s), c.want; got != want {
			t.Errorf("the session is %s, want %s", got, want)
		}
		after := historyOf(t, s, lead.ID)
		if !reflect.DeepEqual(before.events, after.events) || !reflect.DeepEqual(before.records, after.records) {
			t.Errorf("the write changed the run of its fence from %+v to %+v", before, after)
		}
		// It is applied once more, under the same fence, and without one.
		for _, f := range []runstore.Fence{lead.Lease.Fence(), {}} {
			if err := c.do(t.Context(), tp, f); err != nil {
				t.Errorf("again: %v", err)
			}
		}
	})
}

func TestSessionWriteUnderAFenceThatIsNotCurrent(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]struct {
		end  func(t *testing.T, tp *tape.Tape, lead tape.BeginRunResult) runstore.Fence
		want error
	}{
		"taken over": {func(t *testing.T, tp *tape.Tape, lead tape.BeginRunResult) runstore.Fence {
			begin(t, tp, "i")
			return lead.Lease.Fence()
		}, runstore.ErrFenced},
		"ended": {func(t *testing.T, tp *tape.Tape, lead tape.BeginRunResult) runstore.Fence {
			if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: lead.ID, Status: tape.RunTerminal}); err != nil {
				t.Fatal(err)
			}
			return lead.Lease.Fence()
		}, runstore.ErrFenced},
		"no such run": {func(_ *testing.T, _ *tape.Tape, lead tape.BeginRunResult) runstore.Fence {
			lease := lead.Lease
			lease.Run = "none"
			return lease.Fence()
		}, tape.ErrNoSuchRun},
		"of the future": {func(_ *testing.T, _ *tape.Tape, lead tape.BeginRunResult) runstore.Fence {
			lease := lead.Lease
			lease.Token += 7
			return lease.Fence()
		}, runstore.ErrStoreBehind},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachSessionWrite(t, func(t *testing.T, c sessionCase) {
				s := c.fresh()
				tp := tape.New(s, nil)
				lead := prepareSession(t, tp)
				f := ended.end(t, tp, lead)
				if err := c.do(t.Context(), tp, f); !errors.Is(err, ended.want) {
					t.Errorf("%v, want %v", err, ended.want)
				}
				if got := stateOf(t, s); got != stateBefore {
					t.Errorf("the session is %s, want %s", got, stateBefore)
				}
				// Where there is no session, none is created.
				if _, err := tp.DeleteSession(t.Context(), session, runstore.Fence{}); err != nil {
					t.Fatal(err)
				}
				watched := hook(s, func(op string) error {
					if op == "create" {
						t.Error("a run was created for a write that is refused")
					}
					return nil
				}, nil)
				if err := c.do(t.Context(), tape.New(watched, nil), f); !errors.Is(err, ended.want) {
					t.Errorf("without a session: %v, want %v", err, ended.want)
				}
				if got := stateOf(t, s); got != "none" {
					t.Errorf("the session is %s, want none", got)
				}
			})
		})
	}
}

// A driver is paused before each of its store calls while its grant ends, and wakes up. Once the
// call that ended the grant has returned, it changes nothing any more.
func TestSessionWriteOfAPausedDriver(t *testing.T) {
	t.Parallel()
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachSessionWrite(t, func(t *testing.T, c sessionCase) {
				for at := 1; ; at++ {
					s := c.fresh()
					tp := tape.New(s, nil)
					lead := prepareSession(t, tp)
					then, n := "", 0
					paused := hook(s, func(string) error {
						if n++; n != at {
							return nil
						}
						err := end(t.Context(), s, lead)
						then = stateOf(t, s)
						return err
					}, nil)
					err := c.do(t.Context(), tape.New(paused, nil), lead.Lease.Fence())
					if n < at {
						if at < 3 {
							t.Errorf("the write makes %d calls", n)
						}
						return
					}
					got := stateOf(t, s)
					if got != then {
						// The events of a deleted session go later; it cannot be seen.
						t.Errorf("paused before call %d: the session was %s when the grant had ended, and is %s", at, then, got)
					}
					switch applied := got == c.want; {
					case err == nil && !applied:
						t.Errorf("paused before call %d: no error, and the session is %s", at, got)
					case err != nil && runstore.OutcomeOf(err) == runstore.NotApplied && applied:
						t.Errorf("paused before call %d: %v, and the session is %s", at, err, got)
					case err != nil && !fitsEnding(name, err):
						t.Errorf("paused before call %d: %v", at, err)
					}
					checkNoStep(t, s, lead.ID)
				}
			})
		})
	}
}

// A driver dies before each of its store calls. The next driver finds the write applied or not, and
// writes to the session itself.
func TestSessionWriteOfADriverThatDies(t *testing.T) {
	t.Parallel()
	eachSessionWrite(t, func(t *testing.T, c sessionCase) {
		for at := 1; ; at++ {
			s := c.fresh()
			tp := tape.New(s, nil)
			lead := prepareSession(t, tp)
			n := 0
			dying := hook(failing(s, at-1), func(string) error { n++; return nil }, nil)
			err := c.do(t.Context(), tape.New(dying, nil), lead.Lease.Fence())
			if n < at {
				return
			}
			next := begin(t, tp, "i")
			checkNoStep(t, s, lead.ID)
			got := stateOf(t, s)
			if got != stateBefore && got != c.want {
				t.Errorf("died before call %d: the session is %s", at, got)
			}
			if got == stateBefore && err == nil || got != stateBefore && runstore.OutcomeOf(err) == runstore.NotApplied {
				t.Errorf("died before call %d: the session is %s after %v", at, got, err)
			}
			if err := c.do(t.Context(), tp, next.Lease.Fence()); err != nil {
				t.Errorf("the next driver's write: %v", err)
			}
			want := c.want
			if got != stateBefore {
				want = strings.Replace(want, "new ", "new new ", 1) // it is another event
			}
			if got := stateOf(t, s); got != want {
				t.Errorf("died before call %d: after the next driver's write the session is %s, want %s", at, got, want)
			}
			// What a deletion left behind does not come back.
			if appendEvent(t, tp, session, tape.SessionEvent{ID: "last"}, ""); want == "none" {
				want = "{}"
			}
			if got := stateOf(t, s); !strings.Contains(got, "last") || want == "{}" && got != "last {}" {
				t.Errorf("died before call %d: after an append the session is %s", at, got)
			}
		}
	})
}

// A deletion under a fence ends before each of its store calls. Once the session cannot be seen, its
// events do not come back with the next write.
func TestSessionDeletedHalfway(t *testing.T) {
	t.Parallel()
	for kind, wrap := range twoRunStores {
		for name, c := range map[string]struct {
			next func(t *testing.T, tp *tape.Tape) error
			want string
		}{
			"AppendEvent": {func(t *testing.T, tp *tape.Tape) error {
				_, err := tp.AppendEvent(t.Context(), session, tape.SessionEvent{ID: "next"}, "", runstore.Fence{})
				return err
			}, "next {}"},
			"CreateSession": {func(t *testing.T, tp *tape.Tape) error {
				_, err := tp.CreateSession(t.Context(), session, "", runstore.Fence{})
				return err
			}, " {}"},
			"DeleteSession": {func(t *testing.T, tp *tape.Tape) error {
				deleted, err := tp.DeleteSession(t.Context(), session, runstore.Fence{})
				if deleted {
					err = errors.New("it was deleted before")
				}
				return err
			}, "none"},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				halfway := 0
				for at := 1; ; at++ {
					s := wrap(memory.New(nil).Open())
					tp := tape.New(s, nil)
					lead := prepareSession(t, tp)
					n := 0
					dying := hook(failing(s, at-1), func(string) error { n++; return nil }, nil)
					_, err := tape.New(dying, nil).DeleteSession(t.Context(), session, lead.Lease.Fence())
					if n < at {
						break
					}
					begin(t, tp, "i") // it ends a step that is under way
					if stateOf(t, s) != "none" {
						continue
					}
					if halfway++; !errors.Is(err, runstore.ErrUnknownOutcome) {
						t.Errorf("ended before call %d: %v, want an unknown outcome", at, err)
					}
					if err := c.next(t, tp); err != nil {
						t.Errorf("ended before call %d: %v", at, err)
					}
					if got := stateOf(t, s); got != c.want {
						t.Errorf("ended before call %d: the session is %q, want %q", at, got, c.want)
					}
				}
				if halfway == 0 {
					t.Error("no deletion ended halfway")
				}
			})
		}
	}
}

// The reply to each write of the step is lost in turn: it is applied once, and reported so.
func TestSessionWriteWithALostReply(t *testing.T) {
	t.Parallel()
	eachSessionWrite(t, func(t *testing.T, c sessionCase) {
		for at := 1; ; at++ {
			s := c.fresh()
			lead := prepareSession(t, tape.New(s, nil))
			n := 0
			losing := hook(s, nil, func(op string) error {
				if op != "commit" && op != "multi" {
					return nil
				}
				if n++; n == at {
					return errReplyLost
				}
				return nil
			})
			err := c.do(t.Context(), tape.New(losing, nil), lead.Lease.Fence())
			if got, want := stateOf(t, s), c.want; err != nil || got != want {
				t.Errorf("reply %d lost: %v, the session is %s, want %s", at, err, got, want)
			}
			checkNoStep(t, s, lead.ID)
			if n < at {
				return
			}
		}
	})
}

// The drivers of two runs write to one session, many times at once: every event counts.
func TestConcurrentAppendsUnderFences(t *testing.T) {
	t.Parallel()
	for kind, wrap := range twoRunStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			tp := tape.New(wrap(memory.New(nil).Open()), nil)
			var done []chan error
			var want []string
			for run := range 3 {
				f := begin(t, tp, fmt.Sprint(run)).Lease.Fence()
				for i := range 4 {
					id, end := fmt.Sprint(run, ".", i), make(chan error, 1)
					want, done = append(want, id), append(done, end)
					go func() {
						_, err := tp.AppendEvent(t.Context(), session, tape.SessionEvent{ID: id}, "", f)
						end <- err
					}()
				}
			}
			for _, end := range done {
				if err := <-end; err != nil {
					t.Error(err)
				}
			}
			got := strings.Fields(ids(getSession(t, tp, session, 0).Events))
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("events %v, want %v", got, want)
			}
		})
	}
}

// The largest state and the largest event fit into one write under a fence.
func TestLargestSessionWriteUnderAFence(t *testing.T) {
	t.Parallel()
	for kind, wrap := range twoRunStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			tp := tape.New(wrap(memory.New(nil).Open()), nil)
			f := begin(t, tp, "i").Lease.Fence()
			key := tape.SessionKey{App: strings.Repeat("a", tape.MaxSessionNames-1), Session: "s"}
			state := fmt.Sprintf(`{"k":%q}`, strings.Repeat("x", tape.MaxSessionState-len(`{"k":""}`)))
			if _, err := tp.CreateSession(t.Context(), key, state, f); err != nil {
				t.Fatal(err)
			}
			e := tape.SessionEvent{Author: strings.Repeat("a", tape.MaxSessionNames), Content: strings.Repeat("x", tape.MaxSessionEvent)}
			if _, err := tp.AppendEvent(t.Context(), key, e, "", f); err != nil {
				t.Fatal(err)
			}
			got := getSession(t, tp, key, 0)
			if len(got.State) != tape.MaxSessionState || len(got.Events) != 1 && !got.Truncated {
				t.Errorf("a state of %d bytes and %d events", len(got.State), len(got.Events))
			}
		})
	}
}

// A takeover finds a step under way, and the store fails behind each of its calls. A caller that was
// told that nothing was done lost nothing; the next takeover completes the step.
func TestTakeoverThatCannotCompleteAStep(t *testing.T) {
	t.Parallel()
	unknown := 0
	for left := 5; left <= 6; left++ { // calls of a step behind which its intent is on file
		for n := 0; ; n++ {
			s := twoRunStores["written ahead"](memory.New(nil).Open())
			tp := tape.New(s, nil)
			lead := prepareSession(t, tp)
			_, err := tape.New(failing(s, left), nil).AppendEvent(t.Context(), session, tape.SessionEvent{ID: "new"}, `{"b":2}`, lead.Lease.Fence())
			if !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("%d calls: %v, want an unknown outcome", left, err)
			}
			_, err = tape.New(failing(s, n), nil).BeginRun(t.Context(), beginRequest("i"))
			run, unread := tp.GetRun(t.Context(), lead.ID)
			if unread != nil {
				t.Fatal(unread)
			}
			switch {
			case err == nil:
			case runstore.OutcomeOf(err) == runstore.NotApplied && run.Token != lead.Lease.Token:
				t.Errorf("failed after %d calls: %v, and the lease was taken", n, err)
			case runstore.OutcomeOf(err) == runstore.Unknown:
				unknown++
			}
			if err != nil {
				begin(t, tp, "i")
			}
			checkNoStep(t, s, lead.ID)
			if got := stateOf(t, s); got != stateBefore && got != `old new {"a":1,"b":2}` {
				t.Errorf("failed after %d calls: the session is %s", n, got)
			}
			if err == nil {
				break
			}
		}
	}
	if unknown == 0 {
		t.Error("no takeover failed behind its grant")
	}
}
