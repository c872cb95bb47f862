package history

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tapestore/tapestore/runstore"
)

const ttl = 30 * time.Second

// at returns a time in nanoseconds.
func at(d time.Duration) int64 { return int64(d) }

// op is an operation that ends before the next one begins.
func op(in input, out output) porcupine.Operation {
	in.run = "run"
	return porcupine.Operation{Input: in, Output: out}
}

// granting is a grant of a token at a time.
func granting(grant runstore.GrantID, token runstore.Token, when time.Duration, former runstore.GrantEnd) porcupine.Operation {
	return op(input{kind: acquire, grant: grant, ttl: ttl, atToken: -1, call: at(when), ret: at(when)},
		output{token: token, at: at(when), expires: at(when + ttl), former: former})
}

// writing is a commit of an event under a fence.
func writing(grant runstore.GrantID, token runstore.Token, seq runstore.Seq, err error) porcupine.Operation {
	return op(input{kind: commit, grant: grant, token: token, atToken: -1, events: 1}, output{seq: seq, err: err})
}

// trusting is a report that a lease is trusted.
func trusting(grant runstore.GrantID, token runstore.Token, when time.Duration) porcupine.Operation {
	return op(input{kind: trusted, grant: grant, token: token, call: at(when), ret: at(when)}, output{})
}

// Histories that a lease explains, and some that none does.
func TestModel(t *testing.T) {
	first := granting("a", 1, 0, runstore.EndNone)
	releasing := op(input{kind: release, grant: "a", token: 1, atToken: -1}, output{})
	revoking := op(input{kind: commit, atToken: 1, releases: true}, output{})
	end := func(how end, next runstore.Token) porcupine.Operation {
		return op(input{kind: ended, grant: "a", token: 1}, output{end: how, token: next})
	}
	handing := op(input{kind: acquire, grant: "b", token: 1, ttl: ttl, atToken: -1}, output{token: 2, expires: at(ttl), former: runstore.EndHandedOff})
	lost := first
	lost.Output = output{err: runstore.ErrUnknownOutcome}
	for name, c := range map[string]struct {
		legal bool
		ops   []porcupine.Operation
	}{
		"a grant and its release":                        {true, []porcupine.Operation{first, writing("a", 1, 1, nil), releasing, granting("b", 2, time.Second, runstore.EndReleased)}},
		"two live grants":                                {false, []porcupine.Operation{first, granting("b", 2, time.Second, runstore.EndExpired)}},
		"a takeover after the expiry":                    {true, []porcupine.Operation{first, granting("b", 2, ttl, runstore.EndExpired)}},
		"a token that is granted twice":                  {false, []porcupine.Operation{first, releasing, granting("b", 1, time.Second, runstore.EndReleased)}},
		"a write of a former holder":                     {false, []porcupine.Operation{first, granting("b", 2, ttl, runstore.EndExpired), writing("a", 1, 1, nil)}},
		"a refused write of a former holder":             {true, []porcupine.Operation{first, granting("b", 2, ttl, runstore.EndExpired), writing("a", 1, 0, runstore.ErrFenced)}},
		"a refused write of the holder":                  {false, []porcupine.Operation{first, writing("a", 1, 0, runstore.ErrFenced)}},
		"a write that is lost":                           {false, []porcupine.Operation{first, writing("a", 1, 1, nil), writing("a", 1, 1, nil)}},
		"writes of unknown outcome":                      {true, []porcupine.Operation{first, writing("a", 1, 0, runstore.ErrUnknownOutcome), writing("a", 1, 0, runstore.ErrUnknownOutcome), writing("a", 1, 2, nil)}},
		"a grant of unknown outcome":                     {true, []porcupine.Operation{lost, granting("b", 2, ttl, runstore.EndExpired)}},
		"the repeat of a grant":                          {true, []porcupine.Operation{first, first}},
		"trust in a live lease":                          {true, []porcupine.Operation{first, trusting("a", 1, ttl-1)}},
		"trust in an expired lease":                      {false, []porcupine.Operation{first, trusting("a", 1, ttl)}},
		"trust in a lease that was taken over":           {false, []porcupine.Operation{first, releasing, granting("b", 2, time.Second, runstore.EndReleased), trusting("a", 1, time.Second)}},
		"a revocation that reads as a release":           {false, []porcupine.Operation{first, revoking, granting("b", 2, time.Second, runstore.EndReleased)}},
		"a revocation":                                   {true, []porcupine.Operation{first, revoking, end(endAbandoned, 0), granting("b", 2, time.Second, runstore.EndRevoked)}},
		"a holder that takes an expiry for a release":    {false, []porcupine.Operation{first, granting("b", 2, ttl, runstore.EndExpired), end(endReleased, 0)}},
		"an abandoned lease that was released":           {false, []porcupine.Operation{first, releasing, end(endAbandoned, 0)}},
		"a handoff":                                      {true, []porcupine.Operation{first, handing, end(endHandedOff, 2)}},
		"a handoff to another token":                     {false, []porcupine.Operation{first, handing, end(endHandedOff, 3)}},
		"a takeover that its holder takes for a handoff": {false, []porcupine.Operation{first, granting("b", 2, ttl, runstore.EndExpired), end(endHandedOff, 2)}},
		"a loss of a lease that is held":                 {false, []porcupine.Operation{first, end(endFenced, 0)}},
	} {
		for i := range c.ops {
			c.ops[i].Call, c.ops[i].Return = int64(2*i), int64(2*i+1)
		}
		if legal := porcupine.CheckOperations(model, c.ops); legal != c.legal {
			t.Errorf("%s: legal is %t, want %t", name, legal, c.legal)
		}
	}
}
