package tapeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
)

// Reactor is what a file says of a reactor, with the defaults filled in.
type Reactor struct {
	Name runstore.Reactor
	// TTL is how long a grant or renewal of a lease lasts: lease_ttl_s, by default 30 s, and 10 s for
	// [Matcher].
	TTL time.Duration
	// Heartbeat is the longest time between two renewals: heartbeat_s, by default TTL/3.
	Heartbeat time.Duration
	// TakeoverMin and TakeoverMax bound the back-off of contenders: takeover_min_s and
	// takeover_max_s, by default 1 s and 10 s.
	TakeoverMin, TakeoverMax time.Duration
	// MaxInFlight bounds the runs that one takeover worker drives at a time: max_in_flight, by
	// default 8.
	MaxInFlight int
	// MaxStall is how long a holder may make no progress: max_stall_s, by default 0, which is no
	// bound.
	MaxStall time.Duration
	// Grace lets leases survive an outage of the store (lease.Options): grace_s, by default 0, which
	// is none.
	Grace time.Duration
	// AcquireInterval is the longest time between two requests of an election's standby:
	// acquire_interval_s, by default 5 s.
	AcquireInterval time.Duration
}

// Matcher is the reactor that tapestore serve runs: it holds the leases of the shards of reactions.
// Its lease_ttl_s is [MatcherTTL] by default, as that of package matcher.
const (
	Matcher    runstore.Reactor = "matcher"
	MatcherTTL                  = 10 * time.Second
)

// The keys of a reactor.
const (
	keyTTL             = "lease_ttl_s"
	keyHeartbeat       = "heartbeat_s"
	keyTakeoverMin     = "takeover_min_s"
	keyTakeoverMax     = "takeover_max_s"
	keyMaxInFlight     = "max_in_flight"
	keyMaxStall        = "max_stall_s"
	keyGrace           = "grace_s"
	keyAcquireInterval = "acquire_interval_s"
)

// reactorKinds are the keys of a section of tape.reactors.
var reactorKinds = map[string]kind{
	keyTTL: boundedSeconds, keyHeartbeat: boundedSeconds, keyTakeoverMin: seconds, keyTakeoverMax: seconds,
	keyMaxInFlight: whole, keyMaxStall: boundedSecondsOrNone, keyGrace: secondsOrNone, keyAcquireInterval: seconds,
}

// keyOf maps the fields that the checks of options name to keys. A margin and a request timeout are
// derived from the TTL and the heartbeat.
var keyOf = map[string]string{
	"ttl": keyTTL, "margin": keyTTL, "heartbeat": keyHeartbeat, "request timeout": keyHeartbeat,
	"min backoff": keyTakeoverMin, "max backoff": keyTakeoverMax, "max in flight": keyMaxInFlight,
	"max stall": keyMaxStall, "grace": keyGrace, "acquire interval": keyAcquireInterval,
}

// judgedWith names, for a key whose limit depends on other keys, those keys. If the value of one is
// malformed, the limit is unknown.
var judgedWith = map[string][]string{
	keyHeartbeat: {keyTTL}, keyTakeoverMax: {keyTakeoverMin}, keyMaxStall: {keyTTL, keyHeartbeat},
}

// Key returns the key of a reactor's setting: tape.reactors.NAME.lease_ttl_s.
func Key(reactor runstore.Reactor, key string) string {
	return "tape.reactors." + string(reactor) + "." + key
}

// Reactor returns what the file says of a reactor. One that the file does not name has the defaults.
func (c *Config) Reactor(name runstore.Reactor) Reactor {
	if r, ok := c.reactors[name]; ok {
		return r
	}
	r, _ := c.resolve(name) // the defaults are valid
	return r
}

// Lease returns the options of a keeper.
func (r Reactor) Lease() *lease.Options {
	return &lease.Options{TTL: r.TTL, Heartbeat: r.Heartbeat, MinBackoff: r.TakeoverMin, MaxBackoff: r.TakeoverMax, Grace: r.Grace}
}

// Takeover returns the options of a takeover worker.
func (r Reactor) Takeover() *takeover.Options {
	return &takeover.Options{
		Reactor: r.Name, MaxInFlight: r.MaxInFlight, MinBackoff: r.TakeoverMin, MaxBackoff: r.TakeoverMax,
		MaxStall: r.MaxStall, Lease: r.Lease(),
	}
}

// Election returns the options of an election's coordinator. An election has no grace.
func (r Reactor) Election() *election.Options {
	return &election.Options{
		Reactor: r.Name, TTL: r.TTL, Heartbeat: r.Heartbeat, AcquireInterval: r.AcquireInterval, MaxStall: r.MaxStall,
	}
}

// Spec returns what a request for a lease by a keeper with the options of [Reactor.Lease] contains.
// The keeper adds the TTL.
func (r Reactor) Spec(owner runstore.Owner) runstore.LeaseSpec {
	return runstore.LeaseSpec{Owner: owner, Reactor: r.Name, MaxStall: r.MaxStall}
}

