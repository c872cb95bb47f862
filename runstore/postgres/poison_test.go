package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// A write at which the engine fails does not take those down that share its round
// trip: they are sent again, each alone.
func TestNeighboursOfAFailureGoOn(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	exec(t, conn, `CREATE FUNCTION tapestore.poison() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF new.data = 'poison' THEN RAISE EXCEPTION 'poisoned'; END IF; RETURN new; END $$`)
	exec(t, conn, `CREATE TRIGGER poison BEFORE INSERT ON tapestore.events FOR EACH ROW EXECUTE FUNCTION tapestore.poison()`)
	s := open(t, address)
	lease := hold(t, s, "run")
	errs := grouped(t, s, address, 9, func(i int) error {
		payload := "event"
		if i == 5 {
			payload = "poison"
		}
		b := appending(lease, payload)
		if i%2 == 0 { // of both ways to write
			b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), nil)
		}
		_, err := s.Commit(t.Context(), b)
		return err
	}, func() {})
	for i, err := range errs {
		if i == 5 {
			if !errors.Is(err, runstore.ErrUnavailable) {
				t.Errorf("the poisoned commit: got error %v, want ErrUnavailable", err)
			}
		} else if err != nil {
			t.Errorf("commit %d, beside the poisoned one: %v", i, err)
		}
	}
	if n := get[int](t, conn, `SELECT count(*)::int FROM tapestore.events`); n != 9 {
		t.Errorf("%d events are stored, want 9", n)
	}
}
