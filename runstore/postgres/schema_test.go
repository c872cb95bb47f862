package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Two stores in two schemas of one database know nothing of each other.
func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	address := database(t)
	a, b := open(t, address), open(t, with(address, "schema=other_store"))
	lease := hold(t, a, "run")
	commit(t, a, appending(lease, "in a"))
	if _, err := b.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("the run of one store in the other: got %v, want ErrNotFound", err)
	}
	if _, err := b.Commit(t.Context(), appending(lease, "zombie")); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("a write under the lease of another store: got %v, want ErrNotFound", err)
	}
	other := hold(t, b, "run")
	commit(t, b, appending(other, "in b"))
	if epoch, err := b.RaiseEpoch(t.Context(), "test"); err != nil || epoch != 1 {
		t.Fatalf("got epoch %d, %v", epoch, err)
	}
	commit(t, a, appending(lease, "still in a"))
	if epochs, err := a.Epochs(t.Context()); err != nil || len(epochs) != 0 {
		t.Errorf("got epochs %+v, %v, want none", epochs, err)
	}
	for _, e := range feed(t, a, 0, 2) {
		if data := string(e.Data); data != "in a" && data != "still in a" {
			t.Errorf("the feed has %q of the other store", data)
		}
	}
}

// The suite's cases of statements of every kind pass in a schema of another name.
func TestConformanceInAnotherSchema(t *testing.T) {
	t.Parallel()
	h := engines.Postgres(server(t), url.Values{"schema": {"another"}})
	cases := map[string]bool{}
	for _, c := range conformance.Cases() {
		if cases[c.Guarantee] { // one of each guarantee
			continue
		}
		t.Run(c.Guarantee+"/"+c.Name, func(t *testing.T) {
			switch r := conformance.RunCase(t.Context(), h, c); r.Status {
			case conformance.Failed:
				t.Error(r.Reason)
			case conformance.NotApplicable:
				t.Skipf("not applicable: %s", r.Reason)
			case conformance.Passed:
				cases[c.Guarantee] = true
			}
		})
	}
}

// Behind a proxy that pools transactions there is no LISTEN, and callers that wait are woken by
// polling, for other handles' commits too.
func TestWakeupsByPolling(t *testing.T) {
	t.Parallel()
	address := database(t)
	pooled, plain := open(t, with(address, "pooled=yes")), open(t, address)
	postgres.TakeForForeign(plain)
	lease := hold(t, plain, "run")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	wakeups, err := pooled.Wakeups(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		commit(t, plain, appending(lease, "event"))
		select {
		case <-wakeups:
		case <-ctx.Done():
			t.Fatal("not woken")
		}
	}
	if n := get[int](t, connect(t, address), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`); n != 0 {
		t.Errorf("%d sessions listen", n)
	}
}

// Without a proxy the wake-up comes by LISTEN.
func TestWakeupsByListening(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"tapestore", "another"} {
		address := with(database(t), "schema="+schema)
		waiter, writer := open(t, address), open(t, address)
		postgres.TakeForForeign(writer)
		lease := hold(t, writer, "run")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		wakeups, err := waiter.Wakeups(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for drained := false; !drained; { // the hints of the creation
			select {
			case <-wakeups:
			case <-time.After(200 * time.Millisecond):
				drained = true
			}
		}
		commit(t, writer, appending(lease, "event"))
		select {
		case <-wakeups:
		case <-ctx.Done():
			t.Fatal("not woken")
		}
	}
}
