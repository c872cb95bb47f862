package command

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeconfig"
)

// configVariable is the environment variable that names the file of serve's settings.
const configVariable = "TAPESTORE_CONFIG"

var (
	matcherTTLKey       = tapeconfig.Key(tapeconfig.Matcher, "lease_ttl_s")
	matcherHeartbeatKey = tapeconfig.Key(tapeconfig.Matcher, "heartbeat_s")
)

// serveSources are the flags of serve with the places that may set them instead, in the order in
// which config check shows them.
var serveSources = slices.Concat([]settingSource{
	{"listen", "TAPE_LISTEN", "serve.listen"},
	{"healthz-listen", "TAPE_HEALTHZ_LISTEN", "serve.healthz_listen"},
	{"metrics-listen", "TAPE_METRICS_LISTEN", "serve.metrics_listen"},
	{"ui-listen", "TAPE_UI_LISTEN", "serve.ui_listen"},
	{"store", storeVariable, "serve.store"},
	{"fence", "TAPE_FENCE", "serve.fence"},
	{"takeover", "TAPE_TAKEOVER", "serve.takeover"},
	{"max-message-bytes", "TAPE_MAX_MESSAGE_BYTES", "serve.max_message_bytes"},
	{"max-bytes-in-flight", "TAPE_MAX_BYTES_IN_FLIGHT", "serve.max_bytes_in_flight"},
	{"max-connections", "TAPE_MAX_CONNECTIONS", "serve.max_connections"},
	{"max-connections-per-address", "TAPE_MAX_CONNECTIONS_PER_ADDRESS", "serve.max_connections_per_address"},
	{"max-streams", "TAPE_MAX_STREAMS", "serve.max_streams"},
	{"drain", "TAPE_DRAIN", "serve.drain_s"},
	{"matcher", "TAPE_MATCHER", "serve.matcher"},
	{"log-level", "TAPE_LOG_LEVEL", "serve.log_level"},
	{"log-format", "TAPE_LOG_FORMAT", "serve.log_format"},
	{"matcher-lease", "TAPE_MATCHER_LEASE", matcherTTLKey},
}, retainSources, securitySources)

// settingSource is a flag, and the variable and the key of tape.yaml that may set it instead.
type settingSource struct{ flag, variable, key string }

// value is the text of a setting, and the place that sets it.
type value struct {
	text string
	key  string
	// place is the flag, the variable or FILE:LINE; "default" if the setting is not set.
	place    string
	fromFile bool
}

func (v value) given() bool { return v.place != byDefault }

const byDefault = "default"

// settings resolves the settings of serve, each from the first of flag, environment, file and
// default that sets it.
type settings struct {
	cmd  *cobra.Command
	env  func(string) (string, bool)
	file *tapeconfig.Config
	// fileFaults are the faults of the file; the settings that have one are not in file.
	fileFaults []error
	// alone omits the faults of settings that do not fit together: the others may come from elsewhere.
	alone  bool
	values map[string]value // by flag
	faults []error
}

// serveSettings returns the configuration of serve, or an error that joins all faults.
func serveSettings(cmd *cobra.Command, env func(string) (string, bool)) (serveConfig, error) {
	cfg, s := newSettings(cmd, env)
	return cfg, errors.Join(s.faults...)
}

// newSettings resolves the settings of serve. A fault of the file is a fault even if a flag or a
// variable wins over the key.
func newSettings(cmd *cobra.Command, env func(string) (string, bool)) (serveConfig, *settings) {
	file, faults := loadConfig(cmd, env)
	alone := &settings{cmd: newServeCommand(), env: func(string) (string, bool) { return "", false }, file: file, fileFaults: faults, alone: true}
	alone.resolve()
	s := &settings{cmd: cmd, env: env, file: file, fileFaults: faults}
	cfg := s.resolve()
	for _, fault := range slices.Concat(alone.faults, s.faults) {
		if !slices.ContainsFunc(faults, func(f error) bool { return f.Error() == fault.Error() }) {
			faults = append(faults, fault)
		}
	}
	slices.SortStableFunc(faults, func(a, b error) int { return cmp.Compare(faultLine(a), faultLine(b)) })
	s.faults = faults
	return cfg, s
}

// faultLine returns the line of a fault in the file. Faults elsewhere come last.
func faultLine(err error) int {
	var fault tapeconfig.Fault
	if errors.As(err, &fault) {
		return fault.Line
	}
	return math.MaxInt
}

