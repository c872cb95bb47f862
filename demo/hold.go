package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// hold is a worker's lease on its run: the fence that every write presents, and how
// long the worker may believe in it without asking.
type hold struct {
	tape  tapepb.TapeClient
	run   string
	ttl   time.Duration
	fence *tapepb.Fence
	// lose ends the work, with the refusal as its cause.
	lose context.CancelCauseFunc

	// one renewal at a time; also guards until.
	mu    sync.Mutex
	until time.Time
}

// trustFor returns how long a lease is trusted, counted from when the request for
// it left: a slow reply never stretches it, and no clock is compared with the
// store's. The margin covers the drift of two clocks within one TTL, and the time
// that it takes to act.
func trustFor(ttl time.Duration) time.Duration { return ttl - ttl/10 }

// renew asks for more time, under the same fence. ResumeRun with a fence is a
// heartbeat; without one it would take the run from whoever has it.
func (h *hold) renew(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	sent := time.Now()
	_, err := h.tape.ResumeRun(ctx, &tapepb.ResumeRunRequest{
		RunId: h.run, LeaseOwner: h.fence.GetOwner(), LeaseTtlMs: h.ttl.Milliseconds(), Fence: h.fence,
	})
	if err != nil {
		return h.refused("heartbeat", err)
	}
	h.until = sent.Add(trustFor(h.ttl))
	return nil
}

// refused ends the work if err says that the worker is fenced.
func (h *hold) refused(call string, err error) error {
	err = callError(call, err)
	if isFenced(err) {
		h.lose(err)
	}
	return err
}

// keep heartbeats until ctx ends. A heartbeat that fails is no reason to stop: the
// next one may succeed, and whoever acts asks for trust first.
func (h *hold) keep(ctx context.Context) {
	beat := time.NewTicker(h.ttl / 3)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			h.beat(ctx)
		}
	}
}

func (h *hold) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.ttl/2)
	defer cancel()
	if h.renew(ctx) == nil {
		tell(report{Kind: renewed, Text: fmt.Sprintf("heartbeat: holds the lease under token %d for another %v", h.fence.GetToken(), h.ttl)})
	}
}

// trust returns when the lease may be believed in. It is asked before each step
// that the store cannot refuse: a call to the bank. A worker that was stopped finds
// here that its lease is too old, although nobody has told it yet.
func (h *hold) trust(ctx context.Context) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h.mu.Lock()
		late := time.Since(h.until)
		h.mu.Unlock()
		if late < 0 {
			return nil
		}
		say("its lease was to be trusted until %v ago: asks for more time before it acts", late.Round(10*time.Millisecond))
		if err := h.renew(ctx); err != nil {
			return fmt.Errorf("no more time: %w", err)
		}
	}
}
