package spanner_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	client "cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/apiv1/spannerpb"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// unfinished counts the purged runs that have rows left.
const unfinished = "SELECT COUNT(*) FROM Runs WHERE Purging IS NOT NULL"

// reads matches the reads by key with a tag: "unfinished" is the list of purged runs, "purging" the
// first read of each transaction that deletes rows.
func (p testDatabase) reads(tag string) func(spanneremulator.Call) bool {
	return func(c spanneremulator.Call) bool {
		r, ok := c.Request.(*spannerpb.ReadRequest)
		return ok && c.Database == p.String() && r.GetRequestOptions().GetRequestTag() == "tapestore-"+tag
	}
}

// tagsOf records the tags of a handle's reads by key.
type tagsOf struct {
	mu  sync.Mutex
	all []string
}

func (r *tagsOf) note(request any) {
	if read, ok := request.(*spannerpb.ReadRequest); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, strings.TrimPrefix(read.GetRequestOptions().GetRequestTag(), "tapestore-"))
	}
}

func (r *tagsOf) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

func (r *tagsOf) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.all, " ")
}

// fill creates a run with n events, and n records in a queue of the run's name.
func fill(t *testing.T, s *spanner.Store, id runstore.RunID, n int) {
	t.Helper()
	b := appending(hold(t, s, id))
	for i := range n {
		b.Append("test", []byte("event"))
		b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), nil, runstore.Place{Index: runstore.IndexName(id), At: runstore.After(0)})
	}
	commit(t, s, b)
}

// leaveRows creates runs and purges them on a handle that ends before it deletes their rows.
func leaveRows(t *testing.T, p testDatabase, ids ...runstore.RunID) {
	t.Helper()
	s := open(t, p, patient)
	for _, id := range ids {
		fill(t, s, id, 1)
	}
	cut := p.server.Refuse(0, codes.PermissionDenied, p.reads("purging"))
	defer cut.Stop()
	for _, id := range ids {
		commit(t, s, purgeOf(id))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := count(t, raw(t, p), unfinished); n < int64(len(ids)) {
		t.Fatalf("%d purged runs have rows left, want %d", n, len(ids))
	}
}

// nothingLeft waits until the rows of all purged runs are deleted.
func nothingLeft(t *testing.T, c *client.Client) {
	t.Helper()
	await(t, "the rows of purged runs are deleted", func() bool { return count(t, c, unfinished) == 0 })
	for _, table := range []string{"Events", "Records", "Queue"} {
		if n := count(t, c, "SELECT COUNT(*) FROM "+table); n != 0 {
			t.Errorf("%d rows in %s, want none", n, table)
		}
	}
}

func scanQueue(t *testing.T, s *spanner.Store, index runstore.IndexName) {
	t.Helper()
	if found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Limit: 10}); err != nil || len(found) != 0 {
		t.Errorf("a scan of a purged run's queue: got %d entries, error %v, want none", len(found), err)
	}
}

// TestHandleFinishesItsPurge checks that the handle deletes the rows of a purge that was cut short,
// without another call.
func TestHandleFinishesItsPurge(t *testing.T) {
	t.Parallel()
	t.Run("by an error", func(t *testing.T) {
		t.Parallel()
		p := newDatabase(t, fair)
		s, c := open(t, p, patient), raw(t, p)
		s.SetPurgeBatch(4)
		fill(t, s, "run", 10)
		commits, seen := p.served(commits), 0
		cut := p.server.Refuse(1, codes.PermissionDenied, func(call spanneremulator.Call) bool {
			if commits(call) {
				seen++
			}
			return seen == 3 // the first commits the purge, the second deletes some rows
		})
		defer cut.Stop()
		commit(t, s, purgeOf("run"))
		met(t, cut, 1)
		nothingLeft(t, c)
	})
	t.Run("by its context", func(t *testing.T) {
		t.Parallel()
		p := newDatabase(t, fair)
		c := raw(t, p)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		var steps atomic.Int64
		s := open(t, p, patient, beforeSending(func(request any) {
			r, ok := request.(*spannerpb.ReadRequest)
			if ok && r.GetRequestOptions().GetRequestTag() == "tapestore-purging" && steps.Add(1) == 2 {
				end()
			}
		}))
		s.SetPurgeBatch(4)
		fill(t, s, "run", 10)
		if _, err := s.Commit(ctx, purgeOf("run")); err != nil || ctx.Err() == nil {
			t.Fatalf("got %v and the context's %v, want a purge that is committed before its context ends", err, ctx.Err())
		}
		nothingLeft(t, c)
	})
	t.Run("by its context, with an unknown outcome", func(t *testing.T) {
		t.Parallel()
		p := newDatabase(t, fair)
		s, c := open(t, p, patient), raw(t, p)
		s.SetAttemptTimeout(hang)
		fill(t, s, "run", 10)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		lost := p.server.SwallowReplies(1, p.served(commits))
		defer lost.Stop()
		go func() {
			_ = lost.Await(ctx, 1)
			end()
		}()
		if _, err := s.Commit(ctx, purgeOf("run")); runstore.OutcomeOf(err) != runstore.Unknown {
			t.Fatalf("got %v, want an unknown outcome", err)
		}
		await(t, "the purge is committed", func() bool { return count(t, c, "SELECT COUNT(*) FROM Runs WHERE Created IS NULL") == 1 })
		nothingLeft(t, c)
	})
}

