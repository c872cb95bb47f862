package faultyservers

import (
	"encoding/json"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func lostServers() []Server {
	return []Server{
		{
			Name: "wake-up-lost", Case: "T4/look-and-signal-at-once",
			Breaks: "It parks a run after a check that a signal has overtaken: the run waits forever although its signal is stored.",
			fault: func() fault {
				return (&losingSignals{delivered: map[string]chan struct{}{}, texts: map[string]string{}}).fault()
			},
		},
		{
			Name: "charges-read-and-written", Case: "T12/charges-add-up",
			Breaks: "It reads the totals and writes them in two steps, so concurrent charges are lost.",
			fault:  func() fault { return (&losingCharges{sums: map[string]*tapepb.BudgetState{}}).fault() },
		},
		{
			Name: "event-without-its-state", Case: "T9/state-and-events-agree",
			Breaks: "It appends an event and merges its delta in two steps: readers see the one without the other, and concurrent deltas are lost.",
			fault:  func() fault { return fault{unary: appendInTwoSteps} },
		},
		{
			Name: "oldest-events", Case: "sessions/80-append-creates",
			Breaks: "It returns the oldest events of a session instead of the newest.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					m, ok := c.req.(*tapepb.GetSessionRequest)
					if !ok || m.GetMaxEvents() <= 0 {
						return c.forward(c.req)
					}
					n := int(m.GetMaxEvents())
					m.MaxEvents = 0
					answer, err := c.server.GetSession(c.ctx, m)
					if err == nil && answer.GetFound() {
						answer.Session.Events = answer.Session.Events[:min(n, len(answer.Session.Events))]
					}
					return answer, err
				}}
			},
		},
		{
			Name: "duplicate-without-its-obligation", Case: "outbox/38-duplicate-registers-an-obligation",
			Breaks: "It records that an effect happened twice, and crashes before it registers the obligation.",
			fault:  changing(func(m *tapepb.RecordExternalObservationRequest) { m.CompensateOnDuplicateKind = "" }),
		},
		{
			Name: "row-without-its-entry", Case: "T1/rows-counter-and-journal-agree",
			Breaks: "It writes a row and its journal entry in two steps, and crashes between them.",
			fault:  func() fault { return fault{entry: func(e *tapepb.JournalEntry) bool { return e.GetSeq() != 7 }} },
		},
		{
			Name: "new-run-answered-twice", Case: "T2/one-run-begins",
			Breaks: "It reports to several callers that the run is new, so several drivers begin at its start.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					answer, err := c.forward(c.req)
					if a, ok := answer.(*tapepb.BeginRunResponse); ok && a.GetNextSeq() <= 1 {
						a.Resumed = false
					}
					return answer, err
				}}
			},
		},
	}
}

// losingSignals keeps signals apart from the run's status. Its AwaitSignal looks for a signal, and
// parks the run in a second step that it delays until a signal has arrived.
type losingSignals struct {
	mu        sync.Mutex
	delivered map[string]chan struct{} // closed when the signal is stored
	texts     map[string]string
}

func (l *losingSignals) gate(run, name string) (key string, delivered chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key = run + " " + name
	if l.delivered[key] == nil {
		l.delivered[key] = make(chan struct{})
	}
	return key, l.delivered[key]
}

func (l *losingSignals) fault() fault {
	return fault{unary: func(c call) (proto.Message, error) {
		switch m := c.req.(type) {
		case *tapepb.SendSignalRequest:
			key, delivered := l.gate(m.GetRunId(), m.GetGateName())
			l.mu.Lock()
			defer l.mu.Unlock()
			if _, again := l.texts[key]; !again {
				close(delivered)
			}
			l.texts[key] = m.GetResolutionJson()
			return &tapepb.SendSignalResponse{Accepted: true, RunId: m.GetRunId()}, nil
		case *tapepb.AwaitSignalRequest:
			key, delivered := l.gate(m.GetRunId(), m.GetGateName())
			l.mu.Lock()
			text, ok := l.texts[key]
			l.mu.Unlock()
			if ok {
				return &tapepb.AwaitSignalResponse{Delivered: true, ResolutionJson: text}, nil
			}
			select {
			case <-delivered: // too late: the look has ended
			case <-c.ctx.Done():
				return nil, c.ctx.Err()
			}
		}
		return c.forward(c.req)
	}}
}

// losingCharges keeps the totals of budgets, and changes them in two steps.
type losingCharges struct {
	mu   sync.Mutex
	sums map[string]*tapepb.BudgetState
}

func (l *losingCharges) read(run string) *tapepb.BudgetState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.sums[run]; b != nil {
		return proto.CloneOf(b)
	}
	return &tapepb.BudgetState{RunId: run}
}

func (l *losingCharges) fault() fault {
	return fault{unary: func(c call) (proto.Message, error) {
		switch m := c.req.(type) {
		case *tapepb.ChargeBudgetRequest:
			b := l.read(m.GetRunId())
			if _, err := c.server.AdmitBudget(c.ctx, &tapepb.AdmitBudgetRequest{RunId: m.GetRunId()}); err != nil { // takes as long as a read
				return nil, err
			}
			b.UsdSpent += m.GetUsd()
			b.TokensSpent += m.GetTokens()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.sums[m.GetRunId()] = b
			return proto.CloneOf(b), nil
		case *tapepb.AdmitBudgetRequest:
			return &tapepb.AdmitBudgetResponse{Admitted: true, Budget: l.read(m.GetRunId())}, nil
		}
		return c.forward(c.req)
	}}
}

// appendInTwoSteps appends an event, and then replaces the state by the old state with the delta
// applied.
func appendInTwoSteps(c call) (proto.Message, error) {
	m, ok := c.req.(*tapepb.AppendEventRequest)
	if !ok {
		return c.forward(c.req)
	}
	var delta map[string]any
	_ = json.Unmarshal([]byte(m.GetStateDeltaJson()), &delta)
	m.StateDeltaJson = ""
	answer, err := c.server.AppendEvent(c.ctx, m)
	if err != nil {
		return nil, err
	}
	key := &tapepb.GetSessionRequest{AppName: m.GetAppName(), UserId: m.GetUserId(), SessionId: m.GetSessionId()}
	s, err := c.server.GetSession(c.ctx, key)
	if err != nil {
		return nil, err
	}
	state := map[string]any{}
	_ = json.Unmarshal([]byte(s.GetSession().GetStateJson()), &state)
	for k, v := range delta {
		state[k] = v
	}
	text, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	_, err = c.server.CreateSession(c.ctx, &tapepb.CreateSessionRequest{
		AppName: m.GetAppName(), UserId: m.GetUserId(), SessionId: m.GetSessionId(), StateJson: string(text),
	})
	return answer, err
}
