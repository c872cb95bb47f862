package cases

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Terms returns the cases that prove what a TermReader reports about the grants of a run.
func Terms() []harness.Case {
	need := []harness.Need{harness.NeedTerms}
	return []harness.Case{
		{Guarantee: "I2", Name: "terms-list-every-grant-with-its-end", Needs: need, Run: everyTerm, Doc: `
			A run's grants end in every way: release, a releasing batch, expiry, strict expiry, handoff, preemption
			and revocation, most without a write, some after a renewal. After each step the terms are these grants,
			each once, with owner, reactor, the times of the grant, of the last expiry and of the end, how it ended and
			why it was preempted. A store that lists only grants that wrote, leaves an end open, or reports the expiry
			as granted rather than as renewed fails.`},
		{Guarantee: "I2", Name: "repeats-and-refusals-add-no-term", Needs: need, Run: oneTermEach, Doc: `
			A creation with a lease, an acquire with and without writes, a handoff and a release are repeated through
			another handle, during the grant and after it; contenders are refused; the holder renews, commits and has a
			batch refused. None of it adds a term, changes one but for the expiry, or moves the time of an end. A store
			that records a term per request, and not per grant, fails.`},
		{Guarantee: "I2", Name: "terms-keep-the-newest", Needs: need, Run: newestTerms, Doc: `
			More grants are made than a store has to list, then more with the longest owners, reactors and reasons.
			The terms are the newest ones in the order of their tokens: all that must be listed while names are short,
			at least the last four while they are long, and complete ones. A store that keeps the oldest, fails a grant
			for the size of its list or cuts a term short fails.`},
		{Guarantee: "I2", Name: "terms-outlive-a-purge", Needs: need, Run: purgedTerms, Doc: `
			A leased run is purged and created again, twice, with a lease and without. While there is no run, its
			terms are ErrNotFound, as those of a run that never existed; afterwards the terms of the former lives come
			first, the purged one ended as revoked. A store whose purge drops the terms, or leaves the last one open,
			fails.`},
		{Guarantee: "I2", Name: "terms-end-with-an-epoch", Needs: []harness.Need{harness.NeedTerms, harness.NeedEpoch}, Run: epochTerms, Doc: `
			Of three runs one is leased, one released and one free when the epoch is raised. The lease ends as
			revoked, at a time not after the store clock; the release stays one, at its own time; both are still so
			after the next grant. A store that ends grants with an epoch but not their terms fails.`},
		{Guarantee: "I2", Name: "terms-of-an-imported-run-begin-with-the-import", Needs: []harness.Need{harness.NeedTerms, harness.NeedMove}, Run: importedTerms, Doc: `
			The history of a run is imported, with the tokens of another store, and the importer's grant ended. The
			terms are the importer's, ended as revoked, and the next holder's. A store that lists tokens that it never
			granted, or shows the importer as released, fails.`},
	}
}

// readTerms reads the terms of a run through two handles, which must agree.
func readTerms(t harness.T, e *harness.Env, id runstore.RunID) []runstore.Term {
	t.Helper()
	terms, err := kit.Capability[runstore.TermReader](e.Store).ReadTerms(t.Context(), id)
	if err != nil {
		t.Fatalf("read the terms of %q: %v", id, err)
	}
	again, err := kit.Capability[runstore.TermReader](e.Reopen(t)).ReadTerms(t.Context(), id)
	if err != nil || termsText(again) != termsText(terms) {
		t.Errorf("the terms of %q through another handle, %v:\n%swant\n%s", id, err, termsText(again), termsText(terms))
	}
	return terms
}

// termsText returns terms as lines, without the ends of names beyond 20 bytes.
func termsText(terms []runstore.Term) string {
	brief := func(s string) string {
		if len(s) > 20 {
			return fmt.Sprintf("%q…(%d)", s[:20], len(s))
		}
		return fmt.Sprintf("%q", s)
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format("15:04:05.000000")
	}
	var b strings.Builder
	for _, v := range terms {
		fmt.Fprintf(&b, "%v %s as %s from %s until %s, ended %s: %d %s\n", v.Token, brief(string(v.Owner)), brief(string(v.Reactor)),
			at(v.GrantedAt), at(v.ExpiresAt), at(v.EndedAt), v.End, brief(v.Reason))
	}
	return b.String()
}

// termLog keeps the terms of a run as the replies to its requests show them.
type termLog struct {
	e     *harness.Env
	run   runstore.RunID
	terms []runstore.Term
}

