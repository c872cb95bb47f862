package crossruncases

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// interposed is the store of a driver while another caller makes a step: it calls begin before the driver's
// commit number at, and end before the driver's next read of records.
type interposed struct {
	runstore.RunStore
	at         int
	begin, end func()
}

func (s *interposed) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.at--; s.at == 0 {
		s.begin()
	}
	return s.RunStore.Commit(ctx, b)
}

func (s *interposed) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if end := s.end; end != nil && s.at <= 0 {
		s.end = nil
		end()
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

// stepOfTwoCallers refuses a write of a driver because of another caller's step, which has ended when the
// driver looks for it.
func stepOfTwoCallers(t harness.T, e *harness.Env, m stepMode) {
	ctx, network := t.Context(), m.lossless(e.Reopen(t))
	for _, missing := range []bool{false, true} {
		for at := 1; at <= 2; at++ {
			what := fmt.Sprintf("another step begins before write %d, run missing %t", at, missing)
			p := newPair(t, e, fmt.Sprintf("%d-%t", at, missing), false)
			third := newPairWith(t, e, fmt.Sprintf("%d-%t-third", at, missing), p.other, false).lead
			ended := false
			s := &interposed{RunStore: network, at: at}
			s.begin = func() {
				lead := runstore.NewBatch(p.lead, p.lease.Fence())
				other := runstore.NewBatch(third, runstore.AtVersion("b", 1))
				other.Put("b", []byte("theirs"))
				hit := false
				_, err := crossrun.Commit(ctx, m.on(e.Store, cutAt(3, kit.RequestLost, &hit)), lead, other)
				kit.Equal(t, what+": its outcome before it ends", runstore.OutcomeOf(err), runstore.Unknown)
			}
			s.end = func() {
				done, err := crossrun.Recover(ctx, network, p.lease.Fence())
				ended = done.Applied
				if err != nil {
					t.Errorf("%s: recover: %v", what, err)
				}
			}
			lead, other := p.step("step")
			if missing {
				lead, other = runstore.NewBatch(p.lead, p.lease.Fence()), runstore.NewBatch("missing", runstore.AtVersion("b", 1))
			}
			_, err := crossrun.Commit(ctx, s, lead, other)
			if missing {
				harness.Refused(t, what, err, runstore.ErrNotFound)
			} else if err != nil {
				t.Errorf("%s: the step: %v", what, err)
			}
			kit.Equal(t, what+": it was in progress until the driver read", ended, true)
			kit.Equal(t, what+": what it wrote", string(kit.Record(t, e.Store, third, "b").Value), "theirs")
			p.checkAtomic(t, e, what, "step", err)
		}
	}
}

// stepEndsBeforeItsRepeat repeats a step that another caller completes while the repeat is on its way.
func stepEndsBeforeItsRepeat(t harness.T, e *harness.Env, m stepMode) {
	ctx, network := t.Context(), m.lossless(e.Reopen(t))
	for at := 1; at <= 5; at++ {
		what := fmt.Sprintf("the step ends before write %d of its repeat", at)
		p := newPair(t, e, fmt.Sprint(at), false)
		lead, other := runstore.NewBatch(p.lead, p.lease.Fence()), runstore.NewBatch(p.other, runstore.AtVersion("b", 1))
		lead.Append("test", []byte("step/first"))
		other.Append("test", []byte("step/first"))
		lead.ID = "step"
		hit := false
		_, err := crossrun.Commit(ctx, m.on(e.Store, cutAt(5, kit.RequestLost, &hit)), lead, other)
		kit.Equal(t, what+": the outcome of the first call", runstore.OutcomeOf(err), runstore.Unknown)
		s := &interposed{RunStore: network, at: at, begin: func() {
			if _, err := crossrun.Settle(ctx, network, p.lead); err != nil {
				t.Errorf("%s: settle: %v", what, err)
			}
		}}
		repeat, err := crossrun.Commit(ctx, s, lead, other)
		if err != nil {
			t.Errorf("%s: the repeat: %v", what, err)
		}
		kit.Equal(t, what+": the lead's event", repeat.Lead.FirstSeq, runstore.Seq(2))
		if !p.checkAtomic(t, e, what, "step", err) {
			t.Errorf("%s: it was not made", what)
		}
	}
}
