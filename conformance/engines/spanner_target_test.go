package engines

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	adapter "github.com/tapestore/tapestore/runstore/spanner"
)

// TestSpannerService checks on an emulator what is done on the service: each case gets a database
// beside the user's, and none is left.
func TestSpannerService(t *testing.T) {
	t.Parallel()
	server := startSpanner(t)
	admin := func() *database.DatabaseAdminClient {
		client, err := database.NewDatabaseAdminClient(t.Context(), server.ClientOptions()...)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	beside, err := server.NewDatabase(t.Context()) // only its instance is used
	if err != nil {
		t.Fatal(err)
	}
	mine := beside.Database
	beside.Database = strings.Repeat("t", 30)
	target, err := spannerService(t.Context(), admin(), beside, server.Address(), url.Values{"retry_timeout": {"20s"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := target.String(), "spanner "+beside.Project+"/"+beside.Instance+" (service), a database for each case"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	report := conformance.Execute(t.Context(), target.Harness, regexp.MustCompile("^I3/(stale-token|strict-lease|token-alone)|^I8/a-lost-reply-is-resolved-by-the-store"))
	if report.Tier != emulators.TierService || report.Summary.Failed > 0 || report.Summary.Passed == 0 || report.Summary.NotApplicable != 1 {
		t.Errorf("got %+v", report)
	}
	listing := admin()
	defer listing.Close()
	left := listing.ListDatabases(t.Context(), &databasepb.ListDatabasesRequest{Parent: "projects/" + beside.Project + "/instances/" + beside.Instance})
	for d, err := range left.All() {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(d.Name, "/"+mine) {
			t.Errorf("%s stays", d.Name)
		}
	}
	if calls := server.Calls(); calls["CreateDatabase"] < 3 || calls["DropDatabase"] != calls["CreateDatabase"] {
		t.Errorf("%d databases were created and %d dropped", calls["CreateDatabase"], calls["DropDatabase"])
	}
	if err := target.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	server.Refuse(0, codes.PermissionDenied, func(c spanneremulator.Call) bool { return c.Method == "CreateDatabase" })
	if _, err := spannerService(t.Context(), admin(), beside, server.Address(), nil); err == nil ||
		!strings.Contains(err.Error(), "each case needs a database of its own in "+beside.Project+"/"+beside.Instance) {
		t.Errorf("where no database can be made: %v", err)
	}
}

// TestSpannerCaseDatabase checks that Spanner accepts the name of a case's database, whatever
// database it is beside.
func TestSpannerCaseDatabase(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"db", "orders", "a-database-of-a-team", "eleven-char-_", strings.Repeat("t", 30)} {
		beside := spanneremulator.DatabaseName{Project: "project", Instance: "instance", Database: name}
		own := caseDatabase(beside)
		if again := caseDatabase(beside); again == own || len(own.Database) > 30 {
			t.Errorf("%s: got %s and %s", name, own, again)
		}
		u, err := runstore.ParseURL(spannerDatabase{own, nil}.url(""))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := adapter.ParseURL(u); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSpannerOnOneEmulator checks that one running emulator serves the cases with Overtakes too,
// and holds afterwards what it held before. The URL's parameters for its own store do not apply to
// the stores of the cases.
func TestSpannerOnOneEmulator(t *testing.T) {
	t.Parallel()
	server := startSpanner(t)
	u, err := runstore.ParseURL("spanner://p/ii/dd?create=no&role=clerk&retry_timeout=20s&emulator=" + server.Address())
	if err != nil {
		t.Fatal(err)
	}
	target, err := At(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := target.String(), "spanner emulator of unknown version (service) at "+server.Address()+", a database for each case"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	report := conformance.Execute(t.Context(), target.Harness, regexp.MustCompile("^I3/(write|renewal)-in-flight-at-a-preempt"))
	if report.Summary.Failed > 0 || report.Summary.Passed == 0 || report.Summary.NotApplicable != 0 {
		t.Errorf("got %+v", report)
	}
	if err := target.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if calls := server.Calls(); calls["CreateDatabase"] != calls["DropDatabase"] {
		t.Errorf("%d databases were created and %d dropped", calls["CreateDatabase"], calls["DropDatabase"])
	}
}

// A busy machine may take longer to answer than a user should wait for a server that cannot be reached.
func init() { reachBound = 5 * time.Minute }

func startSpanner(t *testing.T) *spanneremulator.Server {
	t.Helper()
	server, err := spanneremulator.Start(t.Context(), nil)
	emulators.Require(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return server
}
