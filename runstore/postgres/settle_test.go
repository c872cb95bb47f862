package postgres_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// shape returns what is stored without times and numbers that differ between two
// databases with the same story.
func shape(t testing.TB, conn execer) string {
	t.Helper()
	var all []string
	for _, table := range []string{"runs", "events", "records", "places", "batches", "epochs"} {
		without := `'{void_nonces,recent,no,run,created,runnable,expires,last_position,position,nonce,time,updated,at,written,granted,renewed,progressed,ended,indexed_expires,place}'::text[]`
		row := `to_jsonb(t) - ` + without
		switch table {
		case "batches": // the id may be made of a nonce
			row += ` - 'id'`
		case "runs":
			row += ` || jsonb_build_object('has_ended', ended IS NOT NULL)`
		}
		all = append(all, table, get[string](t, conn,
			`SELECT coalesce(string_agg(row, E'\n' ORDER BY row), '') FROM (SELECT (`+row+`)::text AS row FROM tapestore.`+table+` t) rows`))
	}
	return strings.Join(all, "\n")
}

// timeless takes the times out of a result, when they are there.
func timeless(t testing.TB, result any) string {
	t.Helper()
	clear := func(at *time.Time) {
		if at.IsZero() {
			t.Errorf("a time is missing in %+v", result)
		}
		*at = time.Time{}
	}
	run := func(r *runstore.Run) {
		clear(&r.CreatedAt)
		if r.Token > 0 {
			clear(&r.ExpiresAt)
		}
		if r.Holder != (runstore.Holder{}) {
			clear(&r.Holder.ExpiresAt)
			clear(&r.Holder.GrantedAt)
			clear(&r.Holder.RenewedAt)
			clear(&r.Holder.ProgressedAt)
		}
		if r.Summary.Version > 0 {
			clear(&r.Summary.Created.Time)
			clear(&r.Summary.Updated.Time)
		}
	}
	switch r := result.(type) {
	case runstore.Committed:
		clear(&r.Time)
		return fmt.Sprintf("%+v", r)
	case runstore.Granted:
		clear(&r.ExpiresAt)
		clear(&r.Committed.Time)
		return fmt.Sprintf("%+v", r)
	case runstore.Renewed:
		clear(&r.ExpiresAt)
		return fmt.Sprintf("%+v", r)
	case runstore.Created:
		run(&r.Run)
		if r.Lease != (runstore.Lease{}) {
			clear(&r.Lease.ExpiresAt)
		}
		if r.New {
			clear(&r.Committed.Time)
		}
		return fmt.Sprintf("%+v", r)
	default:
		t.Fatalf("a result of type %T", result)
		return ""
	}
}

// Whether the request or the reply of a write is lost, its caller gets the result
// that it would have got, and the write is applied once.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	type loss struct {
		harm harm
		mode string
	}
	all := []loss{{loseRequest, "exec"}, {loseReply, "exec"}, {loseReply, "simple_protocol"}}
	if !effort.Full() {
		t.Log("reduced: a lost reply in one of two protocols")
	}
	for i, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			twin := database(t)
			s := open(t, twin)
			result, err := c.do(t, s, c.before(t, s))
			if err != nil {
				t.Fatalf("unharmed: %v", err)
			}
			want, wantShape := timeless(t, result), shape(t, connect(t, twin))
			// In a quick run each change loses its reply in one of the two modes.
			for _, tc := range effort.Choose([]loss{all[0], all[1+i%2]}, all) {
				harm, name := tc.harm, [...]string{loseRequest: "request", loseReply: "reply"}[tc.harm]+" in mode "+tc.mode
				address := database(t)
				w := &wire{}
				s := open(t, with(address, "default_query_exec_mode="+tc.mode), w.through)
				lease := c.before(t, s)
				w.lose(harm, "")
				result, err := c.do(t, s, lease)
				if err != nil {
					t.Errorf("the %s lost: %v", name, err)
					continue
				}
				if got := timeless(t, result); got != want {
					t.Errorf("the %s lost: got\n%s, want\n%s", name, got, want)
				}
				if got := shape(t, connect(t, address)); got != wantShape {
					t.Errorf("the %s lost: stored is\n%s, want\n%s", name, got, wantShape)
				}
				sends := 1
				if harm == loseRequest || c.repeatable {
					sends = 2
				}
				if n := len(w.sent()); n != sends {
					t.Errorf("the %s lost: the write was sent %d times, want %d", name, n, sends)
				}
			}
		})
	}
}

