package spanner_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

func parse(t testing.TB, address string) (*spanner.Options, error) {
	t.Helper()
	u, err := runstore.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	return spanner.ParseURL(u)
}

// A URL says all that the options do.
func TestURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]spanner.Options{
		"spanner://p/i/d": {Project: "p", Instance: "i", Database: "d"},
		"spanner://example.com:p/i/d?create=yes&omni=127.0.0.1:15000": {
			Project: "example.com:p", Instance: "i", Database: "d", Omni: "127.0.0.1:15000",
		},
		"spanner://p/i/d?create=no&role=writer&priority=low&emulator=127.0.0.1:9010&retry_timeout=10s&feed_shards=64": {
			Project: "p", Instance: "i", Database: "d", Role: "writer", Priority: spannerpb.RequestOptions_PRIORITY_LOW,
			Emulator: "127.0.0.1:9010", NoCreate: true, RetryTimeout: 10 * time.Second, FeedShards: 64,
		},
	} {
		got, err := parse(t, address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: got %+v, want %+v", address, *got, want)
		}
	}
}

// A URL that cannot be meant is refused before anything is connected, with a message
// that names the key.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	const good = "spanner://project/instance/database"
	for _, tc := range []struct{ address, says string }{
		{"spanner:project/instance/database", "write spanner://project/instance/database"},
		{"spanner://project/instance", "write spanner://project/instance/database"},
		{"spanner://project/instance/database/more", "write spanner://project/instance/database"},
		{good + "?nope=1", `unknown key "nope"; spanner knows create, emulator, feed_shards, omni, priority, retry_timeout, role`},
		{good + "?Create=no", `unknown key "Create"`},
		{good + "?create=maybe", `invalid create: "maybe" is neither yes nor no`},
		{good + "?create=no&create=yes", `"create"`},
		{good + "?priority=urgent", `invalid priority: "urgent" is neither low nor medium nor high`},
		{good + "?retry_timeout=fast", `invalid retry_timeout: "fast" is no duration such as 10s`},
		{good + "?feed_shards=many", `invalid feed_shards: "many" is no number`},
		{good + "?feed_shards=0", `invalid feed_shards: "0" is no number`},
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

// Options that Spanner would not take are refused when the store is opened, all
// together, and before anything is connected.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ address, says string }{
		{"spanner://P/ii/dd", `invalid project: "P" is none that Spanner takes`},
		{"spanner:///ii/dd", `invalid project: ""`},
		{"spanner://p/I/dd", `invalid instance: "I"`},
		{"spanner://p/1st/dd", `invalid instance: "1st"`},
		{"spanner://p/ii/", `invalid database: ""`},
		{"spanner://p/ii/d", `invalid database: "d"`},
		{"spanner://p/ii/-d", `invalid database: "-d"`},
		{"spanner://p/ii/" + strings.Repeat("d", 31), "invalid database: "},
		{"spanner://p/ii/dd?emulator=localhost:1&omni=localhost:2", "invalid emulator: goes with no omni"},
		{"spanner://p/ii/dd?feed_shards=4", "invalid feed_shards: 4 is no power of two from 8 to 256"},
		{"spanner://p/ii/dd?feed_shards=24", "invalid feed_shards: 24 is no power of two"},
		{"spanner://p/ii/dd?feed_shards=512", "invalid feed_shards: 512 is no power of two"},
		{"spanner://p/ii/dd?retry_timeout=2h", "invalid retry_timeout: 2h0m0s is out of range, the limits are 1ms and 1h"},
		{"spanner://p/ii/dd?retry_timeout=1us", "invalid retry_timeout: 1µs is out of range"},
		{"spanner://p/ii/dd?retry_timeout=-1s", "invalid retry_timeout: -1s is out of range"},
	} {
		t.Run(tc.address, func(t *testing.T) {
			t.Parallel()
			if _, err := runstore.Open(t.Context(), tc.address); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want ErrInvalid that says %q", err, tc.says)
			}
		})
	}
	_, err := spanner.Open(t.Context(), &spanner.Options{RetryTimeout: -1})
	for _, field := range []string{"project", "instance", "database", "retry_timeout"} {
		if err == nil || !strings.Contains(err.Error(), "invalid "+field+": ") {
			t.Errorf("got %v, want an error that names %s too", err, field)
		}
	}
}

// A store is opened by its URL, and says what it runs on.
func TestOpenByURL(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s, err := runstore.Open(t.Context(), "spanner://"+p.Project+"/"+p.Instance+"/"+p.Database+"?emulator="+p.server.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	d, err := s.(runstore.Describer).Describe(t.Context())
	if err != nil || d.Engine != "spanner" || d.Tier != "emulator" {
		t.Errorf("got %+v, %v", d, err)
	}
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Error(err)
	}
}

// A service that is not there is given up after the retry timeout, or with the context.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	gone := "127.0.0.1:1" // a port that nobody listens on
	opts := &spanner.Options{Project: "p", Instance: "ii", Database: "dd", Emulator: gone, RetryTimeout: 50 * time.Millisecond}
	if _, err := spanner.Open(t.Context(), opts); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}
