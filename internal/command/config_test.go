package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeconfig"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// configFile writes a file of settings and returns its path.
func configFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tape.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// resolved returns the settings of serve with a file, an environment and arguments.
func resolved(t *testing.T, file string, env map[string]string, args ...string) (serveConfig, *settings) {
	t.Helper()
	cmd := newServeCommand()
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return newSettings(cmd, func(name string) (string, bool) {
		if v, ok := env[name]; ok || name != configVariable || file == "" {
			return v, ok
		}
		return file, true
	})
}

// TestPrecedence sets every setting at one level after the other: file, environment, flag.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	levels := map[string][4]string{ // by flag: the default, and the texts in the file, in the environment and as a flag
		"listen": {"127.0.0.1:7878", "'a:1'", "b:2", "c:3"}, "healthz-listen": {"127.0.0.1:7879", "'a:1'", "b:2", "c:3"},
		"metrics-listen": {"", "'a:1'", "b:2", "c:3"}, "ui-listen": {"", "'localhost:1'", "127.0.0.1:2", "[::1]:3"},
		"store": {defaultStore, "a.db", "b.db", "c.db"}, "fence": {"presented", "required", "connection", "presented"},
		"takeover": {"any", "expired", "any", "expired"}, "max-message-bytes": {"4194304", "4096", "4097", "4098"},
		"max-bytes-in-flight": {"134217728", "1", "2", "3"}, "max-connections": {"1024", "1", "2", "3"}, "max-streams": {"2048", "1", "2", "3"},
		"max-connections-per-address": {"0", "1", "2", "3"},
		"drain":                       {"8s", "1.5", "2s", "3s"}, "matcher": {"true", "false", "true", "false"}, "log-level": {"info", "debug", "warn", "error"},
		"log-format": {"text", "json", "text", "json"}, "matcher-lease": {"10s", "1.5", "2s", "3s"},
		"insecure": {"false", "true", "false", "true"}, "tls-cert": {"", "a", "b", "c"}, "tls-key": {"", "a", "b", "c"},
		"tls-min-version": {"1.2", "'1.3'", "1.2", "1.3"}, "tls-client-ca": {"", "a", "b", "c"}, "tls-client-crl": {"", "a", "b", "c"},
		"principals": {"", "a", "b", "c"}, "oidc-issuer": {"", "'https://a'", "https://b", "https://c/d"}, "oidc-audience": {"", "a", "b", "c"},
		"oidc-roles-claim": {"", "a", "b", "c"}, "oidc-tenants-claim": {"", "a", "b", "c"}, "max-calls-per-second": {"0", "1", "2", "3"},
		"retain-journals": {"", "90d", "91d", "92d"}, "retain-feed": {"", "1d", "2d", "3d"}, "retain-tasks": {"", "1d", "2d", "48h"},
		"retain-dead-tasks": {"", "1w", "2w", "3w"}, "retain-archive": {"", "none", "b", "c"}, "retain-pace": {"50", "0", "2", "3"},
	}
	// What a setting needs.
	needs := map[string]map[string]string{
		"retain-journals": {"TAPE_RETAIN_ARCHIVE": "none"}, "retain-feed": {"TAPE_RETAIN_ARCHIVE": "none", "TAPE_RETAIN_JOURNALS": "90d"},
		"retain-archive": {"TAPE_RETAIN_JOURNALS": "90d"},
		"listen":         {"TAPE_INSECURE": "true"}, "tls-cert": {"TAPE_TLS_KEY": "k"}, "tls-key": {"TAPE_TLS_CERT": "c"},
		"tls-client-ca":  {"TAPE_TLS_CERT": "c", "TAPE_TLS_KEY": "k", "TAPE_PRINCIPALS": "p"},
		"tls-client-crl": {"TAPE_TLS_CERT": "c", "TAPE_TLS_KEY": "k", "TAPE_PRINCIPALS": "p", "TAPE_TLS_CLIENT_CA": "ca"},
		"oidc-issuer":    {"TAPE_OIDC_AUDIENCE": "a"}, "oidc-audience": {"TAPE_OIDC_ISSUER": "https://i"},
		"oidc-roles-claim":   {"TAPE_OIDC_AUDIENCE": "a", "TAPE_OIDC_ISSUER": "https://i"},
		"oidc-tenants-claim": {"TAPE_OIDC_AUDIENCE": "a", "TAPE_OIDC_ISSUER": "https://i", "TAPE_OIDC_ROLES_CLAIM": "r"},
	}
	if len(levels) != len(serveSources) {
		t.Errorf("%d settings, want %d", len(levels), len(serveSources))
	}
	for _, source := range serveSources {
		t.Run(source.flag, func(t *testing.T) {
			t.Parallel()
			texts, ok := levels[source.flag]
			if !ok {
				t.Fatal("a setting without a test")
			}
			parent, key := source.key[:strings.LastIndexByte(source.key, '.')], source.key[strings.LastIndexByte(source.key, '.')+1:]
			file := configFile(t, fmt.Sprintf("%s: {%s: %s}%s\n", strings.ReplaceAll(parent, ".", ": {"), key, texts[1], strings.Repeat("}", strings.Count(parent, "."))))
			others := needs[source.flag]
			env := map[string]string{source.variable: texts[2]}
			maps.Copy(env, others)
			check := func(level, want, place string, s *settings) {
				t.Helper()
				if len(s.faults) > 0 {
					t.Fatalf("%s: %v", level, s.faults)
				}
				if v := s.values[source.flag]; v.text != want || v.place != place {
					t.Errorf("%s: %q from %s, want %q from %s", level, v.text, v.place, want, place)
				}
			}
			_, s := resolved(t, "", nil)
			check("default", texts[0], byDefault, s)
			_, s = resolved(t, file, others)
			inFile := strings.Trim(texts[1], "'")
			if strings.HasSuffix(source.key, "_s") {
				inFile += "s"
			}
			check("file", inFile, file+":1", s)
			_, s = resolved(t, file, env)
			check("environment", texts[2], source.variable, s)
			_, s = resolved(t, file, env, "--"+source.flag+"="+texts[3])
			check("flag", texts[3], "--"+source.flag, s)
		})
	}
}

