package alloydb_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/alloydbconn"
	"golang.org/x/oauth2"

	"github.com/tapestore/tapestore/conformance/engines"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// options leads to an empty store of the test's own.
func options(t *testing.T, s *alloydbemulator.Server) *alloydb.Options {
	t.Helper()
	o, err := engines.AlloyDBOptions(s, engines.NewPostgresDatabase(t, s.Postgres()))
	if err != nil {
		t.Fatal(err)
	}
	o.Password, o.MaxConns = "", 4
	return o
}

func open(t *testing.T, o *alloydb.Options) runstore.RunStore {
	t.Helper()
	s, err := engines.OpenAlloyDB(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// patientDials are Params for a test that counts or expects what a dial does: on a busy machine a dial
// may take longer than the default of 5 s.
var patientDials = url.Values{"connect_timeout": {"300"}}

// begin makes a run with a lease and one event.
func begin(t *testing.T, s runstore.RunStore, id runstore.RunID) runstore.Lease {
	t.Helper()
	spec := runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "w", TTL: time.Minute}}
	spec.Writes.Events = []runstore.NewEvent{{Kind: "begin"}}
	created, err := s.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return created.Lease
}

func appendOne(ctx context.Context, s runstore.RunStore, l runstore.Lease, data string) error {
	b := runstore.NewBatch(l.Run, l.Fence())
	b.Events = []runstore.NewEvent{{Kind: "step", Data: []byte(data)}}
	_, err := s.Commit(ctx, b)
	return err
}

func TestLogins(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(o *alloydb.Options)
		want func(n alloydbemulator.Stats) (used, other int)
	}{
		"password": {func(o *alloydb.Options) { o.Password = "any" }, func(n alloydbemulator.Stats) (int, int) { return n.Password, n.IAM }},
		"IAM":      {func(o *alloydb.Options) { o.IAM = true }, func(n alloydbemulator.Stats) (int, int) { return n.IAM, n.Password }},
		"lazy":     {func(o *alloydb.Options) { o.Lazy = true }, func(n alloydbemulator.Stats) (int, int) { return n.PrivateIP, n.PublicIP + n.PSC }},
		"private":  {func(o *alloydb.Options) { o.IP = alloydb.PrivateIP }, func(n alloydbemulator.Stats) (int, int) { return n.PrivateIP, n.PublicIP + n.PSC }},
		"public":   {func(o *alloydb.Options) { o.IP = alloydb.PublicIP }, func(n alloydbemulator.Stats) (int, int) { return n.PublicIP, n.PrivateIP + n.PSC }},
		"PSC":      {func(o *alloydb.Options) { o.IP = alloydb.PSC }, func(n alloydbemulator.Stats) (int, int) { return n.PSC, n.PrivateIP + n.PublicIP }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := standIn(t)
			o := options(t, s)
			c.set(o)
			begin(t, open(t, o), "run")
			n := s.Stats()
			if used, other := c.want(n); used == 0 || other != 0 {
				t.Errorf("connections in this way: %d, in others: %d, want some and none", used, other)
			}
			if n.ConnectionInfo != 1 || n.Certificates != 1 || n.ReadPool != 0 {
				t.Errorf("stats: %+v, want one call of each of the Admin API's methods and nothing of the read pool", n)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	d, err := open(t, options(t, s)).(runstore.Describer).Describe(t.Context())
	if err != nil || d.Engine != "alloydb" || d.Version == "" {
		t.Errorf("got %+v, %v", d, err)
	}
}

// What waiting does not fix is reported at once, with advice.
func TestOpenTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		set    func(s *alloydbemulator.Server, o *alloydb.Options)
		want   []string
	}{
		"no right": {http.StatusForbidden, nil, []string{"grant it roles/alloydb.client and roles/serviceusage.serviceUsageConsumer", "roles/alloydb.databaseUser"}},
		"no login": {http.StatusUnauthorized, nil, []string{"gcloud auth application-default login"}},
		"wrong name": {0, func(s *alloydbemulator.Server, o *alloydb.Options) { o.Instance += "x" },
			[]string{"knows no instance projects/tapestore/locations/local/clusters/emulator/instances/primaryx", "misspelt"}},
		"wrong name of the read pool": {0, func(s *alloydbemulator.Server, o *alloydb.Options) { o.ReadPool = s.ReadPool() + "x" },
			[]string{"read pool: ", "knows no instance", "instances/poolx"}},
		"no credentials": {0, func(s *alloydbemulator.Server, o *alloydb.Options) {
			o.Dialer = []alloydbconn.Option{alloydbconn.WithCredentialsFile("/nowhere/key.json")}
		}, []string{"cannot be set up", "/nowhere/key.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := standIn(t)
			o := options(t, s)
			o.Password, o.Postgres = "hunter2", &postgres.Options{RetryTimeout: time.Hour} // it is not waited out
			if c.set != nil {
				c.set(s, o)
			}
			s.RefuseAdmin(c.status)
			_, err := engines.OpenAlloyDB(t.Context(), o)
			for _, want := range append(c.want, "open alloydb store: ") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to have %q", err, want)
				}
			}
			if !errors.Is(err, runstore.ErrUnavailable) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want ErrUnavailable without the password", err)
			}
		})
	}
}

