package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
)

// The run that the workers drive.
const (
	appName      = "treasury"
	userID       = "acme"
	sessionID    = "main-account"
	invocationID = "daily-cash"

	model         = "treasurer-1"
	policyVersion = "limits-7"
)

// plan is what a decision says is to be done.
type plan struct {
	Action string `json:"action"`
	Steps  []step `json:"steps"`
	// Last says that the run is over when it is done.
	Last bool `json:"last,omitempty"`
}

// step is one operation of the bank.
type step struct {
	Tool  string `json:"tool"`
	Cents int64  `json:"cents"`
}

// think stands for a model: asked twice, it answers twice differently. That is why
// a decision is recorded before anybody acts on it, and read back by whoever goes
// on with the run.
func think(index int64) (p plan, rationale string) {
	about := func(cents int64) int64 { return cents + rand.Int64N(cents/10) }
	switch index {
	case 0:
		return plan{Action: "sweep", Steps: []step{{"wire_sweep", about(1_200_000_00)}}}, "idle cash above the limit"
	case 1:
		return plan{Action: "hedge", Steps: []step{
			{"hedge_sell", about(400_000_00)}, {"hedge_buy", about(370_000_00)},
		}}, "dollars due in May"
	default:
		return plan{Action: "book", Steps: []step{{"post_ledger", about(1_000_000_00)}}, Last: true}, "day's end"
	}
}

func (p plan) String() string {
	s := p.Action
	for i, step := range p.Steps {
		s += [2]string{" (", ", "}[min(i, 1)] + step.Tool + " " + money(step.Cents)
	}
	return s + ")"
}

// encode returns a plan or step as JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of numbers and texts
	}
	return string(b)
}

func decodePlan(response string) (p plan, err error) {
	if err := json.Unmarshal([]byte(response), &p); err != nil {
		return p, fmt.Errorf("a decision that cannot be read: %w", err)
	}
	return p, nil
}
