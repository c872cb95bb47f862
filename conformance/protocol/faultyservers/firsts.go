package faultyservers

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func firstServers() []Server {
	return []Server{
		{
			Name: "second-outcome-wins", Case: "T2/second-outcome-changes-nothing",
			Breaks: "It overwrites the outcome of an effect.",
			fault: func() fault {
				return (&overwriting{outcomes: map[string]*tapepb.EffectRecord{}}).fault(func(req proto.Message, e *tapepb.EffectRecord) {
					if m, ok := req.(*tapepb.CompleteEffectRequest); ok {
						e.Status, e.ResponseJson, e.ErrorJson = m.GetStatus(), m.GetResponseJson(), m.GetErrorJson()
					}
				})
			},
		},
		{
			Name: "reconciliation-overwrites", Case: "T2/second-outcome-changes-nothing",
			Breaks: "It lets a reconciler overwrite a CONFIRMED effect.",
			fault: func() fault {
				return (&overwriting{outcomes: map[string]*tapepb.EffectRecord{}}).fault(func(req proto.Message, e *tapepb.EffectRecord) {
					if m, ok := req.(*tapepb.ReconcileEffectRequest); ok {
						e.Status, e.ResponseJson = m.GetResolvedStatus(), m.GetResponseJson()
					}
				})
			},
		},
		{
			Name: "confirmed-effect-is-demoted", Case: "outbox/39-observed-confirmed",
			Breaks: "It makes a CONFIRMED effect PENDING again when an observer does not find it, so the effect is dispatched twice.",
			fault: func() fault {
				return (&overwriting{outcomes: map[string]*tapepb.EffectRecord{}}).fault(func(req proto.Message, e *tapepb.EffectRecord) {
					m, ok := req.(*tapepb.RecordExternalObservationRequest)
					if ok && m.GetResolution() == tapepb.EffectResolution_EFFECT_RESOLUTION_ABSENT {
						e.Status = tapepb.EffectStatus_EFFECT_STATUS_PENDING
					}
				})
			},
		},
		{
			Name: "late-report-revives", Case: "T3/late-report-revives-nothing",
			Breaks: "It makes an effect with an outcome PENDING when a failed dispatch is reported late.",
			fault: func() fault {
				return (&overwriting{outcomes: map[string]*tapepb.EffectRecord{}}).fault(func(req proto.Message, e *tapepb.EffectRecord) {
					if m, ok := req.(*tapepb.RecordDispatchAttemptRequest); ok && m.GetNextDispatchAtMs() > 0 {
						e.Status = tapepb.EffectStatus_EFFECT_STATUS_PENDING
					}
				})
			},
		},
		{
			Name: "second-decision-wins", Case: "decisions/17-first-decision-stays",
			Breaks: "It returns the repeat's content for a repeated decision, so a resumed run takes another path than its journal.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					answer, err := c.forward(c.req)
					if m, ok := c.req.(*tapepb.RecordDecisionRequest); ok && err == nil {
						d := answer.(*tapepb.DecisionRecord)
						d.Model, d.ResponseJson = m.GetModel(), m.GetResponseJson()
					}
					return answer, err
				}}
			},
		},
		{
			Name: "business-key-per-run", Case: "T5/one-effect-over-runs",
			Breaks: "It looks for a business key in the caller's run alone, so two runs pay one invoice.",
			fault:  changing(func(m *tapepb.BeginEffectRequest) { m.BusinessKey = "" }),
		},
		{
			Name: "obligation-registered-twice", Case: "obligations/41-registered-once",
			Breaks: "It registers an obligation at every call, so it is compensated twice.",
			fault: func() fault {
				var mu sync.Mutex
				n := 0
				return fault{unary: func(c call) (proto.Message, error) {
					m, ok := c.req.(*tapepb.RegisterCompensationRequest)
					if !ok {
						return c.forward(c.req)
					}
					mu.Lock()
					n++
					m.Kind += string(rune('a' + n%26))
					mu.Unlock()
					return c.forward(m)
				}}
			},
		},
	}
}

// overwriting is a server that overwrites effects. It keeps the overwritten effects and returns
// them from then on.
type overwriting struct {
	mu       sync.Mutex
	outcomes map[string]*tapepb.EffectRecord
}

// fault applies overwrite to each effect that a call returns.
func (o *overwriting) fault(overwrite func(req proto.Message, e *tapepb.EffectRecord)) fault {
	return fault{unary: func(c call) (proto.Message, error) {
		answer, err := c.forward(c.req)
		if err != nil {
			return nil, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		switch a := answer.(type) {
		case *tapepb.EffectRecord:
			before := proto.CloneOf(a)
			if overwrite(c.req, a); !proto.Equal(before, a) {
				o.outcomes[a.GetRunId()+" "+a.GetIdempotencyKey()] = proto.CloneOf(a)
			}
		case *tapepb.GetEffectResponse:
			if e, ok := o.outcomes[a.GetEffect().GetRunId()+" "+a.GetEffect().GetIdempotencyKey()]; ok {
				a.Effect = proto.CloneOf(e)
			}
		}
		return answer, nil
	}}
}
