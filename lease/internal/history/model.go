package history

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/tapestore/tapestore/runstore"
)

// grantState is the state of a run's last grant.
type grantState int

const (
	never grantState = iota
	current
	released
	revoked
)

// state is a run between two operations. It is comparable by ==.
type state struct {
	token runstore.Token
	grant runstore.GrantID // of the last grant
	is    grantState
	// The last grant expires between least and most; they differ after a grant or a renewal whose
	// reply was lost.
	least, most int64
	former      runstore.GrantEnd // how the grant before the last ended
	seq         runstore.Seq      // of the last event
	grants      string            // the ids of former grants, each in semicolons
	ends        string            // "token=end" of each former grant, in semicolons
	done        string            // the ids of writes that were applied, in semicolons
}

func listed(list, item string) bool { return strings.Contains(list, ";"+item+";") }

// endOf returns the item of state.ends for the end of a token's grant.
func endOf(token runstore.Token, end runstore.GrantEnd) string {
	return fmt.Sprintf("%d=%v", token, end)
}

func (s state) holds(in input) bool {
	return s.is == current && s.token == in.token && s.grant == in.grant
}

// holder returns the token of the current grant; 0 if the lease is free.
func (s state) holder() runstore.Token {
	if s.is == current {
		return s.token
	}
	return 0
}

// appended returns the state after a write with events, and whether the store's answer fits it.
func (s state) appended(in input, out output) (state, bool) {
	fits := in.events == 0 || out.seq == s.seq+1
	s.seq += runstore.Seq(in.events)
	return s, fits
}

// step returns the states in which s can be after in, if in returned out; none if it cannot have.
func (s state) step(in input, out output) []state {
	switch {
	case out.err == runstore.ErrUnavailable:
		return []state{s} // not applied
	case in.kind == acquire:
		return s.acquire(in, out)
	case in.kind == renew:
		return s.renew(in, out)
	case in.kind == release, in.kind == commit:
		return s.write(in, out)
	case in.kind == head:
		return s.iff(out.err == nil && out.token == s.token && out.holder == s.holder() && out.last == s.seq &&
			(s.is != current || out.former == s.former))
	case in.kind == trusted:
		// A holder does not learn of a preemption before its next request.
		preempted := listed(s.ends, endOf(in.token, runstore.EndPreempted))
		return s.iff(s.holds(in) && in.call < s.most || preempted)
	default:
		return s.iff(s.ended(in.token, out))
	}
}

// iff returns s, unchanged, if the answer is legal.
func (s state) iff(legal bool) []state {
	if legal {
		return []state{s}
	}
	return nil
}

// ended reports whether the lease of a token ended as its holder was told.
func (s state) ended(token runstore.Token, out output) bool {
	was := func(end runstore.GrantEnd, is grantState) bool {
		return listed(s.ends, endOf(token, end)) || s.token == token && s.is == is
	}
	switch out.end {
	case endReleased:
		return was(runstore.EndReleased, released)
	case endAbandoned:
		return (s.token > token || s.is != current) && !was(runstore.EndReleased, released)
	case endHandedOff:
		return listed(s.ends, endOf(token, runstore.EndHandedOff)) && out.token == token+1
	case endFenced:
		return s.token > token || s.is != current
	default:
		return true
	}
}

func (s state) acquire(in input, out output) []state {
	repeat := in.grant == s.grant && s.is == current
	over := listed(s.grants, string(in.grant)) || in.grant == s.grant && !repeat
	consents := in.token != 0
	stale := consents && (in.token != s.token || s.is != current)
	moved := in.atToken >= 0 && in.atToken != s.token
	free := s.is != current || in.preempts || consents
	switch out.err {
	case nil:
		switch {
		case repeat:
			return s.iff(!out.over && out.token == s.token && out.former == s.former && out.expires >= s.least && out.expires <= s.most)
		case over:
			return s.iff(out.over)
		case out.over || stale || moved || !free && out.at < s.least:
			return nil
		}
		next, fits := s.granted(in, out.former).appended(in, out)
		next.least, next.most = out.expires, out.expires
		if !fits || out.token != next.token || !s.mayEnd(in, out.former, out.at, out.at) {
			return nil
		}
		return []state{next}
	case runstore.ErrUnknownOutcome:
		all := []state{s}
		if repeat || over || stale || moved || !free && in.ret < s.least {
			return all
		}
		for _, former := range []runstore.GrantEnd{
			runstore.EndNone, runstore.EndReleased, runstore.EndHandedOff, runstore.EndExpired, runstore.EndPreempted, runstore.EndRevoked,
		} {
			if s.mayEnd(in, former, in.call, in.ret) {
				next, _ := s.granted(in, former).appended(in, output{})
				next.least, next.most = in.call+int64(in.ttl-runstore.TimePrecision), in.ret+int64(in.ttl)
				all = append(all, next)
			}
		}
		return all
	case runstore.ErrLeaseHeld:
		return s.iff(!repeat && !over && !free && in.call < s.most && out.holder == s.token)
	case runstore.ErrFenced:
		return s.iff(over || stale)
	case runstore.ErrConflict:
		return s.iff(!repeat && !over && !stale && (moved || in.guards))
	default:
		return nil
	}
}