// Settings returns every setting of a reactor, those that the file does not set with their defaults
// and Line 0.
func (c *Config) Settings(name runstore.Reactor) []Setting {
	r := c.Reactor(name)
	inSeconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
	all := []Setting{
		{Key: keyTTL, Value: inSeconds(r.TTL)}, {Key: keyHeartbeat, Value: inSeconds(r.Heartbeat)},
		{Key: keyTakeoverMin, Value: inSeconds(r.TakeoverMin)}, {Key: keyTakeoverMax, Value: inSeconds(r.TakeoverMax)},
		{Key: keyMaxInFlight, Value: strconv.Itoa(r.MaxInFlight)}, {Key: keyMaxStall, Value: inSeconds(r.MaxStall)},
		{Key: keyGrace, Value: inSeconds(r.Grace)}, {Key: keyAcquireInterval, Value: inSeconds(r.AcquireInterval)},
	}
	for i := range all {
		all[i].Key = Key(name, all[i].Key)
		all[i].Line = c.settings[all[i].Key].Line
	}
	return all
}

// resolve returns a reactor with the defaults filled in, and the error of the options' checks.
func (c *Config) resolve(name runstore.Reactor) (Reactor, error) {
	duration := func(key string) time.Duration { // 0 if the file does not set the key
		d, ok := parseSeconds(cmp.Or(c.settings[Key(name, key)].Value, "0"))
		if !ok {
			return math.MaxInt64
		}
		return d
	}
	inFlight, err := strconv.Atoi(cmp.Or(c.settings[Key(name, keyMaxInFlight)].Value, "0"))
	if err != nil {
		inFlight = math.MaxInt
	}
	r := Reactor{
		Name: name, TTL: duration(keyTTL), Heartbeat: duration(keyHeartbeat),
		TakeoverMin: duration(keyTakeoverMin), TakeoverMax: duration(keyTakeoverMax),
		MaxInFlight: inFlight, MaxStall: duration(keyMaxStall), Grace: duration(keyGrace), AcquireInterval: duration(keyAcquireInterval),
	}
	if name == Matcher {
		r.TTL = cmp.Or(r.TTL, MatcherTTL)
	}
	l, _ := r.Lease().Resolve() // the options of a takeover worker contain these, and their faults
	t, takeoverErr := r.Takeover().Resolve()
	candidate := r.Election()
	candidate.Replica = "replica"
	e, electionErr := candidate.Resolve()
	spec := r.Spec("owner")
	spec.TTL = lease.DefaultTTL // the TTL has been checked
	specErr := runstore.AcquireRequest{Run: "run", LeaseSpec: spec}.Check()

	r.TTL, r.Heartbeat = l.TTL, l.Heartbeat
	r.TakeoverMin, r.TakeoverMax, r.MaxInFlight = t.MinBackoff, t.MaxBackoff, t.MaxInFlight
	r.AcquireInterval = e.AcquireInterval
	var stallErr error
	_, fits := (&lease.Options{TTL: r.TTL, Heartbeat: r.Heartbeat}).Resolve()
	if fits == nil && specErr == nil && r.MaxStall > 0 && r.MaxStall-r.Heartbeat <= r.Heartbeat {
		stallErr = &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "max stall",
			Problem: fmt.Sprintf("%v is not longer than two heartbeats of %v: work would lose its lease although it makes progress", r.MaxStall, r.Heartbeat),
		}
	}
	return r, errors.Join(takeoverErr, electionErr, specErr, stallErr)
}

// resolve adds a reactor of the file to the Config, and the faults of its options.
func (p *parser) resolve(name runstore.Reactor) {
	r, err := p.c.resolve(name)
	p.c.reactors[name] = r
	var refused []string
	for _, input := range inputErrors(err) {
		key, known := keyOf[input.Field]
		path, problem := Key(name, key), input.Problem
		if !known {
			path, problem = parent(Key(name, "")), input.Field+": "+problem
		}
		malformed := p.bad[path]
		for _, other := range judgedWith[key] {
			malformed = malformed || p.bad[Key(name, other)]
		}
		if !malformed {
			p.faults = append(p.faults, p.c.Fault(path, problem))
			refused = append(refused, path)
		}
	}
	for _, path := range refused {
		if s, ok := p.c.settings[path]; ok {
			p.c.lines[path] = s.Line
			delete(p.c.settings, path)
		}
	}
}

// inputErrors returns the InputErrors that are joined in an error.
func inputErrors(err error) []*runstore.InputError {
	switch e := err.(type) {
	case *runstore.InputError:
		return []*runstore.InputError{e}
	case interface{ Unwrap() []error }:
		var all []*runstore.InputError
		for _, part := range e.Unwrap() {
			all = append(all, inputErrors(part)...)
		}
		return all
	}
	return nil
}
