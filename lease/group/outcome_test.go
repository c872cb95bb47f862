package group_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// cutOff applies the first commit after it was armed, loses the reply, and answers each later one with
// then.
type cutOff struct {
	runstore.RunStore
	armed   bool
	commits int
	then    error
}

func (s *cutOff) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if !s.armed {
		return s.RunStore.Commit(ctx, b)
	}
	if s.commits++; s.commits > 1 {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: s.then}
	}
	if _, err := s.RunStore.Commit(ctx, b); err != nil {
		return runstore.Committed{}, err
	}
	return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome}
}

// Attributes whose write was applied with a lost reply are not reported as refused when a repeat is
// not evaluated.
func TestSetAttributesOfUnknownOutcome(t *testing.T) {
	for _, then := range []error{
		runstore.ErrUnavailable, runstore.ErrClosed, runstore.ErrCorrupt, runstore.ErrInvalid, runstore.ErrUnsupported,
	} {
		t.Run(then.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &cutOff{RunStore: memory.New(nil).Open(), then: then}
				g := open(t, s, options())
				err := g.Join(t.Context(), group.MemberSpec{Name: "a", Attributes: []byte("old")}, func(ctx context.Context, m *group.Membership) error {
					bounded, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					s.armed = true
					err := m.SetAttributes(bounded, []byte("new"))
					s.armed = false
					if runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, then) || s.commits < 2 {
						t.Errorf("got %v after %d commits, want %v, of unknown outcome", err, s.commits, then)
					}
					members, err := g.Members(ctx)
					if err != nil || len(members.Members) != 1 || string(members.Members[0].Attributes) != "new" {
						t.Errorf("members %+v, %v; want the new attributes", members.Members, err)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}
