// Package model is the sequential model of a run, against which histories of concurrent operations
// are checked for linearizability. The model has no clock; it compares the times that the store
// returns. A lease is held until it is released or preempted, or acquired at or after its expiry.
package model

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tapestore/tapestore/runstore"
)

// Kind is the kind of an operation.
type Kind string

// The kinds of operations.
const (
	Acquire Kind = "acquire"
	Preempt Kind = "preempt"
	Renew   Kind = "renew"
	Release Kind = "release"
	Commit  Kind = "commit"
	Head    Kind = "read head"
	Journal Kind = "read journal"
	Records Kind = "read records"
	Wait    Kind = "wait" // waits for a lease to expire; not part of a history
)

// Keys are the records of the model.
var Keys = [...]runstore.RecordKey{"a", "b"}

// Input is the request of an operation.
type Input struct {
	Kind  Kind
	Run   runstore.RunID
	Grant runstore.GrantID // of the lease wanted or presented
	Token runstore.Token   // of the lease presented; 0 means none
	Batch string           // the batch's id, and the data of its event
	Key   int              // index in Keys of the record that the batch puts
	// At is the version that the batch guards; -1 means no version guard.
	At runstore.Version
}

// Output is the answer to an operation.
type Output struct {
	// Kind is the kind of the error; nil means success.
	Kind    error
	Token   runstore.Token // granted, or found by a read of the head
	At      int64          // when the lease was granted, on the store clock
	Expires int64          // of the lease granted, renewed or found by a read of the head
	Seq     runstore.Seq   // of the event appended, or the last one found
	Version runstore.Version
	// Holder is the token of the holder that a read of the head, or a refusal, names.
	Holder  runstore.Token
	Current runstore.Token // the last token, as reported by a refusal of a fence
	Found   string         // the text of a journal or of records
}

// OpenEnd is the return time of an operation whose outcome is unknown.
const OpenEnd = math.MaxInt64

// runState is the state of a run between two operations. It is comparable by ==.
type runState struct {
	token    runstore.Token
	grant    runstore.GrantID // of the last grant
	expires  int64            // the expiry that the last grant or renewal returned
	unsure   bool             // a renewal or grant with a lost reply was applied, so the expiry may be later
	current  bool             // the last grant has not ended
	released bool             // the holder released the lease
	former   string           // ids of the grants before the last, each followed by ";"
	// journal holds the batches in order, each as "batch=version;", where version is that of the
	// record that the batch put.
	journal  string
	events   runstore.Seq
	versions [len(Keys)]runstore.Version
	last     [len(Keys)]string // the batch that put each record
}

func (s runState) holder() runstore.Token {
	if s.current {
		return s.token
	}
	return 0
}

func (s runState) fenced(in Input) bool {
	return !s.current || s.token != in.Token || s.grant != in.Grant
}

// records returns what a read of the records returns in this state.
func (s runState) records() string {
	text := ""
	for i := range Keys {
		if s.versions[i] > 0 {
			text += RecordText(Keys[i], s.versions[i], s.last[i])
		}
	}
	return text
}

// RecordText returns the text of one record, as a read of the records finds it.
func RecordText(key runstore.RecordKey, v runstore.Version, value string) string {
	return fmt.Sprintf("%s@%d=%s;", key, v, value)
}

// batches returns what a read of the journal returns in this state.
func (s runState) batches() string {
	text := ""
	for part := range strings.SplitSeq(strings.TrimSuffix(s.journal, ";"), ";") {
		name, _, _ := strings.Cut(part, "=")
		if name != "" {
			text += name + ";"
		}
	}
	return text
}