// mayEnd reports whether a grant of in that the store makes between two times ends the grant before as
// former says.
func (s state) mayEnd(in input, former runstore.GrantEnd, from, to int64) bool {
	switch {
	case s.is != current:
		return former == map[grantState]runstore.GrantEnd{never: runstore.EndNone, released: runstore.EndReleased, revoked: runstore.EndRevoked}[s.is]
	case in.token != 0:
		return former == runstore.EndHandedOff
	case in.preempts && former == runstore.EndPreempted:
		return from < s.most
	default:
		return former == runstore.EndExpired && to >= s.least
	}
}

func (s state) granted(in input, former runstore.GrantEnd) state {
	if s.is != never {
		s.grants += ";" + string(s.grant) + ";"
		s.ends += ";" + endOf(s.token, former) + ";"
	}
	s.token, s.grant, s.is, s.former = s.token+1, in.grant, current, former
	return s
}

func (s state) renew(in input, out output) []state {
	if in.id != "" && listed(s.done, string(in.id)) {
		return s.iff(out.err == nil && out.replay || out.err == runstore.ErrUnknownOutcome)
	}
	next, fits := s.appended(in, out)
	if in.id != "" {
		next.done += ";" + string(in.id) + ";"
	}
	switch out.err {
	case nil:
		next.least, next.most = out.expires, out.expires
		if !s.holds(in) || !fits || out.expires < s.least {
			return nil
		}
		return []state{next}
	case runstore.ErrUnknownOutcome:
		if !s.holds(in) {
			return []state{s}
		}
		next.least = max(s.least, in.call+int64(in.ttl-runstore.TimePrecision))
		next.most = max(s.most, in.ret+int64(in.ttl))
		return []state{s, next}
	default:
		return s.iff(out.err == runstore.ErrFenced && !s.holds(in))
	}
}

// write is a commit or a release.
func (s state) write(in input, out output) []state {
	id := string(in.id)
	if in.kind == release {
		id = string(in.grant)
	}
	if id != "" && listed(s.done, id) {
		// A release without writes is refused once another grant was made.
		return s.iff(out.err == nil || out.err == runstore.ErrUnknownOutcome || out.err == runstore.ErrFenced && in.kind == release && s.grant != in.grant)
	}
	fenced := in.token != 0 && !s.holds(in)
	moved := in.atToken >= 0 && in.atToken != s.token
	next, fits := s.appended(in, out)
	if id != "" {
		next.done += ";" + id + ";"
	}
	if s.is == current {
		switch {
		case in.kind == release || in.releases && in.token != 0:
			next.is = released
		case in.releases:
			next.is = revoked
		}
	}
	switch out.err {
	case nil:
		if fenced || moved || !fits || out.replay {
			return nil
		}
		return []state{next}
	case runstore.ErrUnknownOutcome:
		if fenced || moved {
			return []state{s}
		}
		return []state{s, next}
	case runstore.ErrFenced:
		return s.iff(fenced)
	default:
		return s.iff(out.err == runstore.ErrConflict && !fenced && (moved || in.guards))
	}
}

// byRun returns the operations of each run.
func byRun(ops []porcupine.Operation) map[runstore.RunID][]porcupine.Operation {
	runs := map[runstore.RunID][]porcupine.Operation{}
	for _, op := range ops {
		id := op.Input.(input).run
		runs[id] = append(runs[id], op)
	}
	return runs
}

// model is the model of one run's lease in porcupine's form.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(s, in, out any) (next []any) {
		for _, n := range s.(state).step(in.(input), out.(output)) {
			next = append(next, n)
		}
		return next
	},
	DescribeOperation: func(in, out any) string { return in.(input).String() + " ->" + out.(output).String() },
}).ToModel()