func impatient(_ *pgxpool.Config, o *postgres.Options) { o.RetryTimeout = time.Millisecond }

// A write that was reported as not applied never is: a copy that reaches the server later is
// refused because of its nonce and nothing else.
func TestGivenUpWriteComesLate(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		if c.repeatable {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			w := &wire{}
			s := open(t, with(address, "default_query_exec_mode=exec"), w.through, impatient)
			lease := c.before(t, s)
			w.lose(loseRequest, "")
			_, err := c.do(t, s, lease)
			if !errors.Is(err, runstore.ErrUnavailable) || runstore.OutcomeOf(err) != runstore.NotApplied {
				t.Fatalf("got %v, want ErrUnavailable", err)
			}
			conn := connect(t, address)
			// A further write of the run is given up; the first one stays so.
			exec(t, conn, `SELECT tapestore.settle('run', 4711, NULL, 0, 0::smallint)`)
			before := stored(t, conn)
			late := w.sent()[0]
			exec(t, conn, late.sql, late.args...)
			if after := stored(t, conn); after != before {
				t.Errorf("the late copy changed\n%s\nto\n%s", before, after)
			}
			exec(t, conn, late.sql, renamed(late)...)
			if stored(t, conn) == before {
				t.Error("the same write under another nonce changed nothing: something else than the nonce had refused it")
			}
		})
	}
}

// TestLostAppendBehindManyEvents checks that the search for an append whose reply was lost passes
// the events that other writers have appended since.
func TestLostAppendBehindManyEvents(t *testing.T) {
	t.Parallel()
	address := database(t)
	other := open(t, address)
	i := &interloper{wire: &wire{}, before: ".settle("}
	i.do = func() {
		for range 2 {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			for range 600 {
				b.Append("test", nil)
			}
			commit(t, other, b)
		}
	}
	s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
	lease := hold(t, s, "run")
	i.lose(loseReply, "")
	commit(t, s, appending(lease, "lost"))
	if n := get[int](t, connect(t, address), `SELECT count(*) FROM tapestore.events WHERE data = 'lost'`); n != 1 {
		t.Errorf("the event is in the journal %d times, want once", n)
	}
}

// renamed returns a statement's arguments with another nonce.
func renamed(s statement) []any {
	args := append([]any(nil), s.args...)
	var nonce int64 = 77
	if at := noncesOf(s); at >= 0 {
		args[at] = append([]*int64{&nonce}, args[at].([]*int64)[1:]...)
	} else if of := nonceOfOne.FindStringSubmatch(s.sql); of != nil {
		at, _ := strconv.Atoi(of[1])
		args[at-1] = nonce
	} else {
		args[2] = nonce
	}
	return args
}

// nonceOfOne finds the nonce among the parameters of the statement for one event.
var nonceOfOne = regexp.MustCompile(`\$([0-9]+)::bigint <> ALL \(void_nonces\)`)

// noncesOf returns the place of the nonces among the arguments of a commit's statement. That of
// tapestore.write has one nonce, and -1.
func noncesOf(s statement) int {
	if !strings.HasPrefix(s.sql, "WITH ") {
		return -1
	}
	return slices.IndexFunc(s.args, func(arg any) bool { _, ok := arg.([]*int64); return ok })
}