// A token that is refused in the exchange may become valid, so the dial is retried for RetryTimeout
// and then reported.
func TestOpenTellsRefusal(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	o := options(t, s)
	o.IAM, o.Postgres = true, &postgres.Options{RetryTimeout: 2 * time.Second}
	o.Params = patientDials
	o.Dialer = append(o.Dialer, alloydbconn.WithIAMAuthNTokenSource(oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "wrong"})))
	_, err := alloydb.Open(t.Context(), o)
	for _, want := range []string{"IAM authentication failed", "roles/alloydb.databaseUser"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to have %q", err, want)
		}
	}
}

// Rights that are taken away from an open store do no harm to its connections, and a
// refusal then is waited out like any outage.
func TestAdminOutageIsWaitedOut(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	o := options(t, s)
	o.Lazy = true
	store := open(t, o)
	l := begin(t, store, "run")
	s.RefuseAdmin(http.StatusForbidden)
	if err := appendOne(t.Context(), store, l, "as before"); err != nil {
		t.Fatal(err)
	}
	s.SkewClock(2 * time.Hour) // and now a new certificate is needed
	s.CutConnections()
	done := make(chan error, 1)
	go func() { done <- appendOne(t.Context(), store, l, "after the outage") }()
	waitFor(t, "the Admin API has refused twice", func() bool { return s.Stats().AdminRefused >= 2 })
	s.RefuseAdmin(0)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The server refuses a certificate that the connector holds for good: a new connector
// is made.
func TestCertificateThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	for name, lazy := range map[string]bool{"ahead": false, "lazy": true} {
		t.Run(name, func(t *testing.T) {
			o := options(t, s)
			o.Lazy, o.Params = lazy, patientDials
			s.SkewClock(0)
			store := open(t, o)
			l := begin(t, store, "run")
			before := s.Stats().Certificates
			s.SkewClock(2 * time.Hour) // its certificates are over, by this clock only
			s.CutConnections()
			if err := appendOne(t.Context(), store, l, "with a new certificate"); err != nil {
				t.Fatal(err)
			}
			if got := s.Stats().Certificates - before; got != 1 {
				t.Errorf("certificates signed since: %d, want 1", got)
			}
		})
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	_, rest, _ := strings.Cut(engines.NewPostgresDatabase(t, s.Postgres()), "://")
	opened, err := runstore.Open(t.Context(), "alloydb://"+rest)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	begin(t, opened, "run")
	if _, stale := opened.(runstore.StaleReader); stale {
		t.Error("a store without a read pool is a StaleReader")
	}
	if d, err := opened.(runstore.Describer).Describe(t.Context()); err != nil || d.Engine != "alloydb" {
		t.Errorf("describe: %+v, %v", d, err)
	}
	o := options(t, s)
	o.Instance, o.Dialer, o.Host, o.ReadPool = "", nil, s.Postgres().Address(), s.Postgres().Address()
	reader := open(t, o)
	begin(t, reader, "run")
	events, err := reader.(runstore.StaleReader).ReadJournalStale(t.Context(), "run", 1, 10, time.Second)
	if err != nil || len(events) != 1 {
		t.Errorf("got %d events, %v, want 1", len(events), err)
	}
	if got := s.Stats(); got != (alloydbemulator.Stats{}) {
		t.Errorf("stats %+v, want nothing: no connector is in the way", got)
	}
}
