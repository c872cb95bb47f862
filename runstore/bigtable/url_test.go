package bigtable_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

func parse(t testing.TB, address string) (*bigtable.Options, error) {
	t.Helper()
	u, err := runstore.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	return bigtable.ParseURL(u)
}

// A URL says all that the options do.
func TestURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bigtable.Options{
		"bigtable://p/i/t": {Project: "p", Instance: "i", Table: "t"},
		"bigtable://example.com:p/i/t?create=yes": {
			Project: "example.com:p", Instance: "i", Table: "t",
		},
		"bigtable://p/i/t?create=no&app_profile=writer&emulator=127.0.0.1:8086&retry_timeout=10s": {
			Project: "p", Instance: "i", Table: "t", AppProfile: "writer", Emulator: "127.0.0.1:8086", NoCreate: true, RetryTimeout: 10 * time.Second,
		},
	} {
		got, err := parse(t, address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if got.DialOptions != nil || got.Logger != nil || got.Project != want.Project || got.Instance != want.Instance || got.Table != want.Table ||
			got.AppProfile != want.AppProfile || got.Emulator != want.Emulator || got.NoCreate != want.NoCreate || got.RetryTimeout != want.RetryTimeout {
			t.Errorf("%s: got %+v, want %+v", address, *got, want)
		}
	}
}

// A URL that cannot be meant is refused before anything is connected, with a message
// that names the key.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	const good = "bigtable://project/instance/table"
	for _, tc := range []struct{ address, says string }{
		{"bigtable:project/instance/table", "write bigtable://project/instance/table"},
		{"bigtable://project/instance", "write bigtable://project/instance/table"},
		{"bigtable://project/instance/table/more", "write bigtable://project/instance/table"},
		{good + "?nope=1", `unknown key "nope"; bigtable knows app_profile, create, emulator, retry_timeout`},
		{good + "?Create=no", `unknown key "Create"`},
		{good + "?create=maybe", `invalid create: "maybe" is neither yes nor no`},
		{good + "?create=no&create=yes", `"create"`},
		{good + "?retry_timeout=fast", `invalid retry_timeout: "fast" is no duration such as 10s`},
		{good + "?retry_timeout=0", `invalid retry_timeout: "0" is no duration`},
		{good + "?retry_timeout=10", `invalid retry_timeout: "10" is no duration`},
	} {
		t.Run(tc.address, func(t *testing.T) {
			t.Parallel()
			if _, err := parse(t, tc.address); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want ErrInvalid that says %q", err, tc.says)
			}
		})
	}
}

// Options that Bigtable would not take are refused when the store is opened, all
// together, and before anything is connected.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ address, says string }{
		{"bigtable://P/i/t", `invalid project: "P" is none that Bigtable takes`},
		{"bigtable:///i/t", `invalid project: ""`},
		{"bigtable://p/I/t", `invalid instance: "I"`},
		{"bigtable://p/1st/t", `invalid instance: "1st"`},
		{"bigtable://p/i/", `invalid table: ""`},
		{"bigtable://p/i/-t", `invalid table: "-t"`},
		{"bigtable://p/i/" + strings.Repeat("t", 51), "invalid table: "},
		{"bigtable://p/i/t?app_profile=a%2Fb", `invalid app_profile: "a/b"`},
		{"bigtable://p/i/t?retry_timeout=2h", "invalid retry_timeout: 2h0m0s is out of range, the limits are 1ms and 1h"},
		{"bigtable://p/i/t?retry_timeout=1us", "invalid retry_timeout: 1µs is out of range"},
		{"bigtable://p/i/t?retry_timeout=-1s", "invalid retry_timeout: -1s is out of range"},
	} {
		t.Run(tc.address, func(t *testing.T) {
			t.Parallel()
			if _, err := runstore.Open(t.Context(), tc.address); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want ErrInvalid that says %q", err, tc.says)
			}
		})
	}
	_, err := bigtable.Open(t.Context(), &bigtable.Options{RetryTimeout: -1})
	for _, field := range []string{"project", "instance", "table", "retry_timeout"} {
		if err == nil || !strings.Contains(err.Error(), "invalid "+field+": ") {
			t.Errorf("got %v, want an error that names %s too", err, field)
		}
	}
}

// A store is opened by its URL, and says what it runs on.
func TestOpenByURL(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	address := "bigtable://" + table.Project + "/" + table.Instance + "/" + table.Table + "?emulator=" + server(t).Address()
	s, err := runstore.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	d, err := s.(runstore.Describer).Describe(t.Context())
	if err != nil || d.Engine != "bigtable" || d.Tier != "emulator" {
		t.Errorf("got %+v, %v", d, err)
	}
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Error(err)
	}
}

// A service that is not there is given up after the retry timeout, or with the context.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	s, err := bigtableemulator.Start(t.Context(), &bigtableemulator.Options{Tier: emulators.TierEmulator})
	if err != nil {
		t.Fatal(err)
	}
	gone := s.Address()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	opts := &bigtable.Options{Project: "p", Instance: "i", Table: "t", Emulator: gone, RetryTimeout: 50 * time.Millisecond}
	if _, err := bigtable.Open(t.Context(), opts); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}