// step reports whether the model can answer in with out, and returns the state after that. An
// operation of unknown outcome is applied if its guards hold. That covers the case in which it was
// never applied: it has no end, so it can also be placed after all other operations, where it has
// no effect.
func (s runState) step(in Input, out Output) (bool, runState) {
	unknown := out.Kind == runstore.ErrUnknownOutcome
	if out.Kind == runstore.ErrUnavailable {
		return true, s // definitely not applied
	}
	switch in.Kind {
	case Acquire, Preempt:
		return s.acquire(in, out, unknown)
	case Renew:
		if s.fenced(in) {
			return unknown || out.Kind == runstore.ErrFenced && out.Current == s.token, s
		}
		if unknown {
			s.unsure = true
			return true, s
		}
		ok := out.Kind == nil && out.Token == s.token && (s.unsure || out.Expires >= s.expires)
		s.expires, s.unsure = out.Expires, false
		return ok, s
	case Release:
		if s.released && s.token == in.Token && s.grant == in.Grant {
			return unknown || out.Kind == nil, s
		}
		if s.fenced(in) {
			return unknown || out.Kind == runstore.ErrFenced && out.Current == s.token, s
		}
		s.current, s.released = false, true
		return unknown || out.Kind == nil, s
	case Commit:
		return s.commit(in, out, unknown)
	case Head:
		// Bigtable stamps a renewal when it applies the mutation, so the head may show a later
		// expiry than RenewLease returned.
		expires := !s.current || s.unsure || out.Expires >= s.expires
		return unknown || out.Kind == nil && out.Token == s.token && out.Holder == s.holder() && out.Seq == s.events && expires, s
	case Journal:
		return unknown || out.Kind == nil && out.Found == s.batches(), s
	default:
		return unknown || out.Kind == nil && out.Found == s.records(), s
	}
}

func (s runState) acquire(in Input, out Output, unknown bool) (bool, runState) {
	switch {
	case s.grant == in.Grant && s.current: // a repeat
		return unknown || out.Kind == nil && out.Token == s.token, s
	case s.grant == in.Grant, strings.Contains(s.former, string(in.Grant)+";"): // a late copy
		return unknown || out.Kind == runstore.ErrFenced, s
	case s.current && in.Kind == Acquire && (unknown || out.Kind != nil || out.At < s.expires):
		return unknown || out.Kind == runstore.ErrLeaseHeld && out.Holder == s.token, s
	}
	s.token++
	s.former += string(s.grant) + ";"
	s.grant, s.current, s.released = in.Grant, true, false
	s.expires, s.unsure = out.Expires, false
	if unknown {
		s.expires, s.unsure = math.MaxInt64, true // leases do not expire in a history with lost replies
	}
	return unknown || out.Kind == nil && out.Token == s.token, s
}

func (s runState) commit(in Input, out Output, unknown bool) (bool, runState) {
	if at := strings.Index(";"+s.journal, ";"+in.Batch+"="); at >= 0 { // a repeat
		seq := runstore.Seq(strings.Count(s.journal[:at], ";") + 1)
		var version runstore.Version
		_, _ = fmt.Sscanf(s.journal[at+len(in.Batch)+1:], "%d", &version) // written below, in this format
		return unknown || out.Kind == nil && out.Seq == seq && out.Version == version, s
	}
	if in.Token != 0 && s.fenced(in) {
		return unknown || out.Kind == runstore.ErrFenced && out.Current == s.token, s
	}
	if in.At >= 0 && in.At != s.versions[in.Key] {
		return unknown || out.Kind == runstore.ErrConflict && out.Version == s.versions[in.Key], s
	}
	s.events++
	s.versions[in.Key]++
	s.last[in.Key] = in.Batch
	s.journal += fmt.Sprintf("%s=%d;", in.Batch, s.versions[in.Key])
	return unknown || out.Kind == nil && out.Seq == s.events && out.Version == s.versions[in.Key], s
}

// runModel is the model in porcupine's form; each run is checked separately.
var runModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[runstore.RunID][]porcupine.Operation{}
		for _, op := range history {
			run := op.Input.(Input).Run
			by[run] = append(by[run], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return runState{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(runState).step(input.(Input), output.(Output))
	},
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}

// Judge checks a history. A history that the checker had no time for does not pass.
func Judge(history []porcupine.Operation, bound time.Duration) error {
	switch porcupine.CheckOperationsTimeout(runModel, history, bound) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("checker ran out of time: a history of %d operations is undecided after %v", len(history), bound)
	default:
		return fmt.Errorf("the history of %d operations is not linearizable; the run of the fewest operations that is not:\n%s", len(history), illegal(history, bound))
	}
}

// illegal describes the smallest run of a history that is not linearizable.
func illegal(history []porcupine.Operation, bound time.Duration) string {
	var worst []porcupine.Operation
	for _, part := range runModel.Partition(history) {
		if porcupine.CheckOperationsTimeout(runModel, part, bound) == porcupine.Illegal && (worst == nil || len(part) < len(worst)) {
			worst = part
		}
	}
	var b strings.Builder
	for _, op := range worst {
		end := fmt.Sprint(op.Return)
		if op.Return == OpenEnd {
			end = "open"
		}
		fmt.Fprintf(&b, "client %d, %d to %s: %s\n", op.ClientId, op.Call, end, runModel.DescribeOperation(op.Input, op.Output))
	}
	return b.String()
}