// acquire makes a grant that ends the last term as how says, if it is still open, and checks the terms.
func (l *termLog) acquire(t harness.T, req runstore.AcquireRequest, how runstore.GrantEnd) runstore.Lease {
	t.Helper()
	before := l.e.Get(t, l.run)
	lease := kit.MustAcquire(t, l.e.Store, req)
	l.granted(t, before.ExpiresAt, how, req.Preempt)
	return lease
}

// granted adds the term of the current grant.
func (l *termLog) granted(t harness.T, expired time.Time, how runstore.GrantEnd, reason string) {
	t.Helper()
	run := l.e.Get(t, l.run)
	h := run.Holder
	if n := len(l.terms); n > 0 && l.terms[n-1].End == runstore.EndNone {
		last := &l.terms[n-1]
		last.ExpiresAt, last.End, last.EndedAt = expired, how, h.GrantedAt
		if how == runstore.EndPreempted {
			last.Reason = reason
		}
	}
	l.terms = append(l.terms, runstore.Term{
		Token: h.Token, Owner: h.Owner, Reactor: h.Reactor, GrantedAt: h.GrantedAt, ExpiresAt: run.ExpiresAt,
	})
	l.check(t, fmt.Sprintf("after the grant to %.20q", h.Owner))
}

// ended ends the last term and checks the terms.
func (l *termLog) ended(t harness.T, how runstore.GrantEnd, at time.Time) {
	t.Helper()
	last := &l.terms[len(l.terms)-1]
	last.End, last.EndedAt, last.ExpiresAt = how, at, l.e.Get(t, l.run).ExpiresAt
	l.check(t, fmt.Sprintf("after %.20q had ended as %v", last.Owner, how))
}

func (l *termLog) check(t harness.T, when string) {
	t.Helper()
	want := l.terms[max(0, len(l.terms)-runstore.RememberedTerms):]
	got := readTerms(t, l.e, l.run)
	if len(got) > len(want) { // a store may list more than it must
		want = l.terms[max(0, len(l.terms)-len(got)):]
	}
	if g, w := termsText(got), termsText(want); g != w {
		t.Errorf("%s the terms are\n%swant\n%s", when, g, w)
	}
}

func everyTerm(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	l := &termLog{e: e, run: "run"}
	l.check(t, "before the first grant")
	as := func(req runstore.AcquireRequest, reactor runstore.Reactor) runstore.AcquireRequest {
		req.Reactor = reactor
		return req
	}
	lease := l.acquire(t, as(kit.Acquiring("run", "first", harness.TTL), "agent"), runstore.EndNone)
	l.ended(t, runstore.EndReleased, kit.MustRelease(t, e.Store, lease).Time)

	lease = l.acquire(t, kit.Acquiring("run", "renewing", e.ShortTTL()), runstore.EndNone)
	if err := kit.Renew(t, e.Store, lease, 2*e.ShortTTL()); err != nil {
		t.Fatalf("renew: %v", err)
	}
	e.Advance(t, 2*e.ShortTTL())
	lease = l.acquire(t, as(kit.Acquiring("run", "late", harness.TTL), "recovery"), runstore.EndExpired)
	e.Append(t, e.Store, lease, "event")
	l.acquire(t, handingOff(lease, as(kit.Acquiring("run", "successor", harness.TTL), "")), runstore.EndHandedOff)
	l.acquire(t, as(kit.Preempting("run", "operator", "the node is gone"), "operator"), runstore.EndPreempted)
	revoke := runstore.NewBatch("run", runstore.Unguarded("test"))
	revoke.Release = true
	l.ended(t, runstore.EndRevoked, kit.MustApply(t, e.Store, "revocation", revoke).Time)

	strict := kit.Acquiring("run", "strict", e.ShortTTL())
	strict.Strict = true
	l.acquire(t, strict, runstore.EndNone)
	kit.Expire(t, e)
	lease = l.acquire(t, kit.Preempting("run", "needless", "what has expired"), runstore.EndExpired)
	end := runstore.NewBatch("run", lease.Fence())
	end.Release = true
	end.Append("test", []byte("last words"))
	l.ended(t, runstore.EndReleased, kit.MustApply(t, e.Store, "the holder's release in a batch", end).Time)
	req := kit.Acquiring("run", "first", harness.TTL)
	req.Writes.Append("test", []byte("first words"))
	lease = l.acquire(t, req, runstore.EndNone)
	release := runstore.ReleaseRequest{Fence: lease.Fence()}
	release.Writes.Put("record", []byte("released"))
	done, err := e.Store.ReleaseLease(t.Context(), release)
	if err != nil {
		t.Fatalf("release with writes: %v", err)
	}
	l.ended(t, runstore.EndReleased, done.Time)
	revoke.Append("test", []byte("of a free run"))
	kit.MustApply(t, e.Store, "the revocation of a free run", revoke)
	l.check(t, "after the revocation of a free run")
	l.acquire(t, kit.Acquiring("run", "last", harness.TTL), runstore.EndNone)
}

