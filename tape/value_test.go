package tape_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

var valueKey = tape.ValueKey{Namespace: "treasury", Key: "rate"}

func writeValue(t *testing.T, tp *tape.Tape, json string, at runstore.Version) tape.Value {
	t.Helper()
	v, err := tp.WriteValue(t.Context(), valueKey, json, "w", at, runstore.Fence{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// versionsOf returns the versions of the value as its journal has them, and checks that the present
// one is the last of them.
func versionsOf(t *testing.T, s runstore.RunStore) string {
	t.Helper()
	var all []string
	var last tape.Value
	for e, err := range runstore.Journal(t.Context(), s, valueKey.Run(), 1) {
		if errors.Is(err, runstore.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if last, err = tape.ValueOf(e); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%d:%s", last.Version, last.JSON))
		if last.Version != runstore.Version(e.Seq) {
			t.Errorf("entry %d is version %d", e.Seq, last.Version)
		}
	}
	got, found, err := tape.New(s, nil).GetValue(t.Context(), valueKey)
	if err != nil || found != (len(all) > 0) || found && got != last {
		t.Errorf("GetValue = %+v, %t, %v, and the journal ends with %+v", got, found, err, last)
	}
	return strings.Join(all, " ")
}

func TestValueLife(t *testing.T) { // 56, 57
	t.Parallel()
	tp, s, _ := newTape(t)
	refused := func(at runstore.Version, have string) {
		t.Helper()
		_, err := tp.WriteValue(t.Context(), valueKey, "no", "w", at, runstore.Fence{})
		want := fmt.Sprintf("write_value: version conflict (have %s, expected %d)", have, at)
		if !errors.Is(err, tape.ErrRefused) || err.Error() != want {
			t.Errorf("write at version %d: %v, want %q", at, err, want)
		}
	}
	deleted := func(want runstore.Version, wantFound bool) {
		t.Helper()
		v, found, err := tp.DeleteValue(t.Context(), valueKey, runstore.Fence{})
		if err != nil || found != wantFound || v.Version != want || wantFound && (v.JSON != "" || v.Writer != "w" || !v.Deleted) {
			t.Errorf("delete = %+v, %t, %v, want version %d, %t", v, found, err, want, wantFound)
		}
	}
	deleted(0, false)
	refused(3, "0")
	if v := writeValue(t, tp, "1", 0); v.Version != 1 || v.JSON != "1" || v.Writer != "w" || v.ValueKey != valueKey || v.Updated.IsZero() {
		t.Errorf("first write = %+v", v)
	}
	refused(0, "1")
	refused(2, "1")
	writeValue(t, tp, `"two"`, 1)
	deleted(3, true)
	deleted(4, true)
	refused(0, "4")
	if v := writeValue(t, tp, "5", tape.AnyVersion); v.Version != 5 {
		t.Errorf("write to a tombstone = %+v", v)
	}
	if got, want := versionsOf(t, s), `1:1 2:"two" 3: 4: 5:5`; got != want {
		t.Errorf("versions %s, want %s", got, want)
	}
	var payloads []string
	for e, err := range runstore.Journal(t.Context(), s, valueKey.Run(), 2) {
		if err != nil {
			t.Fatal(err)
		}
		entry := tape.EntryOf(valueKey.Run(), e)
		payloads = append(payloads, entry.Subject+" "+entry.Payload)
	}
	want := `/tape/value/changed/treasury/rate {"key":"rate","namespace":"treasury","value":{"key":"rate","namespace":"treasury","value_json":"\"two\"","version":2},"version":2,"writer":"w"}` +
		"\n" + `/tape/value/deleted/treasury/rate {"deleted":true,"key":"rate","namespace":"treasury","version":3,"writer":"w"}`
	if got := strings.Join(payloads[:2], "\n"); got != want {
		t.Errorf("entries:\n%s\nwant:\n%s", got, want)
	}
	if runs, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10}); err != nil || len(runs) > 0 {
		t.Errorf("runs: %+v, %v, want none: a value is no run of a list", runs, err)
	}
}

// Of writers at one version one wins; writers at any version all win.
func TestConcurrentValues(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]runstore.Version{"any version": tape.AnyVersion, "one version": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tp, s, _ := newTape(t)
			const writers = 8
			var all sync.WaitGroup
			errs := make([]error, writers)
			for i := range writers {
				all.Go(func() {
					_, errs[i] = tp.WriteValue(t.Context(), valueKey, fmt.Sprint(i), "w", at, runstore.Fence{})
				})
			}
			all.Wait()
			wins := 0
			for _, err := range errs {
				if err == nil {
					wins++
				} else if !errors.Is(err, tape.ErrRefused) {
					t.Error(err)
				}
			}
			want := map[bool]int{true: writers, false: 1}[at == tape.AnyVersion]
			if got := len(strings.Fields(versionsOf(t, s))); wins != want || got != want {
				t.Errorf("%d writers succeed and there are %d versions, want %d", wins, got, want)
			}
		})
	}
}

