package rules_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

func TestFormer(t *testing.T) {
	t.Parallel()
	// Stores keep it: another value would be a grant that no store recognises.
	if got, want := fmt.Sprintf("%x", rules.Former("grant")), "3492ad65d05a973f"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFormerGrants(t *testing.T) {
	t.Parallel()
	name := func(i int) runstore.GrantID { return runstore.GrantID(fmt.Sprint("grant ", i)) }
	var grants rules.FormerGrants
	const n = 3 * runstore.RememberedGrants
	for i := range n {
		before := string(grants)
		next := grants.With(name(i))
		if string(grants) != before {
			t.Fatalf("With(%q) changed the grants that it was called on", name(i))
		}
		grants = next
		for j := range n {
			if got, want := grants.Has(name(j)), j <= i && j > i-runstore.RememberedGrants; got != want {
				t.Fatalf("after grant %d: Has(%q) is %t, want %t", i, name(j), got, want)
			}
		}
	}
	if got, want := len(grants), 8*runstore.RememberedGrants; got != want {
		t.Errorf("%d grants take %d bytes, want %d", n, got, want)
	}
	// Two ids side by side hold the bytes of a third, across their bound.
	first, second := rules.Former("a"), rules.Former("b")
	across := rules.FormerGrants(append(first[4:], append(second, first[:4]...)...))
	if across.Has("b") {
		t.Error("an id was found across the bound between two others")
	}
}

// A grant id is refused first, however its grant has ended.
func TestNewGrant(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	spec := func(grant runstore.GrantID) runstore.LeaseSpec {
		return runstore.LeaseSpec{Owner: "owner", TTL: time.Minute, Grant: grant}
	}
	var none rules.Head
	first := none.Granted(runstore.AcquireRequest{LeaseSpec: spec("first")}, now)
	second := first.Granted(runstore.AcquireRequest{LeaseSpec: spec("second"), Preempt: "taken"}, now)
	for _, test := range []struct {
		name   string
		head   rules.Head
		grant  runstore.GrantID
		fenced bool
	}{
		{"a run that was never leased", none, "first", false},
		{"an id that the store makes", second, "", false},
		{"a fresh id", second, "third", false},
		{"a former grant while another is current", second, "first", true},
		{"a former grant, all released", second.Ended(rules.Released), "first", true},
		{"the last grant, released", second.Ended(rules.Released), "second", true},
		{"the last grant, revoked", second.Ended(rules.Revoked), "second", true},
	} {
		err := test.head.NewGrant(test.grant)
		if got := errors.Is(err, runstore.ErrFenced); got != test.fenced || !got && err != nil {
			t.Errorf("%s: got error %v, want ErrFenced %t", test.name, err, test.fenced)
		}
	}
	req := runstore.AcquireRequest{Run: "run", LeaseSpec: spec("second")}
	if replay, err := second.Acquire(req, now); !replay || err != nil {
		t.Errorf("the current grant's own request: replay %t, error %v; want true and none", replay, err)
	}
	req.Grant = "first"
	if replay, err := second.Acquire(req, now); replay || !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a former grant's request while another is held: replay %t, error %v; want ErrFenced", replay, err)
	}
	req.Grant = "third"
	if _, err := second.Acquire(req, now); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("a contender: got error %v, want ErrLeaseHeld", err)
	}
}