// The file's section serve has a key for each setting of serve.
func TestKeysOfServe(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, source := range serveSources {
		if source.key != matcherTTLKey {
			keys = append(keys, source.key)
		}
	}
	slices.Sort(keys)
	if !slices.Equal(keys, tapeconfig.ServeKeys()) {
		t.Errorf("settings %q, keys %q", keys, tapeconfig.ServeKeys())
	}
}

func TestServeConfigFile(t *testing.T) {
	t.Parallel()
	file := configFile(t, `
tape:
  reactors:
    agent: {lease_ttl_s: 45}
    recovery: {heartbeat_s: 5, max_in_flight: 3}
    matcher: {lease_ttl_s: 20, heartbeat_s: 1}
serve:
  listen: a:1
  healthz_listen: ""
  store: x.db
  fence: required
  takeover: expired
  max_streams: 7
  drain_s: 0.5
  matcher: false
  log_format: json
  insecure: true
`)
	want := serveConfig{
		security: securityConfig{insecure: true},
		listen:   "a:1", probesGiven: true, store: "sqlite:x.db", fence: tape.FenceRequired, waitForLease: true, maxMessageBytes: 4 << 20,
		limits: tapeserver.Limits{BytesInFlight: 128 << 20, Connections: 1024, Streams: 7}, drain: 500 * time.Millisecond,
		noMatcher: true, matcherLease: 20 * time.Second, matcherHeartbeat: time.Second, logJSON: true,
		leaseTTL: map[runstore.Reactor]time.Duration{"agent": 45 * time.Second},
	}
	if got, s := resolved(t, "", nil, "--config="+file); len(s.faults) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, s.faults, want)
	}
	// The older names of the store win over the file, and the flag over the variable of the file.
	got, s := resolved(t, file, map[string]string{"TAPE_DB": "y"}, "--config=")
	if len(s.faults) > 0 || got.listen != defaultListen || got.store != "sqlite:y" {
		t.Errorf("without the file: %+v, %v", got, s.faults)
	}
	if got, _ := resolved(t, file, map[string]string{"TAPE_DB": "y"}); got.store != "sqlite:y" {
		t.Errorf("store %q, want that of TAPE_DB", got.store)
	}
	if got, _ := resolved(t, file, map[string]string{"TAPE_HEALTHZ_LISTEN": "b:2"}); got.probes != "b:2" {
		t.Errorf("probes %q, want those of the variable", got.probes)
	}
}