// TestPurgerIsStarted checks that a handle deletes the rows that another handle has left, after a
// call that may find such rows.
func TestPurgerIsStarted(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(t *testing.T, s *spanner.Store){
		"by a scan": func(t *testing.T, s *spanner.Store) { scanQueue(t, s, "left") },
		"by a purge of another run": func(t *testing.T, s *spanner.Store) {
			hold(t, s, "another")
			commit(t, s, purgeOf("another"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, fair)
			s, c := open(t, p, patient), raw(t, p)
			s.SetPurgeBatch(4) // waits for the purger that the opening has started
			leaveRows(t, p, "left")
			call(t, s)
			nothingLeft(t, c)
		})
	}
}

// TestCreationThatCannotDeleteStartsThePurger checks that the creation of a run whose former rows cannot be
// deleted applies nothing, and that the handle deletes these rows without another call.
func TestCreationThatCannotDeleteStartsThePurger(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s, c := open(t, p, patient), raw(t, p)
	s.SetPurgeBatch(4) // waits for the purger that the opening has started
	leaveRows(t, p, "left")
	cut := p.server.Refuse(0, codes.PermissionDenied, p.reads("purging"))
	defer cut.Stop()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "left"}); runstore.OutcomeOf(err) != runstore.NotApplied || cut.Count() == 0 {
		t.Errorf("got %v after %d refused reads, want an error that means that nothing was applied", err, cut.Count())
	}
	if run, err := s.GetRun(t.Context(), "left"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("got %+v, error %v, want no run", run, err)
	}
	cut.Stop()
	nothingLeft(t, c)
	if created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "left"}); err != nil || !created.New || created.Run.LastSeq != 0 {
		t.Errorf("got %+v, error %v, want a new run without events", created, err)
	}
}

// TestPurgerGoesPastARunThatFails checks that runs whose rows cannot be deleted leave those of later
// runs to be deleted, on the same page of the list and on the next.
func TestPurgerGoesPastARunThatFails(t *testing.T) {
	t.Parallel()
	for _, page := range []int{1, 10} {
		t.Run(fmt.Sprint("in pages of ", page), func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, fair)
			s, c := open(t, p, patient), raw(t, p)
			s.SetPurgedPage(page)
			leaveRows(t, p, "fails", "fails too", "succeeds")
			var fails []string
			for i, id := range []runstore.RunID{"fails", "fails too", "succeeds"} {
				hash, _ := spanner.KeyOf(id)
				// The list of purged runs is in this order.
				first := client.Update("Runs", []string{"RunHash", "Run", "Purging"}, []any{hash, []byte(id), append(make([]byte, 15), byte(i))})
				if _, err := c.Apply(t.Context(), []*client.Mutation{first}); err != nil {
					t.Fatal(err)
				}
				if i < 2 {
					fails = append(fails, strconv.FormatInt(hash, 10)+" "+base64.StdEncoding.EncodeToString([]byte(id)))
				}
			}
			begins := p.reads("purging")
			cut := p.server.Refuse(0, codes.PermissionDenied, func(call spanneremulator.Call) bool {
				if !begins(call) {
					return false
				}
				key := call.Request.(*spannerpb.ReadRequest).GetKeySet().GetKeys()[0].GetValues()
				return slices.Contains(fails, key[0].GetStringValue()+" "+key[1].GetStringValue())
			})
			defer cut.Stop()
			scanQueue(t, s, "succeeds")
			await(t, "the rows of the last run are deleted", func() bool { return count(t, c, unfinished+" AND Run = b'succeeds'") == 0 })
			if n := count(t, c, unfinished); n != 2 {
				t.Errorf("%d purged runs have rows left, want the two that fail", n)
			}
			cut.Stop()
			nothingLeft(t, c)
		})
	}
}

