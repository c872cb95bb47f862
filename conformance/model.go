package conformance

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tapestore/tapestore/runstore"
)

// The sequential model of a run, against which histories of concurrent operations are checked. The
// model has no clock; it compares the times that the store returns. A lease is held until it is
// released or preempted, or acquired at or after its expiry.

// opKind is the kind of an operation.
type opKind string

const (
	opAcquire opKind = "acquire"
	opPreempt opKind = "preempt"
	opRenew   opKind = "renew"
	opRelease opKind = "release"
	opCommit  opKind = "commit"
	opHead    opKind = "read head"
	opJournal opKind = "read journal"
	opRecords opKind = "read records"
	opWait    opKind = "wait" // waits for a lease to expire; not part of a history
)

// modelKeys are the records of the model.
var modelKeys = [...]runstore.RecordKey{"a", "b"}

// opInput is the request of an operation.
type opInput struct {
	kind  opKind
	run   runstore.RunID
	grant runstore.GrantID // of the lease wanted or presented
	token runstore.Token   // of the lease presented; 0 means none
	batch string           // the batch's id, and the data of its event
	key   int              // index in modelKeys of the record that the batch puts
	// at is the version that the batch guards; -1 means no version guard.
	at runstore.Version
}

// opOutput is the answer to an operation.
type opOutput struct {
	// kind is the kind of the error; nil means success.
	kind    error
	token   runstore.Token // granted, or found by a read of the head
	at      int64          // when the lease was granted, on the store clock
	expires int64          // of the lease granted, renewed or found by a read of the head
	seq     runstore.Seq   // of the event appended, or the last one found
	version runstore.Version
	// holder is the token of the holder that a read of the head, or a refusal, names.
	holder  runstore.Token
	current runstore.Token // the last token, as reported by a refusal of a fence
	found   string         // the text of a journal or of records
}

// openEnd is the return time of an operation whose outcome is unknown.
const openEnd = math.MaxInt64

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
	versions [len(modelKeys)]runstore.Version
	last     [len(modelKeys)]string // the batch that put each record
}

func (s runState) holder() runstore.Token {
	if s.current {
		return s.token
	}
	return 0
}

func (s runState) fenced(in opInput) bool {
	return !s.current || s.token != in.token || s.grant != in.grant
}

// records returns what a read of the records returns in this state.
func (s runState) records() string {
	text := ""
	for i := range modelKeys {
		if s.versions[i] > 0 {
			text += recordWords(modelKeys[i], s.versions[i], s.last[i])
		}
	}
	return text
}

func recordWords(key runstore.RecordKey, v runstore.Version, value string) string {
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
func (s runState) step(in opInput, out opOutput) (bool, runState) {
	unknown := out.kind == runstore.ErrUnknownOutcome
	if out.kind == runstore.ErrUnavailable {
		return true, s // definitely not applied
	}
	switch in.kind {
	case opAcquire, opPreempt:
		return s.acquire(in, out, unknown)
	case opRenew:
		if s.fenced(in) {
			return unknown || out.kind == runstore.ErrFenced && out.current == s.token, s
		}
		if unknown {
			s.unsure = true
			return true, s
		}
		ok := out.kind == nil && out.token == s.token && (s.unsure || out.expires >= s.expires)
		s.expires, s.unsure = out.expires, false
		return ok, s
	case opRelease:
		if s.released && s.token == in.token && s.grant == in.grant {
			return unknown || out.kind == nil, s
		}
		if s.fenced(in) {
			return unknown || out.kind == runstore.ErrFenced && out.current == s.token, s
		}
		s.current, s.released = false, true
		return unknown || out.kind == nil, s
	case opCommit:
		return s.commit(in, out, unknown)
	case opHead:
		// Bigtable stamps a renewal when it applies the mutation, so the head may show a later
		// expiry than RenewLease returned.
		expires := !s.current || s.unsure || out.expires >= s.expires
		return unknown || out.kind == nil && out.token == s.token && out.holder == s.holder() && out.seq == s.events && expires, s
	case opJournal:
		return unknown || out.kind == nil && out.found == s.batches(), s
	default:
		return unknown || out.kind == nil && out.found == s.records(), s
	}
}

func (s runState) acquire(in opInput, out opOutput, unknown bool) (bool, runState) {
	switch {
	case s.grant == in.grant && s.current: // a repeat
		return unknown || out.kind == nil && out.token == s.token, s
	case s.grant == in.grant, strings.Contains(s.former, string(in.grant)+";"): // a late copy
		return unknown || out.kind == runstore.ErrFenced, s
	case s.current && in.kind == opAcquire && (unknown || out.kind != nil || out.at < s.expires):
		return unknown || out.kind == runstore.ErrLeaseHeld && out.holder == s.token, s
	}
	s.token++
	s.former += string(s.grant) + ";"
	s.grant, s.current, s.released = in.grant, true, false
	s.expires, s.unsure = out.expires, false
	if unknown {
		s.expires, s.unsure = math.MaxInt64, true // leases do not expire in a history with lost replies
	}
	return unknown || out.kind == nil && out.token == s.token, s
}

func (s runState) commit(in opInput, out opOutput, unknown bool) (bool, runState) {
	if at := strings.Index(";"+s.journal, ";"+in.batch+"="); at >= 0 { // a repeat
		seq := runstore.Seq(strings.Count(s.journal[:at], ";") + 1)
		var version runstore.Version
		_, _ = fmt.Sscanf(s.journal[at+len(in.batch)+1:], "%d", &version) // written below, in this format
		return unknown || out.kind == nil && out.seq == seq && out.version == version, s
	}
	if in.token != 0 && s.fenced(in) {
		return unknown || out.kind == runstore.ErrFenced && out.current == s.token, s
	}
	if in.at >= 0 && in.at != s.versions[in.key] {
		return unknown || out.kind == runstore.ErrConflict && out.version == s.versions[in.key], s
	}
	s.events++
	s.versions[in.key]++
	s.last[in.key] = in.batch
	s.journal += fmt.Sprintf("%s=%d;", in.batch, s.versions[in.key])
	return unknown || out.kind == nil && out.seq == s.events && out.version == s.versions[in.key], s
}

// runModel is the model in porcupine's form; each run is checked separately.
var runModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[runstore.RunID][]porcupine.Operation{}
		for _, op := range history {
			run := op.Input.(opInput).run
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
		return state.(runState).step(input.(opInput), output.(opOutput))
	},
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}

// judge checks a history. A history that the checker had no time for does not pass.
func judge(history []porcupine.Operation, bound time.Duration) error {
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
		if op.Return == openEnd {
			end = "open"
		}
		fmt.Fprintf(&b, "client %d, %d to %s: %s\n", op.ClientId, op.Call, end, runModel.DescribeOperation(op.Input, op.Output))
	}
	return b.String()
}