// TestConfigFaults has faults in the file, in the environment and of the two together.
func TestConfigFaults(t *testing.T) {
	file := configFile(t, `tape:
  reactors:
    agent: {lease_ttl_s: 0.0001}
    matcher: {lease_ttl_s: 20, heartbeat_s: 8, max_in_flight: 3}
serve:
  store: host=db password=s3cret
  fence: maybe
  takeover: s3cret@db
  colour: red
  log_level: loud
`)
	t.Setenv("TAPE_FENCE", "required") // the file's value is a fault all the same
	t.Setenv("TAPE_MAX_STREAMS", "many")
	t.Setenv("TAPE_MATCHER_LEASE", "10s")
	t.Setenv("TAPE_LOG_FORMAT", "s3cret@db")
	stdout, stderr, err := here(t, "", "config", "check", file)
	if err == nil || err.Error() != "the configuration has 10 faults" || stdout != "" {
		t.Errorf("%v, output %q", err, stdout)
	}
	want := strings.ReplaceAll(`tape.yaml:3: tape.reactors.agent.lease_ttl_s: 0.0001 s is out of range, the least is 1ms
tape.yaml:4: tape.reactors.matcher.max_in_flight: has no effect: the matcher takes lease_ttl_s and heartbeat_s
tape.yaml:4: tape.reactors.matcher.heartbeat_s: a renewal that starts after 8s and may take 4s does not fit into the trusted time of 9s (TTL less margin); the TTL is 10s (TAPE_MATCHER_LEASE)
tape.yaml:6: serve.store: is neither a store URL nor a path; write scheme:address, for example postgres://user@host/database, or ./FILE or sqlite:FILE for an SQLite file
tape.yaml:7: serve.fence: is "maybe"; it is presented, required or connection
tape.yaml:8: serve.takeover: is ***; it is any or expired
tape.yaml:9: serve.colour: unknown key; the keys are drain_s, fence, healthz_listen, insecure, listen, log_format, log_level, matcher, max_bytes_in_flight, max_calls_per_second, max_connections, max_connections_per_address, max_message_bytes, max_streams, metrics_listen, oidc_audience, oidc_issuer, oidc_roles_claim, oidc_tenants_claim, principals, retain_archive, retain_dead_tasks, retain_feed, retain_journals, retain_pace, retain_tasks, store, takeover, tls_cert, tls_client_ca, tls_client_crl, tls_key, tls_min_version, ui_listen
tape.yaml:10: serve.log_level: is "loud"; it is debug, info, warn or error
TAPE_MAX_STREAMS is "many"; it is a whole number of at least 1
TAPE_LOG_FORMAT is ***; it is text or json
`, "tape.yaml", file)
	if stderr != want {
		t.Errorf("got\n%s\nwant\n%s", stderr, want)
	}
	// serve reports the same faults, in one line.
	_, _, err = here(t, "", "serve", "--config", file)
	if err == nil {
		t.Fatal("serve began")
	}
	for line := range strings.Lines(want) {
		if !strings.Contains(err.Error(), strings.TrimSpace(line)) {
			t.Errorf("serve does not report %q: %v", line, err)
		}
	}
}

// A malformed TTL of the matcher is the only fault: the heartbeat cannot be judged.
func TestMalformedTTLOfTheMatcher(t *testing.T) {
	t.Parallel()
	file := configFile(t, "tape: {reactors: {matcher: {lease_ttl_s: 60s, heartbeat_s: 15}}}")
	if _, s := resolved(t, file, nil); len(s.faults) != 1 || !strings.Contains(s.faults[0].Error(), "lease_ttl_s: is a text") {
		t.Errorf("faults %v, want one, of lease_ttl_s", s.faults)
	}
}

