package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// rpcKind is an RPC, or several RPCs that belong together.
type rpcKind struct {
	name string
	// call makes one RPC as a client that drives a run.
	call func(c *rpcClient, ctx context.Context) error
	// verify reads back what the calls of all clients acknowledged, where the journals of their
	// runs do not show it.
	verify func(ctx context.Context, all []*rpcClient, store runstore.RunStore) (string, error)
}

// rpcClient is one client of a side. Only one goroutine uses it.
type rpcClient struct {
	*protocolRun
	server   *protocolServer
	name     string
	calls    int
	open     string         // key of the effect that was begun and not yet completed
	begun    []*protocolRun // further runs
	appended []string       // ids of the session's events
}

// replayed is how many entries a subscriber reads: 100, an agent's run of a few dozen steps.
const replayed = 100

var rpcBody = strings.Repeat("x", 100)

var rpcKinds = []rpcKind{
	{name: "BeginRun", call: (*rpcClient).beginRun, verify: verifyBegun},
	{name: "ResumeRun, heartbeat", call: (*rpcClient).heartbeat},
	{name: "RecordDecision", call: (*rpcClient).recordDecision},
	{name: "BeginEffect, CompleteEffect", call: (*rpcClient).effect},
	{name: "AppendEvent", call: (*rpcClient).appendEvent, verify: verifySessions},
	{name: "GetRun", call: (*rpcClient).getRun},
	{name: "SubscribeRun, 100 entries", call: (*rpcClient).subscribe},
}

// measureRPCs compares the RPCs at each number of clients.
func (s *Session) measureRPCs(ctx context.Context, server *protocolServer, store runstore.RunStore, clients []int) error {
	var sides []Side
	for _, n := range clients {
		for _, kind := range rpcKinds {
			var clients []*rpcClient
			for i := range n {
				conn, err := server.dial()
				if err != nil {
					return err
				}
				name := fmt.Sprintf("%s of %d/%d", kind.name, i, n)
				run, err := server.begin(ctx, conn, name)
				if err != nil {
					return err
				}
				clients = append(clients, &rpcClient{protocolRun: run, server: server, name: name})
			}
			if kind.name == "SubscribeRun, 100 entries" {
				if err := eachClient(clients, func(c *rpcClient) error { return c.lengthen(ctx, replayed) }); err != nil {
					return err
				}
			}
			sides = append(sides, Side{
				Group: "RPCs", System: s.Target.System.Name, Side: kind.name, Params: map[string]string{"clients": strconv.Itoa(n)},
				Round: func(ctx context.Context, d time.Duration, m *Measured) error {
					before := server.calls.ofRPCs.Load()
					load, err := Drive(ctx, len(clients), d, func(ctx context.Context, i int) error { return kind.call(clients[i], ctx) })
					if err != nil {
						return err
					}
					m.Add(Rate, "RPCs/s", More, load.PerSecond())
					m.Quantiles("RPC", load.Latencies)
					m.Add("store calls per RPC", "", Less, float64(server.calls.ofRPCs.Load()-before)/float64(load.Done))
					return nil
				},
				Verify: func(ctx context.Context) (string, error) {
					var runs []*protocolRun
					for _, c := range clients {
						runs = append(append(runs, c.protocolRun), c.begun...)
					}
					found, err := checkRuns(ctx, store, runs)
					if err == nil && kind.verify != nil {
						found, err = kind.verify(ctx, clients, store)
					}
					return found, err
				},
			})
		}
	}
	return s.Compare(ctx, sides...)
}

