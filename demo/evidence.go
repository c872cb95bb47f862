package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite" // sqlite:
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// evidence is all that is checked: what was seen from outside while the story was
// played, and what the bank and the store say afterwards.
type evidence struct {
	TTL   time.Duration
	RunID string

	Killed       killed
	Zombie       zombie
	FinisherExit int

	// Bank is the ledger at the end.
	Bank []posting
	// Status, Journal and Plans are read from the store's file, without the server.
	Status  tape.RunStatus
	Journal []entry
	Plans   []plan // the recorded decisions, by index
}

// killed is what was seen of worker-1, right after its death.
type killed struct {
	Exit string
	// Key is that of the effect in flight.
	Key string
	// Effect is what the journal knew of it, Bank what the bank had done.
	Effect tapepb.EffectStatus
	Bank   []posting
	// LeaseUntil is the end of the lease, on the store's clock.
	LeaseUntil time.Time
}

// zombie is what was seen of worker-2.
type zombie struct {
	// Key is that of the effect that it was about to act on.
	Key string
	// LeaseUntil is the end of its lease, on the store's clock.
	LeaseUntil time.Time
	Paused     time.Duration
	Attempts   []attempt
	Exit       int // its exit status; negative if it was killed
	// Before and After are the run before it woke and after it had stopped.
	Before, After *tapepb.RunState

	pausedAt time.Time
}

// entry is an event of the journal with its payload read.
type entry struct {
	Seq   runstore.Seq
	Time  time.Time
	Token runstore.Token
	Owner string
	Kind  string
	payload
}

// payload is what the entries of a journal say, as far as it is looked at here.
type payload struct {
	Status    string `json:"status"`
	Decision  int64  `json:"decision_index"`
	Rationale string `json:"rationale"`
	Tool      string `json:"tool"`
	Key       string `json:"idempotency_key"`
}

// readStore reads the run from the file, as anybody may once the server is gone.
func (e *evidence) readStore(ctx context.Context, file string) (err error) {
	store, err := runstore.Open(ctx, "sqlite:"+file)
	if err != nil {
		return fmt.Errorf("open the store's file: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	id := runstore.RunID(e.RunID)
	run, err := store.GetRun(ctx, id)
	if err != nil {
		return err
	}
	e.Status = tape.RunStatus(run.Status)
	for event, err := range runstore.Journal(ctx, store, id, 1) {
		if err != nil {
			return err
		}
		read := entry{Seq: event.Seq, Time: event.Time, Token: event.Token, Owner: string(event.Owner), Kind: event.Kind}
		if err := json.Unmarshal(event.Data, &read.payload); err != nil {
			return fmt.Errorf("event %d: %w", event.Seq, err)
		}
		e.Journal = append(e.Journal, read)
	}
	decisions := tape.New(store, nil)
	for index := int64(0); ; index++ {
		d, found, err := decisions.GetDecision(ctx, id, index)
		if err != nil || !found {
			return err
		}
		p, err := decodePlan(d.Response)
		if err != nil {
			return err
		}
		e.Plans = append(e.Plans, p)
	}
}

// effect is an effect that a decision asks for.
type effect struct {
	Key string
	step
}

// effects returns what the recorded decisions ask for, in their order. The keys are
// those that the server derives.
func (e *evidence) effects() (all []effect) {
	for index, p := range e.Plans {
		for _, s := range p.Steps {
			all = append(all, effect{Key: fmt.Sprintf("%s/decision-%d/%s/0", e.RunID, index, s.Tool), step: s})
		}
	}
	return all
}

// find returns the posting under a key; the zero one if there is none.
func find(ledger []posting, key string) posting {
	for _, p := range ledger {
		if p.Key == key {
			return p
		}
	}
	return posting{}
}
