package tape_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestSharedKeyOfManyCallers checks that all callers get one key, those that race for the first included.
func TestSharedKeyOfManyCallers(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	keys := make([][32]byte, 16)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			var err error
			if keys[i], err = tape.New(s, nil).SharedKey(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, k := range keys {
		if k != keys[0] || k == [32]byte{} {
			t.Fatalf("the callers have the keys %x", keys)
		}
	}
}

// TestSharedKeyErrors fails each call of the store that makes the first key: before it is applied, and
// after. The error is returned, and later callers get one key.
func TestSharedKeyErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, op      string
		before, after error
		stored        int
	}{
		{"the read is refused", "records", errDown, nil, 0},
		{"the run is not created", "create", errDown, nil, 0},
		{"the reply of the creation is lost", "create", nil, errReplyLost, 0},
		{"the key is not stored", "commit", errDown, nil, 0},
		{"the reply of the commit is lost", "commit", nil, errReplyLost, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, s, _ := newTape(t)
			on := func(err error) func(string) error {
				return func(op string) error {
					if op == c.op {
						return err
					}
					return nil
				}
			}
			want := errors.Join(c.before, c.after)
			if c.op == "create" { // the key was not sent
				want = errDown
			}
			if _, err := tape.New(hook(s, on(c.before), on(c.after)), nil).SharedKey(t.Context()); runstore.KindOf(err) != runstore.KindOf(want) {
				t.Errorf("got %v, want %v", err, want)
			}
			stored := 0
			for _, err := range runstore.Records(t.Context(), s, "server/page-key", "") {
				if err == nil {
					stored++
				}
			}
			if stored != c.stored {
				t.Errorf("%d keys are stored, want %d", stored, c.stored)
			}
			first, err := tape.New(s, nil).SharedKey(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if again, err := tape.New(s, nil).SharedKey(t.Context()); err != nil || again != first {
				t.Errorf("the next caller: %x, %v, want %x", again, err, first)
			}
		})
	}
}

// TestDamagedSharedKey checks that a key that cannot be read is reported, and not replaced: tokens that
// other servers sealed with it would become invalid.
func TestDamagedSharedKey(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	if _, err := tp.SharedKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := runstore.NewBatch("server/page-key", runstore.Unguarded("damage"))
	b.Put("key", []byte("x"))
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.SharedKey(t.Context()); !errors.Is(err, tape.ErrFormat) {
		t.Errorf("got %v, want ErrFormat", err)
	}
	for r, err := range runstore.Records(t.Context(), s, "server/page-key", "") {
		if err != nil || string(r.Value) != "x" {
			t.Errorf("the record is %q, %v", r.Value, err)
		}
	}
}
