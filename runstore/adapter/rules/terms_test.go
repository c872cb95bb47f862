package rules_test

import (
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

func termOf(token runstore.Token, name string) runstore.Term {
	at := time.Unix(1e9+int64(token), 1000).UTC()
	return runstore.Term{
		Token: token, Owner: runstore.Owner(name), Reactor: "agent", GrantedAt: at, ExpiresAt: at.Add(time.Minute),
		EndedAt: at.Add(time.Second), End: runstore.EndPreempted, Reason: "why",
	}
}

// listed returns the terms of a list, the oldest first.
func listed(t *testing.T, l rules.TermList) []runstore.Term {
	t.Helper()
	terms, err := rules.Head{Terms: l}.ListTerms()
	if err != nil {
		t.Fatal(err)
	}
	return terms
}

// Stores keep the bytes: a program must decode what an earlier one has stored.
func TestTermListEncoding(t *testing.T) {
	t.Parallel()
	const stored = "012b0681809aa6eaafe301818ee8c2eaafe301c19fc5a9eaafe30104036f776e056167656e7406726561736f6e"
	l := rules.TermList(nil).With(runstore.Term{
		Token: 6, Owner: "own", Reactor: "agent", GrantedAt: time.UnixMicro(1e15 + 1), ExpiresAt: time.UnixMicro(1e15 + 60e6 + 1),
		EndedAt: time.UnixMicro(1e15 + 7e6 + 1), End: runstore.EndPreempted, Reason: "reason",
	})
	if got := hex.EncodeToString(l); got != stored {
		t.Errorf("got %s, want %s", got, stored)
	}
	// A later version may add fields at the end of a term.
	longer := append(rules.TermList{1, l[1] + 3}, append(append([]byte{}, l[2:]...), "new"...)...)
	if got, want := listed(t, longer), listed(t, l); !reflect.DeepEqual(got, want) {
		t.Errorf("with fields of a later version: got %+v, want %+v", got, want)
	}
}

func TestTermListKeepsTheNewest(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", runstore.MaxOwner)
	for _, test := range []struct {
		name         string
		term         func(token runstore.Token) runstore.Term
		kept, atMost int
	}{
		{"short names", func(token runstore.Token) runstore.Term { return termOf(token, "owner") }, runstore.RememberedTerms - 1, runstore.RememberedTerms - 1},
		{"the longest names", func(token runstore.Token) runstore.Term {
			v := termOf(token, long)
			v.Token += 1 << 52
			v.Reactor, v.Reason = runstore.Reactor(long), long
			return v
		}, 4, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var l rules.TermList
			var all []runstore.Term
			for i := range runstore.Token(100) {
				before := string(l)
				v := test.term(i + 1)
				next := l.With(v)
				if string(l) != before {
					t.Fatalf("With(%v) changed the list that it was called on", v.Token)
				}
				if l = next; len(l) > rules.MaxTermList {
					t.Fatalf("the list takes %d bytes", len(l))
				}
				all = append(all, v)
				got := listed(t, l)
				if n := len(got); n < min(len(all), test.kept) || n > test.atMost || !reflect.DeepEqual(got, all[len(all)-n:]) {
					t.Fatalf("after %d terms: got %+v", len(all), got)
				}
			}
		})
	}
}

// A list of a history that the store has lost may have the token again.
func TestTermListDropsLaterTokens(t *testing.T) {
	t.Parallel()
	l := rules.TermList(nil).With(termOf(3, "a")).With(termOf(4, "lost")).With(termOf(5, "lost")).With(termOf(4, "b"))
	if got, want := listed(t, l), []runstore.Term{termOf(3, "a"), termOf(4, "b")}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A list that cannot be decoded is an error of a read, and prevents no grant.
func TestDamagedTermList(t *testing.T) {
	t.Parallel()
	whole := rules.TermList(nil).With(termOf(1, "a")).With(termOf(2, "b"))
	damaged := []rules.TermList{{2}, {0, 1, 1}, rules.TermList("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), {1, 1, 5}, {1, 6, 1, 1, 1, 1, 1, 200}}
	for n := 1; n < len(whole); n++ {
		cut := whole[:n]
		terms, err := rules.Head{Terms: cut}.ListTerms()
		if err == nil && len(terms) > 1 {
			t.Errorf("%d of %d bytes have %d terms", n, len(whole), len(terms))
		}
		damaged = append(damaged, cut)
	}
	for _, l := range damaged {
		if got := l.With(termOf(9, "new")); len(got) == 0 || !strings.Contains(string(got), "new") {
			t.Errorf("With on %x: got %x", []byte(l), []byte(got))
		}
	}
	for _, l := range damaged[:5] {
		var corrupt *runstore.CorruptError
		if terms, err := (rules.Head{Terms: l}).ListTerms(); !errors.As(err, &corrupt) {
			t.Errorf("%x: got %+v, %v, want an error", []byte(l), terms, err)
		}
	}
}

// TestTermsOfHead follows a run's terms through grants and ends, as an adapter keeps them.
func TestTermsOfHead(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(1e9+s, 0).UTC() }
	acquire := func(owner runstore.Owner, preempt string) runstore.AcquireRequest {
		return runstore.AcquireRequest{LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: time.Minute, Grant: runstore.GrantID(owner)}, Preempt: preempt}
	}
	h := rules.Head{}.Granted(acquire("a", ""), at(0))
	h = h.Renewed(time.Minute, at(10))
	h = h.Granted(acquire("b", "why"), at(20))
	h = h.EndedAt(rules.Released, at(30)).EndedAt(rules.Revoked, at(40))
	want := []runstore.Term{
		{Token: 1, Owner: "a", GrantedAt: at(0), ExpiresAt: at(70), EndedAt: at(20), End: runstore.EndPreempted, Reason: "why"},
		{Token: 2, Owner: "b", GrantedAt: at(20), ExpiresAt: at(80), EndedAt: at(30), End: runstore.EndReleased},
	}
	if got, err := h.ListTerms(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	h = h.Granted(acquire("c", "needless"), at(50))
	want = append(want, runstore.Term{Token: 3, Owner: "c", GrantedAt: at(50), ExpiresAt: at(110)})
	if got, err := h.ListTerms(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	// A program that keeps no terms has ended the grant: whose it was is not known.
	h = h.Ended(rules.Released)
	if got, err := h.ListTerms(); err != nil || !reflect.DeepEqual(got, want[:2]) {
		t.Errorf("ended without a term: got %+v, %v, want %+v", got, err, want[:2])
	}
	h = h.Granted(acquire("d", ""), at(60))
	want = append(want[:2], runstore.Term{Token: 4, Owner: "d", GrantedAt: at(60), ExpiresAt: at(120)})
	if got, err := h.ListTerms(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