// resolve returns the configuration, and collects the faults of the settings.
func (s *settings) resolve() (cfg serveConfig) {
	s.values = map[string]value{}
	for _, source := range serveSources {
		s.values[source.flag] = s.find(source.flag, source.variable, source.key)
	}
	cfg.listen = s.address("listen")
	cfg.probes, cfg.probesGiven = s.address("healthz-listen"), s.values["healthz-listen"].given()
	cfg.metrics = s.address("metrics-listen")
	cfg.ui = s.address("ui-listen")
	cfg.store = s.store()
	cfg.maxMessageBytes = int(s.whole("max-message-bytes", leastMessage))
	cfg.limits.BytesInFlight = s.whole("max-bytes-in-flight", 1)
	cfg.limits.Connections = int(s.whole("max-connections", 1))
	cfg.limits.Streams = int(s.whole("max-streams", 1))
	cfg.limits.ConnectionsPerAddress = int(s.whole("max-connections-per-address", 0))
	cfg.limits.CallsPerSecond = int(s.whole("max-calls-per-second", 0))

	switch v := s.values["fence"]; v.text {
	case tape.FencePresented.String():
		cfg.fence = tape.FencePresented
	case tape.FenceRequired.String():
		cfg.fence = tape.FenceRequired
	case tape.FenceConnection.String():
		cfg.fence = tape.FenceConnection
	default:
		s.refuse(v, "is %s; it is presented, required or connection", quoted(v.text))
	}
	switch v := s.values["takeover"]; v.text {
	case "any":
	case "expired":
		cfg.waitForLease = true
	default:
		s.refuse(v, "is %s; it is any or expired", quoted(v.text))
	}
	var err error
	if cfg.drain, err = time.ParseDuration(s.values["drain"].text); err != nil || cfg.drain <= 0 {
		s.refuse(s.values["drain"], "is %s; it is a duration above zero, for example 8s", quoted(s.values["drain"].text))
	}
	matches, err := strconv.ParseBool(s.values["matcher"].text)
	if err != nil {
		s.refuse(s.values["matcher"], "is %s; it is true or false", quoted(s.values["matcher"].text))
	}
	cfg.noMatcher = !matches
	if v := s.values["log-level"]; cfg.logLevel.UnmarshalText([]byte(v.text)) != nil {
		s.refuse(v, "is %s; it is debug, info, warn or error", quoted(v.text))
	}
	switch v := s.values["log-format"]; v.text {
	case "text":
	case "json":
		cfg.logJSON = true
	default:
		s.refuse(v, "is %s; it is text or json", quoted(v.text))
	}
	cfg.matcherLease, cfg.matcherHeartbeat = s.matcher()
	cfg.leaseTTL = s.leaseTTL()
	cfg.retention = s.retention()
	cfg.security = s.security()
	return cfg
}

// loadConfig reads the file that --config or its variable names, and returns its faults. The Config
// has the settings without a fault.
func loadConfig(cmd *cobra.Command, env func(string) (string, bool)) (*tapeconfig.Config, []error) {
	path, from := "", "--config"
	if f := cmd.Flags().Lookup("config"); f.Changed {
		path = f.Value.String()
	} else {
		path, _ = env(configVariable)
		from = configVariable
	}
	if path == "" {
		return &tapeconfig.Config{}, nil
	}
	file, err := tapeconfig.Load(path)
	var all *tapeconfig.Error
	switch {
	case errors.As(err, &all):
		return file, all.Unwrap()
	case err != nil:
		return &tapeconfig.Config{}, []error{fmt.Errorf("%s: %w", from, err)}
	}
	return file, nil
}

// find returns a setting from the first place that sets it. An empty variable counts as not set,
// except where an empty setting has a meaning.
func (s *settings) find(flag, variable, key string) value {
	f := s.cmd.Flags().Lookup(flag)
	if f.Changed {
		return value{text: f.Value.String(), key: key, place: "--" + flag}
	}
	if v, ok := s.env(variable); v != "" || ok && (flag == "healthz-listen" || flag == "metrics-listen" || flag == "ui-listen") {
		return value{text: v, key: key, place: variable}
	}
	if set, ok := s.file.Setting(key); ok {
		text := set.Value
		if strings.HasSuffix(key, "_s") {
			text += "s" // a number of seconds becomes a duration
		}
		return value{text: text, key: key, place: fmt.Sprintf("%s:%d", s.file.File(), set.Line), fromFile: true}
	}
	return value{text: f.DefValue, key: key, place: byDefault}
}

// refuse adds a fault of a setting, at the place that sets it.
func (s *settings) refuse(v value, format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	if v.fromFile {
		s.faults = append(s.faults, s.file.Fault(v.key, problem))
		return
	}
	s.faults = append(s.faults, fmt.Errorf("%s %s", v.place, problem))
}

// quoted returns a text for a message, masked if it may contain a password.
func quoted(text string) string {
	if secretWords.MatchString(text) {
		return "***"
	}
	return strconv.Quote(text)
}