func TestValueInput(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	huge := strings.Repeat("x", runstore.MaxEventData)
	for field, write := range map[string]struct {
		key          tape.ValueKey
		json, writer string
	}{
		"namespace":  {key: tape.ValueKey{Namespace: huge[:tape.MaxValueNames+1]}},
		"key":        {key: tape.ValueKey{Key: "\xff"}},
		"writer":     {writer: huge[:tape.MaxValueNames+1]},
		"value_json": {json: huge},
	} {
		for _, at := range []runstore.Version{tape.AnyVersion, 0, 7} {
			_, err := tp.WriteValue(t.Context(), write.key, write.json, write.writer, at, runstore.Fence{})
			var limit *runstore.InputError
			if !errors.As(err, &limit) || limit.Field != field {
				t.Errorf("at %d: %v, want an error that names %s", at, err, field)
			}
		}
	}
	largest := huge[:runstore.MaxEventData-200]
	if v := writeValue(t, tp, largest, 0); v.JSON != largest {
		t.Errorf("the value has %d bytes, want %d", len(v.JSON), len(largest))
	}
	if got := versionsOf(t, s); got != "1:"+largest {
		t.Errorf("refused input has made a version: %d bytes", len(got))
	}
}

// A reply that is lost, of any step of a write, makes one version.
func TestLostRepliesOfValues(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: s}, nil)
	for at := range runstore.Version(4) {
		writeValue(t, tp, fmt.Sprint(at), at)
	}
	for range 2 {
		if _, found, err := tp.DeleteValue(t.Context(), valueKey, runstore.Fence{}); err != nil || !found {
			t.Errorf("delete: %t, %v", found, err)
		}
	}
	writeValue(t, tp, "6", tape.AnyVersion)
	if got, want := versionsOf(t, s), "1:0 2:1 3:2 4:3 5: 6: 7:6"; got != want {
		t.Errorf("versions %s, want %s", got, want)
	}
}

// valueWrites are the writes to a value that is at version 1, and its versions after each.
var valueWrites = map[string]struct {
	do   func(context.Context, *tape.Tape, runstore.Fence) error
	want string
}{
	"at any version": {func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.WriteValue(ctx, valueKey, "2", "w", tape.AnyVersion, f)
		return err
	}, valueBefore + " 2:2"},
	"at a version": {func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.WriteValue(ctx, valueKey, "2", "w", 1, f)
		return err
	}, valueBefore + " 2:2"},
	"delete": {func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, _, err := tp.DeleteValue(ctx, valueKey, f)
		return err
	}, valueBefore + " 2:"},
}

const valueBefore = "1:1"

func eachValueWrite(t *testing.T, test func(t *testing.T, fresh func() runstore.RunStore, do func(context.Context, *tape.Tape, runstore.Fence) error, want string)) {
	for kind, wrap := range twoRunStores {
		for name, w := range valueWrites {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, func() runstore.RunStore { return wrap(memory.New(nil).Open()) }, w.do, w.want)
			})
		}
	}
}

// A fence that is not current writes nothing and creates nothing.
func TestValueUnderAFence(t *testing.T) {
	t.Parallel()
	eachValueWrite(t, func(t *testing.T, fresh func() runstore.RunStore, do func(context.Context, *tape.Tape, runstore.Fence) error, want string) {
		s := fresh()
		tp := tape.New(s, nil)
		lead := begin(t, tp, "i")
		next := begin(t, tp, "i")
		watched := hook(s, func(op string) error {
			if op == "create" {
				t.Error("a run was created for a write that is refused")
			}
			return nil
		}, nil)
		unfenced := do(t.Context(), tape.New(watched, nil), lead.Lease.Fence())
		if !errors.Is(unfenced, runstore.ErrFenced) && !errors.Is(unfenced, tape.ErrRefused) {
			t.Errorf("a stale fence, without a value: %v", unfenced)
		}
		if got := versionsOf(t, s); got != "" {
			t.Errorf("versions %s, want none", got)
		}
		writeValue(t, tp, "1", 0)
		if err := do(t.Context(), tp, lead.Lease.Fence()); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("a stale fence: %v, want ErrFenced", err)
		}
		gone := next.Lease
		gone.Run = "none"
		if err := do(t.Context(), tp, gone.Fence()); !errors.Is(err, tape.ErrNoSuchRun) {
			t.Errorf("the fence of no run: %v, want ErrNoSuchRun", err)
		}
		if got := versionsOf(t, s); got != valueBefore {
			t.Errorf("versions %s, want %s", got, valueBefore)
		}
		if err := do(t.Context(), tp, next.Lease.Fence()); err != nil {
			t.Errorf("the current fence: %v", err)
		}
		if got := versionsOf(t, s); got != want {
			t.Errorf("versions %s, want %s", got, want)
		}
	})
}