// TestPurgerYields checks that the purger does not repeat a transaction that was aborted, but leaves
// the run until its next pass.
func TestPurgerYields(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	var tags tagsOf
	s := open(t, p, patient, beforeSending(tags.note))
	s.SetPurgedPage(10) // waits for the purger that the opening has started
	leaveRows(t, p, "left")
	tags.clear()
	aborted := p.server.Abort(1, func(c spanneremulator.Call) bool {
		r, ok := c.Request.(*spannerpb.CommitRequest)
		return ok && c.Database == p.String() && r.GetRequestOptions().GetTransactionTag() == "tapestore-clear"
	})
	defer aborted.Stop()
	scanQueue(t, s, "left")
	nothingLeft(t, raw(t, p))
	_ = s.Close()
	if want := "unfinished purging clear clear unfinished purging clear clear"; tags.String() != want || aborted.Count() != 1 {
		t.Errorf("got the reads %q, %d commits aborted; want %q and one", tags.String(), aborted.Count(), want)
	}
}

// TestPurgerLeavesRunsToTheirCalls checks that the purger deletes no rows of a run while a call of
// its handle purges the run.
func TestPurgerLeavesRunsToTheirCalls(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	var tags tagsOf
	s := open(t, p, patient, beforeSending(tags.note))
	s.SetAttemptTimeout(hang)
	others := []runstore.RunID{"second", "third"}
	for _, id := range others {
		hold(t, s, id)
	}
	fill(t, s, "first", 1)
	tags.clear()
	held := p.server.Hold(1, p.reads("purging"))
	defer held.Stop()
	var purge sync.WaitGroup
	purge.Go(func() {
		if _, err := s.Commit(t.Context(), purgeOf("first")); err != nil {
			t.Errorf("purge: %v", err)
		}
	})
	met(t, held, 1)
	for i, id := range others {
		commit(t, s, purgeOf(id))
		await(t, "a pass of the purger", func() bool { return strings.Count(tags.String(), "unfinished") > i })
	}
	// The second pass began after the first had ended.
	if n := strings.Count(tags.String(), "purging"); n != 1+len(others) {
		t.Errorf("%d transactions began to delete rows, want those of the three calls: %s", n, tags.String())
	}
	held.Stop()
	purge.Wait()
	nothingLeft(t, raw(t, p))
}

// TestStartOfThePurgerIsNotLost checks that rows which a scan finds while the purger runs are
// deleted, although the purger has listed the purged runs before.
func TestStartOfThePurgerIsNotLost(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s, c := open(t, p, patient), raw(t, p)
	s.SetAttemptTimeout(hang)
	leaveRows(t, p, "first")
	held := p.server.Hold(1, p.reads("purging"))
	defer held.Stop()
	scanQueue(t, s, "first")
	met(t, held, 1)
	leaveRows(t, p, "second")
	scanQueue(t, s, "second")
	held.Stop()
	nothingLeft(t, c)
}

// TestNothingWaitsForThePurger checks that scans, purges and Close return while the purger waits for
// Spanner.
func TestNothingWaitsForThePurger(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p, patient)
	s.SetAttemptTimeout(hang)
	hold(t, s, "another")
	leaveRows(t, p, "left")
	held := p.server.Hold(1, p.reads("unfinished"))
	defer held.Stop()
	scanQueue(t, s, "left")
	met(t, held, 1)
	scanQueue(t, s, "left")
	commit(t, s, purgeOf("another"))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := count(t, raw(t, p), unfinished); n != 1 {
		t.Errorf("%d purged runs have rows left, want 1: the purger was to wait", n)
	}
}
