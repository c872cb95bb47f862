package tapeconfig_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeconfig"
)

// TestAllFaultsAtOnce has faults of every sort in one file.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := tapeconfig.Parse("tape.yaml", []byte(`tape:
  reactors:
    agent:
      lease_ttl_s: 30
      heartbeat_s: 25
      takeover_min_s: 5
      takeover_max_s: 2
      max_in_flight: 10001
      max_stall_s: 90000
      grace_s: 86400.5
      acquire_interval_s: 86401
    recovery:
      lease_ttl_s: 1801
      heartbeat: 5
      max_stall_s: 1300
      max_in_flight: 10001
    outbox: 30
    timers:
      lease_ttl_s: 30s
      lease_ttl_s: 40
      heartbeat_s: 25
      max_in_flight: -1
      acquire_interval_s:
    "re actor": {}
  reactor: 1
serve:
  stroe: sqlite:x
  listen: 7878
  max_streams: 1.5
  matcher: yes
  drain_s: [8]
  log_level: ""
  max_connections: 0
other: 1
`))
	want := strings.TrimSpace(`
tape.yaml:5: tape.reactors.agent.heartbeat_s: a renewal that starts after 25s and may take 12.5s does not fit into the trusted time of 27s (TTL less margin)
tape.yaml:7: tape.reactors.agent.takeover_max_s: 2s is less than the minimum, 5s
tape.yaml:8: tape.reactors.agent.max_in_flight: 10001 is out of range, the limits are 1 and 10000
tape.yaml:9: tape.reactors.agent.max_stall_s: 25h0m0s is out of range, the limits are 1ms and 24h0m0s, or 0 for none
tape.yaml:10: tape.reactors.agent.grace_s: 86400.5 s is out of range, the limits are 1ms and 24h0m0s
tape.yaml:11: tape.reactors.agent.acquire_interval_s: 86401 s is out of range, the limits are 1ms and 24h0m0s
tape.yaml:13: tape.reactors.recovery.lease_ttl_s: 30m1s is out of range, the limits are 1ms and 30m0s
tape.yaml:14: tape.reactors.recovery.heartbeat: unknown key; did you mean heartbeat_s?
tape.yaml:16: tape.reactors.recovery.max_in_flight: 10001 is out of range, the limits are 1 and 10000
tape.yaml:17: tape.reactors.outbox: is the number 30; it is a section, with a key on each line: KEY, a colon, a space, VALUE
tape.yaml:19: tape.reactors.timers.lease_ttl_s: is a text; it is a number of seconds, for example 10 or 0.5
tape.yaml:20: tape.reactors.timers.lease_ttl_s: is given twice; the first is in line 19
tape.yaml:22: tape.reactors.timers.max_in_flight: is the number -1; it is a whole number of at least 1
tape.yaml:23: tape.reactors.timers.acquire_interval_s: has no value; leave the key out for the default
tape.yaml:24: tape.reactors: the name of a reactor is 1 to 256 letters, digits and _-. only
tape.yaml:25: tape.reactor: unknown key; did you mean reactors?
tape.yaml:27: serve.stroe: unknown key; did you mean store?
tape.yaml:28: serve.listen: is the number 7878; it is a text. Write one that contains a colon, or looks like a number, in quotes
tape.yaml:29: serve.max_streams: is the number 1.5; it is a whole number of at least 1
tape.yaml:30: serve.matcher: is a text; it is true or false
tape.yaml:31: serve.drain_s: is a list; it is a number of seconds, for example 10 or 0.5
tape.yaml:32: serve.log_level: is empty; leave the key out for the default
tape.yaml:33: serve.max_connections: is the number 0; it is a whole number of at least 1
tape.yaml:34: other: unknown key; the keys are tape, serve`)
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if !errors.Is(err, runstore.ErrInvalid) {
		t.Error("the error does not match ErrInvalid")
	}
	var all *tapeconfig.Error
	if !errors.As(err, &all) || len(all.Faults) != strings.Count(want, "\n")+1 {
		t.Errorf("faults %+v", all)
	}
	var first tapeconfig.Fault
	if !errors.As(err, &first) || first.Line != 5 || first.Key != "tape.reactors.agent.heartbeat_s" {
		t.Errorf("the first fault is %+v", first)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	reactor := func(keys string) string { return "tape:\n  reactors:\n    agent:\n      " + keys }
	for _, c := range []struct{ name, file, want string }{
		{"a list", "- tape\n", "f:1: is a list"},
		{"a text", "tape\n", "f:1: is a text"},
		{"no space after the colon", "serve:\n  store:sqlite\n", "f:1: serve: is a text"},
		{"not YAML", "tape:\n  reactors: }\n", "f:2: not YAML"},
		{"not YAML in the first line", "}\n", "f:1: not YAML"},
		{"an unclosed brace", "tape:\n\n  reactors: {a: {}\n", "f:3: not YAML"},
		{"two colons", "tape:\n  reactors: a: b\n", "f:2: not YAML"},
		{"a tab", "tape:\n\treactors:\n", "f:2: not YAML"},
		{"control characters", "tape: \x00", "f: not YAML"},
		{"not UTF-8", "serve: {store: \"\xff\"}", "f: not YAML"},
		{"two documents", "tape:\n---\nserve:\n", "f:2: a second document"},
		{"a bad second document", "tape:\n---\n}\n", "not YAML"},
		{"an alias without an anchor", "serve: {store: *nowhere}\n", "an alias (*) has no anchor"},
		{"an alias", "serve: {store: &a x, listen: *a}\n", "f:1: serve.listen: is an alias, which is not supported"},
		{"an alias as a section", "tape: {reactors: {agent: &a {grace_s: 1}, outbox: *a}}", "tape.reactors.outbox: is an alias"},
		{"a cycle", "tape: &t\n  reactors: *t\n", "f:2: tape.reactors: is an alias"},
		{"a merge key", reactor("<<: {grace_s: 1}"), "f:4: tape.reactors.agent: merge keys"},
		{"a list as a key", "? [a]\n: 1\n", "a key is a list"},
		{"a section twice", "serve:\ntape:\nserve:\n", "f:3: serve: is given twice; the first is in line 1"},
		{"a reactor twice", reactor("grace_s: 1\n    agent:\n"), "f:5: tape.reactors.agent: is given twice; the first is in line 3"},
		{"no name", "tape: {reactors: {'': }}", "the name of a reactor"},
		{"a long name", "tape: {reactors: {" + strings.Repeat("a", 257) + ": }}", "reactor: 257 bytes"},
		{"octal", reactor("lease_ttl_s: 010"), "is the number 010; it is a number of seconds"},
		{"hexadecimal", reactor("lease_ttl_s: 0x1e"), "is the number 0x1e"},
		{"underscores", reactor("lease_ttl_s: 1_0"), "it is a number of seconds"},
		{"an exponent", reactor("lease_ttl_s: 1e1"), "is the number 1e1"},
		{"infinite", reactor("lease_ttl_s: .inf"), "is the number .inf"},
		{"not a number", reactor("lease_ttl_s: .nan"), "is the number .nan"},
		{"negative", reactor("heartbeat_s: -1"), "is the number -1"},
		{"a quoted number", reactor("heartbeat_s: '10'"), "is a text; it is a number of seconds"},
		{"a tag", reactor("heartbeat_s: !!str 10"), "is a value with a tag"},
		{"a tag of the caller's", "serve: {store: !secret x}", "is a value with a tag"},
		{"tiny", reactor("heartbeat_s: 0.0009"), "f:4: tape.reactors.agent.heartbeat_s: 0.0009 s is out of range, the least is 1ms"},
		{"zero", reactor("lease_ttl_s: 0"), "0 s is out of range, the least is 1ms"},
		{"huge", reactor("lease_ttl_s: 99999999999999999999"), "lease_ttl_s: 99999999999999999999 s is out of range"},
		{"a huge heartbeat", reactor("heartbeat_s: 9000000000"), "heartbeat_s: a renewal that starts after 2500000h0m0s"},
		{"a huge number of digits", reactor("lease_ttl_s: " + strings.Repeat("9", 100)), strings.Repeat("9", 32) + "… s is out of range"},
		{"huge in flight", reactor("max_in_flight: 99999999999999999999"), "is out of range, the limits are 1 and 10000"},
		{"an unset key that follows", reactor("heartbeat_s: 25"), "f:4: tape.reactors.agent.heartbeat_s: a renewal"},
		{"a stall beside a bad TTL", reactor("lease_ttl_s: 99999\n      max_stall_s: 80"), "lease_ttl_s: 27h46m39s is out of range"},
		{"a short stall", reactor("max_stall_s: 20"), "f:4: tape.reactors.agent.max_stall_s: 20s is not longer than two heartbeats of 10s"},
		{"hyphens", reactor("max-in-flight: 3"), "did you mean max_in_flight?"},
		{"capitals", reactor("leaseTTLs: 3"), "did you mean lease_ttl_s?"},
		{"far from any key", reactor("colour: 3"), "unknown key; the keys are acquire_interval_s, grace_s, heartbeat_s, lease_ttl_s, max_in_flight, max_stall_s, takeover_max_s, takeover_min_s"},
		{"a section as a text", "serve: {store: memory: }", "not YAML"},
		{"a colon at the end", "serve:\n  store: {memory: }\n", "f:2: serve.store: is a section; it is a text. Write one that contains a colon"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := tapeconfig.Parse("f", []byte(c.file))
			var all *tapeconfig.Error
			if !errors.As(err, &all) || !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an Error with %q", err, c.want)
			}
			if len(all.Faults) != 1 {
				t.Errorf("%d faults, want one: %v", len(all.Faults), err)
			}
		})
	}
}

// TestMalformedHidesOnlyWhatDependsOnIt has a malformed TTL: the heartbeat cannot be judged, the
// rest can.
func TestMalformedHidesOnlyWhatDependsOnIt(t *testing.T) {
	t.Parallel()
	_, err := tapeconfig.Parse("f", []byte("tape: {reactors: {a: {lease_ttl_s: 60s, heartbeat_s: 25, max_in_flight: 10001, takeover_min_s: 2, takeover_max_s: 1}}}"))
	var all *tapeconfig.Error
	if !errors.As(err, &all) || len(all.Faults) != 3 || strings.Contains(err.Error(), "heartbeat") {
		t.Errorf("got %v, want faults of lease_ttl_s, max_in_flight and takeover_max_s", err)
	}
}

// The packages that share an option report its faults once together, also where all keys are in one line.
func TestFaultsOfOneLine(t *testing.T) {
	t.Parallel()
	_, err := tapeconfig.Parse("f", []byte("tape: {reactors: {a: {lease_ttl_s: 1801, heartbeat_s: 1700, takeover_min_s: 2, takeover_max_s: 1}}}"))
	var all *tapeconfig.Error
	if !errors.As(err, &all) || len(all.Faults) != 3 {
		t.Errorf("got %v, want faults of lease_ttl_s, heartbeat_s and takeover_max_s, each once", err)
	}
}

// TestNoSecretIsPrinted puts a URL with a password into places where it does not belong.
func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	const url = "postgres://u:s3cret@h/db"
	for _, form := range []string{
		"serve:\n  store:" + url + "\n", "serve:\n  store:" + url + "\n  listen: x\n", "serve: " + url, url, url + ": 1", "serve: {" + url + ": 1}",
		"serve: {store:" + url + ": 1}", "serve: {store: [" + url + "]}", "serve: {store: {" + url + ": x}}", "serve: {store: *" + url + "}",
		"serve: {drain_s: '" + url + "'}", "serve: {matcher: " + url + "}", "serve: {max_streams: " + url + "}", "serve: {store: !" + url + " x}",
		"serve: {store: !!int " + url + "}", "serve: {store: \"" + url + "}", "serve: {store: '" + url + "}", "serve: {store: |" + url + "}",
		"serve: {store: &" + url + " }", "tape: {reactors: {" + url + ": {}}}", "tape: {reactors: {a: {" + url + ": 1}}}", "%" + url + "\n---\n", "serve:\n store: @" + url,
		"tape: {reactors: {a: " + url + "}}", "--- " + url + "\n--- " + url, "serve: {store: x, store: " + url + ", " + url + ": , " + url + ": }",
	} {
		if _, err := tapeconfig.Parse("f", []byte(form)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", form, err)
		}
	}
}

// FuzzParse checks that no file makes Parse panic, and that a file without faults has valid options.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "tape: {reactors: {a: {lease_ttl_s: 1}}}", "serve: {store: x}", "a: &a [*a]", "tape:\n  reactors:\n    a:\n      heartbeat_s: 1\n      max_stall_s: 2.5\n", "---\n...\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := tapeconfig.Parse("f", data)
		if err != nil {
			return
		}
		for _, name := range c.Reactors() {
			accepted(t, c.Reactor(name))
		}
	})
}