func oneTermEach(t harness.T, e *harness.Env) {
	ctx, other := t.Context(), e.Reopen(t)
	spec := kit.WithLease("run", "creator")
	spec.Writes.Append("test", []byte("first"))
	created, err := e.Store.CreateRun(ctx, spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	l := &termLog{e: e, run: "run"}
	l.granted(t, time.Time{}, runstore.EndNone, "")
	if _, err := other.CreateRun(ctx, spec); err != nil {
		t.Errorf("create, repeated: %v", err)
	}
	repeat := func(req runstore.AcquireRequest) {
		t.Helper()
		if _, err := other.AcquireLease(ctx, req); err != nil && !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("a repeat of the acquire for %q: %v", req.Owner, err)
		}
	}
	_, err = other.AcquireLease(ctx, kit.Acquiring("run", "contender", harness.TTL))
	kit.CheckLeaseHeld(t, "a contender", err, created.Lease, harness.TTL)
	l.check(t, "after repeats and a contender")

	first := handingOff(created.Lease, kit.Acquiring("run", "successor", harness.TTL))
	lease := l.acquire(t, first, runstore.EndHandedOff)
	repeat(first)
	e.Append(t, e.Store, lease, "event")
	err = kit.Renew(t, e.Store, created.Lease, harness.TTL)
	kit.CheckFenced(t, "a renewal of the former holder", err, created.Lease, e.Get(t, "run"))
	l.check(t, "after a repeated handoff and a refused renewal")
	released := kit.MustRelease(t, e.Store, lease).Time
	l.ended(t, runstore.EndReleased, released)
	e.Advance(t, 10*time.Millisecond)
	if err := kit.Release(t, other, lease); err != nil {
		t.Errorf("a repeat of the release: %v", err)
	}
	repeat(first)
	l.check(t, "after a repeated release and an acquire whose grant has ended")

	second := kit.Acquiring("run", "writer", harness.TTL)
	second.Writes.Put("record", []byte("value"))
	lease = l.acquire(t, second, runstore.EndNone)
	repeat(second)
	l.check(t, "after a repeated acquire with writes")
	renew := runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL}
	renew.Writes.Append("test", []byte("checkpoint"))
	if _, err := e.Store.RenewLease(ctx, renew); err != nil {
		t.Fatalf("renew with writes: %v", err)
	}
	l.terms[len(l.terms)-1].ExpiresAt = e.Get(t, "run").ExpiresAt
	l.check(t, "after a renewal")
	l.acquire(t, kit.Preempting("run", "last", "test"), runstore.EndPreempted)
	repeat(second)
	repeat(first)
	if _, err := other.CreateRun(ctx, spec); err != nil {
		t.Errorf("create, repeated after later grants: %v", err)
	}
	l.check(t, "after late copies of every request")
}

func newestTerms(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	l := &termLog{e: e, run: "run"}
	how := runstore.EndNone
	for i := range runstore.RememberedTerms + 3 {
		req := kit.Preempting("run", runstore.Owner(fmt.Sprint("owner ", i)), "why")
		before := e.Get(t, "run").ExpiresAt
		kit.MustAcquire(t, e.Store, req)
		run := e.Get(t, "run")
		if n := len(l.terms); n > 0 {
			last := &l.terms[n-1]
			last.ExpiresAt, last.End, last.EndedAt, last.Reason = before, how, run.Holder.GrantedAt, "why"
		}
		h := run.Holder
		l.terms = append(l.terms, runstore.Term{Token: h.Token, Owner: h.Owner, Reactor: h.Reactor, GrantedAt: h.GrantedAt, ExpiresAt: run.ExpiresAt})
		how = runstore.EndPreempted
	}
	l.check(t, "after many grants")
	if n := len(readTerms(t, e, "run")); n < runstore.RememberedTerms {
		t.Errorf("%d terms are listed, want %d", n, runstore.RememberedTerms)
	}
	long := func(i int) string {
		return fmt.Sprint(i) + strings.Repeat("\xff", runstore.MaxOwner-len(fmt.Sprint(i)))
	}
	for i := range 8 {
		req := kit.Preempting("run", runstore.Owner(long(i)), long(i+1))
		req.Reactor = runstore.Reactor(long(i + 2))
		before := e.Get(t, "run").ExpiresAt
		kit.MustAcquire(t, e.Store, req)
		run := e.Get(t, "run")
		last := &l.terms[len(l.terms)-1]
		last.ExpiresAt, last.End, last.EndedAt, last.Reason = before, how, run.Holder.GrantedAt, req.Preempt
		h := run.Holder
		l.terms = append(l.terms, runstore.Term{Token: h.Token, Owner: h.Owner, Reactor: h.Reactor, GrantedAt: h.GrantedAt, ExpiresAt: run.ExpiresAt})
	}
	got := readTerms(t, e, "run")
	if len(got) < 4 || len(got) > len(l.terms) {
		t.Fatalf("%d terms with long names are listed, want at least 4", len(got))
	}
	if g, w := termsText(got), termsText(l.terms[len(l.terms)-len(got):]); g != w {
		t.Errorf("the terms with long names are\n%swant\n%s", g, w)
	}
	for i, v := range got {
		if want := l.terms[len(l.terms)-len(got)+i]; v.Owner != want.Owner || v.Reactor != want.Reactor || v.Reason != want.Reason {
			t.Errorf("the names of the term of token %v differ from those of the grant", v.Token)
		}
	}
}

