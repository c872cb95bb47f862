package cases

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// MutationTargets returns the case that sends a stale token to each target of [Targets].
func MutationTargets() []harness.Case {
	return []harness.Case{
		{Guarantee: "I3", Name: "every-mutation-target-refuses-a-stale-token", Run: staleTargets, Doc: `
			A holder is preempted, and presents its fence to every method of the contract that takes one, with every
			kind of write that the method carries: both lists are generated from the interface. Each call is ErrFenced
			and leaves the run as it was. A store that checks the fence in Commit and forgets it in one method, or for
			one kind of write, has a hole for a paused process.`},
	}
}

// Target is a way to change a run under a fence: a method of the store with a kind of write.
type Target struct {
	// Method is the name of the method, of RunStore or of a capability.
	Method string
	// Write is the field of runstore.Writes that the call sets; empty for none.
	Write string

	send func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error
	fill func(w *runstore.Writes)
}

// String returns the target's name.
func (g Target) String() string {
	return strings.TrimSuffix(g.Method+" "+strings.ToLower(g.Write), " ")
}

// senders has a call for each method that takes a fence; without lists the fields of Writes that the
// method refuses.
var senders = map[string]struct {
	without []string
	send    func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error
}{
	"AcquireLease": {[]string{"Release", "Purge"}, func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error {
		req := kit.Acquiring(stale.Run, "successor", harness.TTL)
		req.Guards, req.Writes = []runstore.Guard{stale.Fence()}, w
		_, err := s.AcquireLease(ctx, req)
		return err
	}},
	"RenewLease": {[]string{"Release", "Purge"}, func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error {
		req := runstore.RenewRequest{Fence: stale.Fence(), TTL: harness.TTL, Writes: w}
		if !w.IsZero() {
			req.ID = runstore.NewBatchID()
		}
		_, err := s.RenewLease(ctx, req)
		return err
	}},
	"ReleaseLease": {[]string{"Release", "Purge"}, func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error {
		_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: stale.Fence(), Writes: w})
		return err
	}},
	"Commit": {nil, func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error {
		b := runstore.NewBatch(stale.Run, stale.Fence())
		b.Writes = w
		_, err := s.Commit(ctx, b)
		return err
	}},
	"Import": {[]string{"Purge"}, func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error {
		mover, ok := runstore.As[runstore.Mover](s)
		if !ok {
			return errNotApplicable
		}
		part := runstore.Import{Fence: stale.Fence(), Status: w.Status, Runnable: w.Runnable, Release: w.Release}
		at := time.Unix(1_700_000_000, 0)
		for i, e := range w.Events {
			part.Events = append(part.Events, runstore.Event{Seq: runstore.Seq(i) + 2, Kind: e.Kind, Data: e.Data, Time: at})
		}
		for _, r := range w.Records {
			was := runstore.Record{Key: r.Key, Value: r.Value, Version: 9, Created: runstore.Stamp{Time: at}, Updated: runstore.Stamp{Time: at}}
			part.Records = append(part.Records, runstore.PlacedRecord{Record: was})
		}
		_, err := mover.Import(ctx, part)
		return err
	}},
	"CommitMulti": {nil, func(ctx context.Context, s runstore.RunStore, stale runstore.Lease, w runstore.Writes) error {
		multi, ok := runstore.As[runstore.MultiCommitter](s)
		if !ok {
			return errNotApplicable
		}
		b := runstore.NewBatch(stale.Run, stale.Fence())
		b.Writes = w
		_, err := multi.CommitMulti(ctx, []runstore.Batch{b})
		return err
	}},
}

var errNotApplicable = errors.New("the store lacks the capability")

// fillers has a value for each field of runstore.Writes.
var fillers = map[string]func(w *runstore.Writes){
	"Events":   func(w *runstore.Writes) { w.Append("late", []byte("zombie")) },
	"Records":  func(w *runstore.Writes) { w.Put("record", []byte("zombie")) },
	"Status":   func(w *runstore.Writes) { status := runstore.Status(9); w.Status = &status },
	"Runnable": func(w *runstore.Writes) { w.Runnable = runstore.After(time.Hour) },
	"Release":  func(w *runstore.Writes) { w.Release = true },
	"Purge":    func(w *runstore.Writes) { w.Purge = true },
}