func TestConfigCheck(t *testing.T) {
	file := configFile(t, `tape:
  reactors:
    recovery:
      lease_ttl_s: 60
    matcher:
      heartbeat_s: 2
serve:
  store: postgres://tape:s3cret@db/tape?sslpassword=s3cret
  drain_s: 1.50
`)
	t.Setenv(configVariable, file)
	t.Setenv("TAPE_LISTEN", "127.0.0.1:9")
	t.Setenv("TAPE_HEALTHZ_LISTEN", "")
	const want = `KEY                                        VALUE                      SOURCE
serve.listen                               127.0.0.1:9                TAPE_LISTEN
serve.healthz_listen                       -                          TAPE_HEALTHZ_LISTEN
serve.metrics_listen                       -                          default
serve.ui_listen                            -                          default
serve.store                                postgres://tape:***@db/tape?…  FILE:8
serve.fence                                presented                  default
serve.takeover                             any                        default
serve.max_message_bytes                    4194304                    default
serve.max_bytes_in_flight                  134217728                  default
serve.max_connections                      1024                       default
serve.max_connections_per_address          0                          default
serve.max_streams                          2048                       default
serve.drain_s                              1.5                        FILE:9
serve.matcher                              true                       default
serve.log_level                            info                       default
serve.log_format                           text                       default
serve.retain_journals                      -                          default
serve.retain_feed                          -                          default
serve.retain_tasks                         -                          default
serve.retain_dead_tasks                    -                          default
serve.retain_archive                       -                          default
serve.retain_pace                          50                         default
serve.insecure                             false                      default
serve.tls_cert                             -                          default
serve.tls_key                              -                          default
serve.tls_min_version                      1.2                        default
serve.tls_client_ca                        -                          default
serve.tls_client_crl                       -                          default
serve.principals                           -                          default
serve.oidc_issuer                          -                          default
serve.oidc_audience                        -                          default
serve.oidc_roles_claim                     -                          default
serve.oidc_tenants_claim                   -                          default
serve.max_calls_per_second                 0                          default
tape.reactors.recovery.lease_ttl_s         60                         FILE:4
tape.reactors.recovery.heartbeat_s         20                         default
tape.reactors.recovery.takeover_min_s      1                          default
tape.reactors.recovery.takeover_max_s      10                         default
tape.reactors.recovery.max_in_flight       8                          default
tape.reactors.recovery.max_stall_s         0                          default
tape.reactors.recovery.grace_s             0                          default
tape.reactors.recovery.acquire_interval_s  5                          default
tape.reactors.matcher.lease_ttl_s          10                         default
tape.reactors.matcher.heartbeat_s          2                          FILE:6`
	for _, args := range [][]string{{"config", "check"}, {"config", "check", file}} {
		stdout, stderr, err := here(t, "", args...)
		if err != nil || stderr != "" {
			t.Fatalf("%v, %s", err, stderr)
		}
		got, wanted := strings.Split(strings.TrimSpace(strings.ReplaceAll(stdout, file, "FILE")), "\n"), strings.Split(want, "\n")
		for i := range max(len(got), len(wanted)) {
			if i >= len(got) || i >= len(wanted) || !slices.Equal(strings.Fields(got[i]), strings.Fields(wanted[i])) {
				t.Fatalf("line %d of\n%s\nwant\n%s", i+1, stdout, want)
			}
		}
	}
	stdout, _, err := here(t, "", "config", "check", "--format=json")
	var rows []struct{ Key, Value, Source string }
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil {
		t.Fatal(err)
	}
	if err != nil || len(rows) != strings.Count(want, "\n") || rows[0] != (struct{ Key, Value, Source string }{"serve.listen", "127.0.0.1:9", "TAPE_LISTEN"}) ||
		rows[1].Value != "" || strings.Contains(stdout, "s3cret") {
		t.Errorf("%v, %s", err, stdout)
	}
}

func TestConfigCheckRefuses(t *testing.T) {
	const secret = "postgres://u:s3cret@h/db"
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for _, c := range []struct {
		env, want string
		args      []string
	}{
		{args: []string{"config"}, want: "say what to do: check"},
		{args: []string{"config", "check", missing}, want: "--config: open " + missing},
		{env: missing, args: []string{"config", "check"}, want: configVariable + ": open " + missing},
		{args: []string{"config", "check", ""}, want: "PATH is empty"},
		{args: []string{"config", "check", "--format=xml"}, want: "table or json"},
		{args: []string{"config", "check", secret}, want: "--config: open postgres://u:***@h/db"},
		{env: secret, args: []string{"config", "check"}, want: "open postgres://u:***@h/db"},
		{args: []string{"serve", "--config", missing}, want: "--config: open " + missing},
		{env: missing, args: []string{"serve"}, want: configVariable + ": open " + missing},
		{args: []string{"config", "check", configFile(t, "serve: {store: 'spanner-ish://u:s3cret@h'}")}, want: `tape.yaml:1: serve.store: has the unknown scheme "spanner-ish"`},
		{args: []string{"config", "check", configFile(t, "serve: {store: 'memory:?%zz'}")}, want: "tape.yaml:1: serve.store: is no store URL: of scheme"},
		{args: []string{"serve", "--config", t.TempDir()}, want: "directory"},
	} {
		t.Setenv(configVariable, c.env)
		stdout, stderr, err := here(t, "", c.args...)
		said := stderr + fmt.Sprint(err)
		if err == nil || !strings.Contains(said, c.want) || stdout != "" || strings.Contains(stderr, "s3cret") {
			t.Errorf("%q: %v, %s, want an error with %q", c.args, err, stderr, c.want)
		}
	}
}

// A server takes its settings from the file, and a reactor's TTL for requests without one.
func TestServeWithAConfigFile(t *testing.T) {
	t.Parallel()
	db := filepath.Join(t.TempDir(), "x.db")
	file := configFile(t, fmt.Sprintf("tape: {reactors: {agent: {lease_ttl_s: 45}, matcher: {lease_ttl_s: 3, heartbeat_s: 1}}}\nserve: {store: %q, healthz_listen: ''}\n", "sqlite:"+db))
	c := start(t, "--config", file).client(t)
	begun, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a", LeaseOwner: "o"})
	if err != nil || begun.GetGrant().GetTtlMs() != 45_000 {
		t.Errorf("BeginRun = %v, %v, want a TTL of 45 s", begun, err)
	}
	if _, err := os.Stat(db); err != nil {
		t.Error(err)
	}
}
