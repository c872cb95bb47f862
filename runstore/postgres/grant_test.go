package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// released is a run whose lease was released, and a connection that has locked its row. acquire
// requests the lease under a grant id, and returns when the request waits.
func released(t *testing.T) (other execer, acquire func(grant runstore.GrantID) (answer func() (runstore.Granted, error)), now func() time.Time) {
	t.Helper()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, address)
	exec(t, conn, "BEGIN")
	acquire = func(grant runstore.GrantID) func() (runstore.Granted, error) {
		type result struct {
			runstore.Granted
			error
		}
		answered := make(chan result, 1)
		go func() {
			granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: grant},
			})
			answered <- result{granted, err}
		}()
		awaitLocked(t, address, 1)
		return func() (runstore.Granted, error) {
			r := <-answered
			return r.Granted, r.error
		}
	}
	return conn, acquire, func() time.Time {
		t.Helper()
		at, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
}

// A request for the lease that waits for the row while its grant is made, and ended by a later
// one, makes no second grant, although the former grants are those of before the wait.
func TestGrantThatWasMadeMeanwhile(t *testing.T) {
	t.Parallel()
	other, acquire, _ := released(t)
	exec(t, other, `UPDATE tapestore.runs SET token = token + 2, grant_state = 2, grant_id = 'later'`)
	exec(t, other, `INSERT INTO tapestore.grants (run, former) SELECT no, ARRAY[tapestore.former('mine'), tapestore.former('grant-run')] FROM tapestore.runs`)
	answer := acquire("mine")
	exec(t, other, "COMMIT")
	if granted, err := answer(); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("got %+v, %v, want ErrFenced", granted, err)
	}
}

// A lease that its holder renews late, while another waits to take it over, is not free any more.
func TestGrantThatLostToALateRenewal(t *testing.T) {
	t.Parallel()
	other, acquire, _ := released(t)
	exec(t, other, `UPDATE tapestore.runs SET grant_state = 1, expires = clock_timestamp() - interval '1 minute'`)
	exec(t, other, `COMMIT`)
	exec(t, other, `BEGIN`)
	exec(t, other, `UPDATE tapestore.runs SET expires = clock_timestamp() + interval '1 hour'`)
	answer := acquire("mine")
	exec(t, other, "COMMIT")
	if granted, err := answer(); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("got %+v, %v, want ErrLeaseHeld", granted, err)
	}
}

// A lease counts from the time at which its request had the row.
func TestLeaseCountsFromTheLock(t *testing.T) {
	t.Parallel()
	other, acquire, now := released(t)
	exec(t, other, `SELECT FROM tapestore.runs FOR NO KEY UPDATE`)
	answer := acquire("mine")
	at := now()
	exec(t, other, "ROLLBACK")
	granted, err := answer()
	if err != nil {
		t.Fatal(err)
	}
	if granted.Committed.Time.Before(at) || granted.ExpiresAt.Before(at.Add(time.Minute)) {
		t.Errorf("granted at %v until %v, while it had the row at %v at the earliest", granted.Committed.Time, granted.ExpiresAt, at)
	}
}

// A grant whose request waited for a raise of the epoch has the new epoch.
func TestGrantAfterARaise(t *testing.T) {
	t.Parallel()
	other, acquire, _ := released(t)
	exec(t, other, `SELECT tapestore.raise_epoch('test', '', 0, false)`)
	answer := acquire("mine")
	exec(t, other, "COMMIT")
	granted, err := answer()
	if err != nil || granted.Token.Epoch() != 1 {
		t.Errorf("got %+v, %v, want a token of epoch 1", granted, err)
	}
}

// A release of a run that has results to evict evicts them.
func TestReleasesForgetResults(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	conn := connect(t, address)
	exec(t, conn, `INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
		SELECT no, i, 0, 0, created, 0, 'n'::bytea || int8send(i), '{}' FROM tapestore.runs, generate_series(0, 510) i`)
	exec(t, conn, `UPDATE tapestore.runs SET batches = 511`)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	if rows := get[int](t, conn, `SELECT count(*) FROM tapestore.batches`); rows != 256 {
		t.Errorf("%d results, want 256", rows)
	}
}

// A release whose reply was lost is acknowledged, although another has the lease when that shows.
func TestLostReleaseAfterALaterGrant(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	conn := connect(t, address)
	exec(t, conn, `CREATE FUNCTION public.taken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.token := NEW.token + 1; NEW.grant_id := 'theirs'; NEW.owner := 'thief'; NEW.grant_state := 1; RETURN NEW; END $$`)
	exec(t, conn, `CREATE TRIGGER taken BEFORE UPDATE ON tapestore.runs FOR EACH ROW WHEN (NEW.grant_state = 2) EXECUTE FUNCTION public.taken()`)
	w.lose(loseReply, "")
	done, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	if err != nil || done.Replayed || done.Time.IsZero() {
		t.Errorf("got %+v, %v, want the release as it was", done, err)
	}
	if len(w.sent()) == 0 {
		t.Error("nothing was lost")
	}
}
