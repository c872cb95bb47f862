package tapeconfig_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeconfig"
)

// defaults are Tape's: a TTL of 30 s, a heartbeat of a third, a back-off from 1 to 10 s.
var defaults = tapeconfig.Reactor{
	Name: "agent", TTL: 30 * time.Second, Heartbeat: 10 * time.Second, TakeoverMin: time.Second, TakeoverMax: 10 * time.Second,
	MaxInFlight: 8, AcquireInterval: 5 * time.Second,
}

func TestReactor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file string
		want       func(*tapeconfig.Reactor)
	}{
		{name: "empty file"},
		{name: "comments only", file: "# tape:\n"},
		{name: "empty sections", file: "tape:\nserve:\n"},
		{name: "empty reactors", file: "tape:\n  reactors:\n"},
		{name: "empty reactor", file: "tape: {reactors: {agent: }}"},
		{name: "another reactor", file: "tape: {reactors: {recovery: {lease_ttl_s: 60}}}"},
		{name: "line breaks of Windows and a byte order mark", file: "\ufefftape:\r\n  reactors:\r\n    agent:\r\n      max_in_flight: 3\r\n",
			want: func(r *tapeconfig.Reactor) { r.MaxInFlight = 3 }},
		{name: "ttl", file: "tape: {reactors: {agent: {lease_ttl_s: 60}}}",
			want: func(r *tapeconfig.Reactor) {
				r.TTL, r.Heartbeat = time.Minute, 20*time.Second
			}},
		{name: "everything", file: "tape: {reactors: {agent: {lease_ttl_s: 1.5, heartbeat_s: 0.25, takeover_min_s: 2, takeover_max_s: 3.0, max_in_flight: 10000, max_stall_s: 0.6, grace_s: 7, acquire_interval_s: 0.001}}}",
			want: func(r *tapeconfig.Reactor) {
				*r = tapeconfig.Reactor{
					Name: "agent", TTL: 1500 * time.Millisecond, Heartbeat: 250 * time.Millisecond, TakeoverMin: 2 * time.Second, TakeoverMax: 3 * time.Second,
					MaxInFlight: 10000, MaxStall: 600 * time.Millisecond, Grace: 7 * time.Second, AcquireInterval: time.Millisecond,
				}
			}},
		{name: "longest and shortest", file: "tape: {reactors: {agent: {lease_ttl_s: 1800, max_stall_s: 86400, takeover_min_s: 0.001, takeover_max_s: 86400}}}",
			want: func(r *tapeconfig.Reactor) {
				r.TTL, r.Heartbeat, r.MaxStall = 30*time.Minute, 10*time.Minute, 24*time.Hour
				r.TakeoverMin, r.TakeoverMax = time.Millisecond, 24*time.Hour
			}},
		{name: "no stall and no grace", file: "tape: {reactors: {agent: {max_stall_s: 0, grace_s: 0}}}"},
		{name: "long least back-off", file: "tape: {reactors: {agent: {takeover_min_s: 20}}}",
			want: func(r *tapeconfig.Reactor) { r.TakeoverMin, r.TakeoverMax = 20*time.Second, 20*time.Second }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := defaults
			if c.want != nil {
				c.want(&want)
			}
			config, err := tapeconfig.Parse("tape.yaml", []byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			r := config.Reactor("agent")
			if r != want {
				t.Errorf("%+v, want %+v", r, want)
			}
			accepted(t, r)
		})
	}
}

// accepted checks that the packages which take a reactor's options accept them.
func accepted(t *testing.T, r tapeconfig.Reactor) {
	t.Helper()
	store := memory.New(nil).Open()
	defer func() { _ = store.Close() }()
	_, keeper := lease.New(store, r.Lease())
	_, worker := takeover.New(store, "owner", r.Takeover())
	_, coordinator := election.New(store, "name", r.Election())
	_, lease := store.CreateRun(t.Context(), runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{
		Owner: "o", Reactor: r.Spec("o").Reactor, MaxStall: r.Spec("o").MaxStall, TTL: r.TTL,
	}})
	if err := errors.Join(keeper, worker, coordinator, lease); err != nil {
		t.Errorf("options of %+v: %v", r, err)
	}
}

// TestOptions compares the options field by field, so that none is left out.
func TestOptions(t *testing.T) {
	t.Parallel()
	r := tapeconfig.Reactor{
		Name: "outbox", TTL: 1, Heartbeat: 2, TakeoverMin: 3, TakeoverMax: 4, MaxInFlight: 5, MaxStall: 6, Grace: 7, AcquireInterval: 8,
	}
	l := &lease.Options{TTL: 1, Heartbeat: 2, MinBackoff: 3, MaxBackoff: 4, Grace: 7}
	if got := r.Lease(); !reflect.DeepEqual(got, l) {
		t.Errorf("Lease = %+v", got)
	}
	if got := r.Takeover(); !reflect.DeepEqual(got, &takeover.Options{Reactor: "outbox", MaxInFlight: 5, MinBackoff: 3, MaxBackoff: 4, MaxStall: 6, Lease: l}) {
		t.Errorf("Takeover = %+v", got)
	}
	if got := r.Election(); !reflect.DeepEqual(got, &election.Options{Reactor: "outbox", TTL: 1, Heartbeat: 2, AcquireInterval: 8, MaxStall: 6}) {
		t.Errorf("Election = %+v", got)
	}
	if got := r.Spec("o"); got != (runstore.LeaseSpec{Owner: "o", Reactor: "outbox", MaxStall: 6}) {
		t.Errorf("Spec = %+v", got)
	}
}