// store returns the URL of the store: that of --store or of the older --db. A flag or variable of
// either wins over the file.
func (s *settings) store() string {
	v, parse := s.values["store"], storeURL
	if !v.given() || v.fromFile {
		if db := s.find("db", "TAPE_DB", ""); db.given() {
			db.key = v.key
			v, parse = db, dbURL
			s.values["store"] = v
		}
	}
	address, err := parse(v.text)
	if err != nil {
		s.refuse(v, "%v", err)
		return ""
	}
	u, err := runstore.ParseURL(address)
	if input := new(runstore.InputError); errors.As(err, &input) {
		s.refuse(v, "is no store URL: %s", input.Problem)
	} else if schemes := runstore.Schemes(); !slices.Contains(schemes, u.Scheme) {
		s.refuse(v, "has the unknown scheme %.64q; the schemes are %s", u.Scheme, strings.Join(schemes, ", "))
	}
	return address
}

// address returns the address of a listener, HOST:PORT. All but the one of gRPC may be empty. A host is not
// looked up.
func (s *settings) address(flag string) string {
	v := s.values[flag]
	if v.text == "" && flag != "listen" {
		return ""
	}
	_, port, err := net.SplitHostPort(v.text)
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil || port == "" {
		s.refuse(v, "is %s; it is HOST:PORT, for example %s", quoted(v.text), cmp.Or(s.cmd.Flags().Lookup(flag).DefValue, "127.0.0.1:7880"))
	}
	return v.text
}

// leastMessage is the least of --max-message-bytes. 4 KiB: the ids, the fence and the tool of a request
// without content have less, so that every run can be read and ended.
const leastMessage = 4 << 10

// whole returns a setting that is a whole number with a least value.
func (s *settings) whole(flag string, least int64) int64 {
	v := s.values[flag]
	n, err := strconv.ParseInt(v.text, 10, 64)
	switch {
	case err != nil:
		s.refuse(v, "is %s; it is a whole number of at least %d", quoted(v.text), least)
	case n < least:
		s.refuse(v, "is %d; the least is %d", n, least)
	case flag != "max-bytes-in-flight" && int64(int(n)) != n:
		s.refuse(v, "is %d, which is too large for this machine", n)
	}
	return n
}

// matcher returns the TTL and the heartbeat of the leases of shards; 0 for a heartbeat that is not
// set.
func (s *settings) matcher() (ttl, heartbeat time.Duration) {
	for _, set := range s.file.Settings(tapeconfig.Matcher) {
		if set.Line > 0 && set.Key != matcherTTLKey && set.Key != matcherHeartbeatKey {
			s.faults = append(s.faults, s.file.Fault(set.Key, "has no effect: the matcher takes lease_ttl_s and heartbeat_s"))
		}
	}
	v := s.values["matcher-lease"]
	ttl, err := time.ParseDuration(v.text)
	if err != nil {
		s.refuse(v, "is %s; it is a duration, for example 10s", quoted(v.text))
		return 0, 0
	}
	if ttl < matcher.MinTTL || ttl > runstore.MaxTTL {
		s.refuse(v, "is %v; it is from %v to %v", ttl, matcher.MinTTL, runstore.MaxTTL)
		return 0, 0
	}
	if _, ok := s.file.Setting(matcherHeartbeatKey); !ok || !v.given() && s.malformed(matcherTTLKey) {
		return ttl, 0
	}
	heartbeat = s.file.Reactor(tapeconfig.Matcher).Heartbeat
	_, err = (&lease.Options{TTL: ttl, Heartbeat: heartbeat}).Resolve()
	if input := new(runstore.InputError); errors.As(err, &input) {
		s.faults = append(s.faults, s.file.Fault(matcherHeartbeatKey, fmt.Sprintf("%s; the TTL is %v (%s)", input.Problem, ttl, v.place)))
	}
	return ttl, heartbeat
}

// malformed reports whether the file sets the key to a value with a fault.
func (s *settings) malformed(key string) bool {
	return slices.ContainsFunc(s.fileFaults, func(err error) bool {
		var fault tapeconfig.Fault
		return errors.As(err, &fault) && fault.Key == key
	})
}

// leaseTTL returns the TTLs of the reactors that the file sets, for requests that name none.
func (s *settings) leaseTTL() map[runstore.Reactor]time.Duration {
	var all map[runstore.Reactor]time.Duration
	for _, name := range s.file.Reactors() {
		if _, ok := s.file.Setting(tapeconfig.Key(name, "lease_ttl_s")); !ok || name == tapeconfig.Matcher {
			continue
		}
		if all == nil {
			all = map[runstore.Reactor]time.Duration{}
		}
		all[name] = s.file.Reactor(name).TTL
	}
	return all
}