// A grant whose reply was lost, and which another has ended when that shows, is
// returned as what it was: the caller learns its token, and is fenced.
func TestLostGrantTakenByAnother(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s, other := open(t, with(address, "default_query_exec_mode=exec"), w.through), open(t, address)
	letGo(t, s)
	conn := connect(t, address)
	w.lose(loseReply, "")
	// Between the loss and its settlement the lease goes to another.
	exec(t, conn, `CREATE FUNCTION public.taken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.token := NEW.token + 1; NEW.grant_id := 'theirs'; NEW.owner := 'thief'; RETURN NEW; END $$`)
	exec(t, conn, `CREATE TRIGGER taken BEFORE UPDATE ON tapestore.runs FOR EACH ROW WHEN (NEW.grant_id = 'next grant') EXECUTE FUNCTION public.taken()`)
	result, err := acquiring("", someWrites())(t, s, runstore.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	lease := result.(runstore.Granted).Lease
	if lease.Token != 2 || lease.Owner != "next" || lease.Grant != "next grant" {
		t.Errorf("got %+v, want token 2 of its own grant", lease)
	}
	var fenced *runstore.FencedError
	if _, err := other.Commit(t.Context(), appending(lease, "late")); !errors.As(err, &fenced) || fenced.Current != 3 || fenced.Holder.Owner != "thief" {
		t.Errorf("a write under it: got %v, want ErrFenced by token 3 of the thief", err)
	}
}

// A grant without writes whose reply was lost, and after which another handle took the lease, is returned with
// its own time and expiry, not with those of the next grant.
func TestLostGrantHasItsOwnTime(t *testing.T) {
	t.Parallel()
	for _, preempt := range []string{"", "test"} {
		t.Run("preempt: "+preempt, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			other := open(t, address)
			i := &interloper{wire: &wire{}, before: ".settle("}
			i.do = func() {
				_, err := other.AcquireLease(t.Context(), runstore.AcquireRequest{
					Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "thief", TTL: time.Minute}, Preempt: "test",
				})
				if err != nil {
					t.Errorf("preempt: %v", err)
				}
			}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
				t.Fatal(err)
			}
			i.lose(loseReply, "")
			lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}, Preempt: preempt,
			})
			if err != nil {
				t.Fatal(err)
			}
			terms, err := s.ReadTerms(t.Context(), "run")
			if err != nil || len(terms) != 2 {
				t.Fatalf("got the terms %+v, %v, want two", terms, err)
			}
			own := terms[0]
			if lease.Token != own.Token || !lease.Ended || !lease.Committed.Time.Equal(own.GrantedAt) || !lease.ExpiresAt.Equal(own.GrantedAt.Add(time.Minute)) {
				t.Errorf("got %+v, want a lease that ended, of the term %+v", lease, own)
			}
		})
	}
}

// The traces of grants, creations and purges are the last 16 of the run. A purge whose reply was lost, and
// whose trace was evicted by those of the next run of that id, has an unknown outcome: the next run is not
// purged. A purge whose trace cannot have been evicted is settled.
func TestLostPurgeBeforeManyGrants(t *testing.T) {
	t.Parallel()
	const traces = 16
	for _, tc := range []struct {
		name          string
		harm          harm
		before        int  // further grants before the purge
		purged, anew  bool // by another handle, before the purge is settled
		after         int  // grants of the new run
		guarded, full bool // the purge has a fence; the run has an event
		want          error
		left          bool // the run exists at the end
	}{
		{"evicted, of an empty run", loseReply, 0, false, true, traces - 1, false, false, runstore.ErrUnknownOutcome, true},
		{"evicted", loseReply, 0, false, true, traces - 1, false, true, runstore.ErrUnknownOutcome, true},
		{"evicted, with a fence", loseReply, 0, false, true, traces - 1, true, true, runstore.ErrUnknownOutcome, true},
		{"still there", loseReply, 0, false, true, traces - 2, true, true, nil, true},
		{"not applied", loseRequest, traces, false, false, 0, true, true, nil, false},
		{"not applied, of a run that was purged", loseRequest, 0, true, false, 0, true, true, runstore.ErrNotFound, false},
		{"not applied, of a run that was purged and created anew", loseRequest, 0, true, true, 0, true, true, runstore.ErrFenced, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			other := open(t, address)
			grants := func(n int) (lease runstore.Lease) {
				for range n {
					granted, err := other.AcquireLease(t.Context(), runstore.AcquireRequest{
						Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}, Preempt: "test",
					})
					if err != nil {
						t.Errorf("preempt: %v", err)
					}
					lease = granted.Lease
				}
				return lease
			}
			i := &interloper{wire: &wire{}, before: ".settle("}
			i.do = func() {
				if tc.purged {
					purge(t, other, "run")
				}
				if tc.anew {
					anew(t, other, "run")
				}
				grants(tc.after)
			}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
			lease := hold(t, s, "run")
			if tc.before > 0 {
				lease = grants(tc.before)
				exec(t, connect(t, address), `UPDATE tapestore.runs SET created = created - interval '1 hour'`) // long before the purge
			}
			if tc.full {
				commit(t, other, appending(lease, "event"))
			}
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			if tc.guarded {
				b = runstore.NewBatch("run", lease.Fence())
			}
			b.Purge = true
			i.lose(tc.harm, "")
			if _, err := s.Commit(t.Context(), b); runstore.KindOf(err) != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if !i.harmed() {
				t.Error("no message was lost")
			}
			if _, err := other.GetRun(t.Context(), "run"); (err == nil) != tc.left {
				t.Errorf("the run: got %v, want it to be there: %t", err, tc.left)
			}
		})
	}
}