// eachClient calls do for all clients concurrently.
func eachClient(clients []*rpcClient, do func(*rpcClient) error) error {
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	for _, c := range clients {
		all.Go(func() {
			if err := do(c); err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *rpcClient) beginRun(ctx context.Context) error {
	c.calls++
	run, err := c.server.begin(ctx, c.client, fmt.Sprintf("%s %d", c.name, c.calls))
	if err == nil {
		c.begun = append(c.begun, run)
	}
	return err
}

func verifyBegun(_ context.Context, all []*rpcClient, _ runstore.RunStore) (string, error) {
	n := 0
	ids := map[string]bool{}
	for _, c := range all {
		for _, run := range c.begun {
			n++
			ids[run.id] = true
		}
	}
	if len(ids) != n {
		return "", fmt.Errorf("%d runs were begun, and have %d ids", n, len(ids))
	}
	return fmt.Sprintf("%d runs", n), nil
}

func (c *rpcClient) heartbeat(ctx context.Context) error {
	r, err := c.client.ResumeRun(ctx, &tapepb.ResumeRunRequest{
		RunId: c.id, LeaseOwner: c.fence.GetOwner(), LeaseTtlMs: runstore.MaxTTL.Milliseconds(), Fence: c.fence,
	})
	if err == nil && r.GetGrant().GetToken() != c.fence.GetToken() {
		err = fmt.Errorf("ResumeRun answered %v under token %d", r, c.fence.GetToken())
	}
	return err
}

func (r *protocolRun) decide(ctx context.Context, index int64) error {
	d, err := r.client.RecordDecision(ctx, &tapepb.RecordDecisionRequest{
		RunId: r.id, DecisionIndex: index, Model: "model", RequestJson: rpcBody, ResponseJson: rpcBody, Fence: r.fence,
	})
	if err != nil {
		return err
	}
	r.kinds = append(r.kinds, "decision")
	if d.GetSeq() != int64(len(r.kinds)) {
		return fmt.Errorf("RecordDecision answered seq %d for entry %d", d.GetSeq(), len(r.kinds))
	}
	return nil
}

func (c *rpcClient) recordDecision(ctx context.Context) error {
	c.calls++
	return c.decide(ctx, int64(c.calls))
}

// effect begins an effect; the next call completes it.
func (c *rpcClient) effect(ctx context.Context) error {
	if c.open != "" {
		r, err := c.client.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{
			RunId: c.id, IdempotencyKey: c.open, Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, ResponseJson: rpcBody, Fence: c.fence,
		})
		if err != nil {
			return err
		}
		if r.GetStatus() != tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED {
			return fmt.Errorf("CompleteEffect answered %v", r)
		}
		c.open, c.kinds = "", append(c.kinds, "effect")
		return nil
	}
	c.calls++
	r, err := c.client.BeginEffect(ctx, &tapepb.BeginEffectRequest{
		RunId: c.id, DecisionIndex: int64(c.calls), ToolName: "tool", RequestJson: rpcBody, Fence: c.fence,
	})
	if err != nil {
		return err
	}
	c.open, c.kinds = r.GetIdempotencyKey(), append(c.kinds, "effect")
	if r.GetSeq() != int64(len(c.kinds)) {
		return fmt.Errorf("BeginEffect answered seq %d for entry %d", r.GetSeq(), len(c.kinds))
	}
	return nil
}

func (c *rpcClient) appendEvent(ctx context.Context) error {
	id := strconv.Itoa(len(c.appended))
	r, err := c.client.AppendEvent(ctx, &tapepb.AppendEventRequest{
		AppName: c.server.prefix, UserId: "bench", SessionId: c.name, Fence: c.fence,
		Event: &tapepb.EventRecord{Id: id, Author: "agent", ContentJson: rpcBody},
	})
	if err != nil {
		return err
	}
	if r.GetEvent().GetId() != id {
		return fmt.Errorf("AppendEvent answered %v for event %s", r, id)
	}
	c.appended = append(c.appended, id)
	return nil
}

// verifySessions reads back the newest events of the sessions, as many as fit into a reply.
func verifySessions(ctx context.Context, all []*rpcClient, _ runstore.RunStore) (string, error) {
	events := 0
	for _, c := range all {
		r, err := c.client.GetSession(ctx, &tapepb.GetSessionRequest{AppName: c.server.prefix, UserId: "bench", SessionId: c.name})
		if err != nil {
			return "", err
		}
		got := r.GetSession().GetEvents()
		if len(got) > len(c.appended) || len(got) < len(c.appended) && !r.GetTruncated() {
			return "", fmt.Errorf("session %q has %d events; %d were acknowledged", c.name, len(got), len(c.appended))
		}
		for i, want := range c.appended[len(c.appended)-len(got):] {
			if got[i].GetId() != want || got[i].GetContentJson() != rpcBody {
				return "", fmt.Errorf("session %q has event %q where %q was acknowledged", c.name, got[i].GetId(), want)
			}
		}
		events += len(got)
	}
	return fmt.Sprintf("%d events of %d sessions", events, len(all)), nil
}

func (c *rpcClient) getRun(ctx context.Context) error {
	r, err := c.client.GetRun(ctx, &tapepb.GetRunRequest{RunId: c.id})
	if err == nil && (r.GetRunId() != c.id || r.GetToken() != c.fence.GetToken()) {
		err = fmt.Errorf("GetRun answered %v", r)
	}
	return err
}

// lengthen records decisions until the journal has n entries.
func (c *rpcClient) lengthen(ctx context.Context, n int) error {
	for len(c.kinds) < n {
		if err := c.recordDecision(ctx); err != nil {
			return err
		}
	}
	return nil
}

// subscribe reads the run's journal from its start to its end.
func (c *rpcClient) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout) // a lost entry would never come
	defer cancel()
	stream, err := c.client.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: c.id})
	if err != nil {
		return err
	}
	for i, kind := range c.kinds {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		if e.GetSeq() != int64(i+1) || !strings.HasPrefix(e.GetKind(), kind) {
			return fmt.Errorf("SubscribeRun sent seq %d, %q, as entry %d, %q", e.GetSeq(), e.GetKind(), i+1, kind)
		}
	}
	return nil
}
