package emulators

import (
	"testing"

	"google.golang.org/grpc/codes"
)

// A database that was given back is given out again, with its tables and without its rows but
// those that are kept; and not for ever.
func TestSpannerSpareDatabases(t *testing.T) {
	t.Parallel()
	o := newOnSpanner(t, startSpanner(t, nil))
	if !o.Shimmed() {
		t.Skip("not applicable: transactions of this emulator are not the proxy's, so none of its databases is given out again")
	}
	first := o.db
	for use := 1; use < spannerUses; use++ {
		o.put(o.client(), map[string]int64{"row": 1})
		if use == 1 { // what is kept
			if err := o.GiveBack(t.Context(), o.db, "T"); err != nil {
				t.Fatal(err)
			}
		} else if err := o.GiveBack(t.Context(), o.db); err != nil {
			t.Fatal(err)
		}
		var err error
		if o.db, err = o.SpareDatabase(t.Context()); err != nil || o.db != first {
			t.Fatalf("after use %d: got %v, %v, want %v", use, o.db, err, first)
		}
		want := 0
		if use == 1 {
			want = 1
		}
		o.raw().rows(want)
	}
	o.givenUp("a database that was used often")
}

// A database in which something is under way is dropped, so that nobody meets it later.
func TestSpannerSpareDatabaseInUse(t *testing.T) {
	t.Parallel()
	o := newOnSpanner(t, startSpanner(t, nil))
	o.raw().begin()
	o.givenUp("a database with an open transaction")

	o = newOnSpanner(t, o.SpannerServer)
	c := o.raw()
	held := o.Hold(0, func(call SpannerCall) bool { return call.Method == "ExecuteSql" && call.Database == o.db.String() })
	defer held.End()
	answered := make(chan error, 1)
	go func() {
		_, err := c.sql(t.Context(), nil, 0, "SELECT K FROM T")
		answered <- err
	}()
	if err := held.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	o.givenUp("a database with a call under way")
	held.End()
	c.is("the call", <-answered, codes.NotFound)
}

// givenUp fails the test unless a database that is given back is not given out again.
func (o onSpanner) givenUp(what string) {
	o.t.Helper()
	if err := o.GiveBack(o.t.Context(), o.db); err != nil {
		o.t.Fatalf("%s: %v", what, err)
	}
	next, err := o.SpareDatabase(o.t.Context())
	if err != nil || next == o.db {
		o.t.Errorf("%s: got %v, %v, want another than %v", what, next, err, o.db)
	}
}