// A driver is paused before each of its store calls while its grant ends, and wakes up. Once the call
// that ended the grant has returned, the value does not change.
func TestValueOfAPausedDriver(t *testing.T) {
	t.Parallel()
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachValueWrite(t, func(t *testing.T, fresh func() runstore.RunStore, do func(context.Context, *tape.Tape, runstore.Fence) error, want string) {
				for at := 1; ; at++ {
					s := fresh()
					tp := tape.New(s, nil)
					lead := begin(t, tp, "i")
					writeValue(t, tp, "1", 0)
					then, n := "", 0
					paused := hook(s, func(string) error {
						if n++; n != at {
							return nil
						}
						err := end(t.Context(), s, lead)
						then = versionsOf(t, s)
						return err
					}, nil)
					err := do(t.Context(), tape.New(paused, nil), lead.Lease.Fence())
					if n < at {
						return
					}
					got := versionsOf(t, s)
					if got != then {
						t.Errorf("paused before call %d: the versions were %s when the grant had ended, and are %s", at, then, got)
					}
					switch applied := got == want; {
					case err == nil && !applied:
						t.Errorf("paused before call %d: no error, and the versions are %s", at, got)
					case err != nil && runstore.OutcomeOf(err) == runstore.NotApplied && applied:
						t.Errorf("paused before call %d: %v, and the versions are %s", at, err, got)
					case err != nil && !fitsEnding(name, err):
						t.Errorf("paused before call %d: %v", at, err)
					}
					checkNoStep(t, s, lead.ID)
				}
			})
		})
	}
}

// A driver dies before each of its store calls: the write is applied once or not at all, and an error
// that says so is right.
func TestValueOfADriverThatDies(t *testing.T) {
	t.Parallel()
	eachValueWrite(t, func(t *testing.T, fresh func() runstore.RunStore, do func(context.Context, *tape.Tape, runstore.Fence) error, want string) {
		for at := 1; ; at++ {
			s := fresh()
			tp := tape.New(s, nil)
			lead := begin(t, tp, "i")
			writeValue(t, tp, "1", 0)
			n := 0
			dying := hook(failing(s, at-1), func(string) error { n++; return nil }, nil)
			err := do(t.Context(), tape.New(dying, nil), lead.Lease.Fence())
			if n < at {
				return
			}
			begin(t, tp, "i")
			checkNoStep(t, s, lead.ID)
			got := versionsOf(t, s)
			if got != valueBefore && got != want {
				t.Errorf("died before call %d: the versions are %s", at, got)
			}
			if got == valueBefore && err == nil || got != valueBefore && runstore.OutcomeOf(err) == runstore.NotApplied {
				t.Errorf("died before call %d: the versions are %s after %v", at, got, err)
			}
		}
	})
}

// A mark of a step over two runs that was refused is a deleted record of the value's run, so that the
// value's own record begins above version 1.
func TestValuesBeginAtOneAfterARefusedStep(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: valueKey.Run(), Unlisted: true}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		put := runstore.NewBatch(valueKey.Run(), runstore.Unguarded("a mark"))
		put.Put("crossrun/mark", nil)
		remove := runstore.NewBatch(valueKey.Run(), runstore.Unguarded("a mark"))
		remove.Delete("crossrun/mark")
		for _, b := range []runstore.Batch{put, remove} {
			if _, err := s.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	writeValue(t, tp, "70", 0)
	writeValue(t, tp, "80", 1)
	if _, found, err := tp.DeleteValue(t.Context(), valueKey, runstore.Fence{}); err != nil || !found {
		t.Fatalf("DeleteValue = %t, %v", found, err)
	}
	writeValue(t, tp, "90", tape.AnyVersion)
	if got, want := versionsOf(t, s), "1:70 2:80 3: 4:90"; got != want {
		t.Errorf("versions are %s, want %s", got, want)
	}
	if _, err := tp.WriteValue(t.Context(), valueKey, "no", "w", 2, runstore.Fence{}); err == nil || !strings.Contains(err.Error(), "have 4, expected 2") {
		t.Errorf("a write at version 2: %v", err)
	}
}

// A client may expect any version: the last one is refused as every other that the value does not have.
func TestValueAtTheLastVersion(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	writeValue(t, tp, "70", 0)
	for _, at := range []runstore.Version{math.MaxInt64 - 1, math.MaxInt64} {
		if _, err := tp.WriteValue(t.Context(), valueKey, "no", "w", at, runstore.Fence{}); !errors.Is(err, tape.ErrRefused) {
			t.Errorf("a write at version %d: %v, want ErrRefused", at, err)
		}
	}
	if got, want := versionsOf(t, s), "1:70"; got != want {
		t.Errorf("versions are %s, want %s", got, want)
	}
}