func noTerms(t harness.T, e *harness.Env, id runstore.RunID) {
	t.Helper()
	if terms, err := kit.Capability[runstore.TermReader](e.Store).ReadTerms(t.Context(), id); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("the terms of %q: %d terms, %v; want %v", id, len(terms), err, runstore.ErrNotFound)
	}
}

func purgedTerms(t harness.T, e *harness.Env) {
	noTerms(t, e, "run")
	e.Create(t, "run")
	l := &termLog{e: e, run: "run"}
	l.acquire(t, kit.Acquiring("run", "first", harness.TTL), runstore.EndNone)
	lease := l.acquire(t, kit.Preempting("run", "second", "test"), runstore.EndPreempted)
	purged := func(lease runstore.Lease) {
		t.Helper()
		last := &l.terms[len(l.terms)-1]
		last.ExpiresAt = e.Get(t, "run").ExpiresAt
		b := runstore.NewBatch("run", lease.Fence())
		b.Purge = true
		last.End, last.EndedAt = runstore.EndRevoked, kit.MustApply(t, e.Store, "purge", b).Time
		noTerms(t, e, "run")
	}
	purged(lease)
	created, err := e.Store.CreateRun(t.Context(), kit.WithLease("run", "third"))
	if err != nil {
		t.Fatalf("create after a purge: %v", err)
	}
	l.granted(t, time.Time{}, runstore.EndRevoked, "")
	purged(created.Lease)
	e.Create(t, "run")
	l.check(t, "created again without a lease")
	l.acquire(t, kit.Acquiring("run", "fourth", harness.TTL), runstore.EndRevoked)
}

func epochTerms(t harness.T, e *harness.Env) {
	logs := map[runstore.RunID]*termLog{}
	for _, id := range []runstore.RunID{"held", "released", "free"} {
		e.Create(t, id)
		l := &termLog{e: e, run: id}
		logs[id] = l
		if id == "free" {
			continue
		}
		lease := l.acquire(t, kit.Acquiring(id, "before", harness.TTL), runstore.EndNone)
		if id == "released" {
			l.ended(t, runstore.EndReleased, kit.MustRelease(t, e.Store, lease).Time)
		}
	}
	e.RaiseEpoch(t, e.Store, "test")
	after := e.Now(t)
	held := logs["held"]
	terms := readTerms(t, e, "held")
	if len(terms) != 1 || terms[0].End != runstore.EndRevoked || terms[0].EndedAt.Before(terms[0].GrantedAt) || terms[0].EndedAt.After(after) {
		t.Fatalf("after the epoch, at %v, the terms are\n%s", after, termsText(terms))
	}
	held.terms[0].End, held.terms[0].EndedAt = runstore.EndRevoked, terms[0].EndedAt
	for id, l := range logs {
		l.check(t, "after the epoch")
		l.acquire(t, kit.Acquiring(id, "after", harness.TTL), runstore.EndRevoked)
	}
}

func importedTerms(t harness.T, e *harness.Env) {
	e.RaiseEpoch(t, e.Store, "import")
	e.Create(t, "run")
	l := &termLog{e: e, run: "run"}
	lease := l.acquire(t, kit.Acquiring("run", "importer", harness.TTL), runstore.EndNone)
	part := partOfRecords(lease, 3, "record")
	part.Release = true
	done, err := kit.Capability[runstore.Mover](e.Store).Import(t.Context(), part)
	if err != nil {
		t.Fatalf("import: %v", err)
	}
	l.ended(t, runstore.EndRevoked, done.Time)
	l.acquire(t, kit.Acquiring("run", "next", harness.TTL), runstore.EndRevoked)
}