// The matcher has a TTL of its own by default, with a file, without one, and without a section.
func TestMatcherTTL(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]time.Duration{
		"": tapeconfig.MatcherTTL, "tape: {reactors: {matcher: {grace_s: 1}}}": tapeconfig.MatcherTTL, "tape: {reactors: {agent: {lease_ttl_s: 60}}}": tapeconfig.MatcherTTL,
		"tape: {reactors: {matcher: {lease_ttl_s: 60}}}": time.Minute,
	} {
		c, err := tapeconfig.Parse("f", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		if r := c.Reactor(tapeconfig.Matcher); r.TTL != want || r.Heartbeat != want/3 {
			t.Errorf("%q: a TTL of %v and a heartbeat of %v, want %v and a third of it", file, r.TTL, r.Heartbeat, want)
		}
	}
	if r := new(tapeconfig.Config).Reactor(tapeconfig.Matcher); r.TTL != tapeconfig.MatcherTTL {
		t.Errorf("without a file: a TTL of %v, want %v", r.TTL, tapeconfig.MatcherTTL)
	}
}

func TestZeroConfig(t *testing.T) {
	t.Parallel()
	var c tapeconfig.Config
	if r := c.Reactor("agent"); r != defaults || c.Reactors() != nil || c.File() != "" {
		t.Errorf("%+v, %v, %q, want the defaults", r, c.Reactors(), c.File())
	}
	if s, ok := c.Setting("serve.store"); ok {
		t.Errorf("Setting = %v", s)
	}
}

// TestExample checks that the annotated example is valid, names every key, and shows the defaults.
func TestExample(t *testing.T) {
	t.Parallel()
	c, err := tapeconfig.Load("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Reactors(); !slices.Equal(got, []runstore.Reactor{"recovery", "matcher"}) {
		t.Errorf("reactors %q", got)
	}
	want := defaults
	want.Name = "recovery"
	if r := c.Reactor("recovery"); r != want {
		t.Errorf("recovery is %+v, want the defaults, %+v", r, want)
	}
	for _, s := range c.Settings("recovery") {
		if s.Line == 0 {
			t.Errorf("%s is missing", s.Key)
		}
	}
	for _, key := range tapeconfig.ServeKeys() {
		if _, ok := c.Setting(key); !ok {
			t.Errorf("%s is missing", key)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	c, err := tapeconfig.Parse("f.yaml", []byte("serve:\n  store: 'sqlite:x'\n\ntape:\n  reactors:\n    a.b:\n      lease_ttl_s: 1.50\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := c.Setting("serve.store"); !ok || s != (tapeconfig.Setting{Key: "serve.store", Value: "sqlite:x", Line: 2}) {
		t.Errorf("serve.store: %+v, %v", s, ok)
	}
	want := []tapeconfig.Setting{
		{Key: "tape.reactors.a.b.lease_ttl_s", Value: "1.5", Line: 7}, {Key: "tape.reactors.a.b.heartbeat_s", Value: "0.5"},
		{Key: "tape.reactors.a.b.takeover_min_s", Value: "1"}, {Key: "tape.reactors.a.b.takeover_max_s", Value: "10"},
		{Key: "tape.reactors.a.b.max_in_flight", Value: "8"}, {Key: "tape.reactors.a.b.max_stall_s", Value: "0"},
		{Key: "tape.reactors.a.b.grace_s", Value: "0"}, {Key: "tape.reactors.a.b.acquire_interval_s", Value: "5"},
	}
	if got := c.Settings("a.b"); !slices.Equal(got, want) {
		t.Errorf("settings %+v, want %+v", got, want)
	}
	for key, line := range map[string]int{
		"serve.store": 2, "serve.listen": 1, tapeconfig.Key("a.b", "lease_ttl_s"): 7, tapeconfig.Key("a.b", "grace_s"): 6, tapeconfig.Key("c", "grace_s"): 5,
	} {
		if f := c.Fault(key, "is odd"); f != (tapeconfig.Fault{File: "f.yaml", Line: line, Key: key, Problem: "is odd"}) {
			t.Errorf("fault %v, want line %d", f, line)
		}
	}
}

func TestLoadFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if c, err := tapeconfig.Load(filepath.Join(dir, "none.yaml")); c != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v, want fs.ErrNotExist", c, err)
	}
	if c, err := tapeconfig.Load(dir); c != nil || err == nil {
		t.Errorf("a directory: %v, %v", c, err)
	}
	file := filepath.Join(dir, "large.yaml")
	for size, want := range map[int]error{tapeconfig.MaxBytes: nil, tapeconfig.MaxBytes + 1: runstore.ErrTooLarge} {
		if err := os.WriteFile(file, []byte("#"+strings.Repeat("x", size-1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := tapeconfig.Load(file); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}