// interfaces are the contract and its optional interfaces: all of which a method can change a run.
var interfaces = []reflect.Type{
	reflect.TypeFor[runstore.RunStore](), reflect.TypeFor[runstore.MultiCommitter](), reflect.TypeFor[runstore.Notifier](),
	reflect.TypeFor[runstore.RunNotifier](), reflect.TypeFor[runstore.GarbageCollector](), reflect.TypeFor[runstore.EpochManager](),
	reflect.TypeFor[runstore.TermReader](),
	reflect.TypeFor[runstore.Mover](), reflect.TypeFor[runstore.StaleReader](), reflect.TypeFor[runstore.StrictCommitter](), reflect.TypeFor[runstore.Describer](),
}

// Targets returns the mutation targets, as the types of the contract define them: each method with a
// parameter that holds a fence or a batch, with each field of runstore.Writes. The error names a method
// or a field for which no call is known.
func Targets() ([]Target, error) {
	var all []Target
	var methods []string
	for _, contract := range interfaces {
		for i := range contract.NumMethod() {
			if m := contract.Method(i); takesFence(m.Type) {
				methods = append(methods, m.Name)
			}
		}
	}
	writes := reflect.TypeFor[runstore.Writes]()
	for _, method := range methods {
		sender, known := senders[method]
		if !known {
			return nil, fmt.Errorf("method %s takes a fence, and no call of it is known", method)
		}
		all = append(all, Target{Method: method, send: sender.send, fill: func(*runstore.Writes) {}})
		for i := range writes.NumField() {
			if !writes.Field(i).IsExported() { // set by an Import
				continue
			}
			field := writes.Field(i).Name
			fill, known := fillers[field]
			if !known {
				return nil, fmt.Errorf("runstore.Writes has a field %s, and no value of it is known", field)
			}
			if !slices.Contains(sender.without, field) {
				all = append(all, Target{Method: method, Write: field, send: sender.send, fill: fill})
			}
		}
	}
	return all, nil
}

// takesFence reports whether a parameter of a method holds a fence, a batch or guards.
func takesFence(method reflect.Type) bool {
	seen := map[reflect.Type]bool{}
	for i := range method.NumIn() {
		if holdsFence(method.In(i), seen) {
			return true
		}
	}
	return false
}

// holdsFence reports whether a value of type t holds a fence, a batch or guards. seen has the types
// that were looked at.
func holdsFence(t reflect.Type, seen map[reflect.Type]bool) bool {
	switch t {
	case reflect.TypeFor[runstore.Fence](), reflect.TypeFor[runstore.Batch](), reflect.TypeFor[runstore.Guard]():
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Slice, reflect.Pointer:
		return holdsFence(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsFence(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

func staleTargets(t harness.T, e *harness.Env) {
	targets, err := Targets()
	if err != nil {
		t.Fatalf("%v", err)
	}
	e.Create(t, "run")
	stale := e.Acquire(t, e.Store, "run", "holder")
	b := kit.Appending(stale, "before")
	b.Put("record", []byte("before"))
	kit.MustApply(t, e.Store, "the holder's batch", b)
	kit.MustAcquire(t, e.Store, kit.Preempting("run", "successor", "test"))
	run := e.Get(t, "run")
	before := kit.Dump(t, e.Store, "run")
	for i, target := range targets {
		var w runstore.Writes
		target.fill(&w)
		err := target.send(t.Context(), e.Store, stale, w)
		if err == errNotApplicable {
			continue
		}
		kit.CheckFenced(t, "a stale token at "+target.String(), err, stale, run)
		if i+1 == len(targets) || targets[i+1].Method != target.Method {
			kit.CheckUnchanged(t, "stale tokens at "+target.Method, before, kit.Dump(t, e.Store, "run"))
		}
	}
}
