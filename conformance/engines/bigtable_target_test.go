package engines

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// TestBigtableService checks on an emulator what is done on the service: each case gets a table
// beside the user's, and none is left.
func TestBigtableService(t *testing.T) {
	t.Parallel()
	server, err := bigtableemulator.Start(t.Context(), &bigtableemulator.Options{Tier: emulators.TierEmulator})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	conn, err := grpc.NewClient("passthrough:///"+server.Address(), grpcproxy.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	admin := func() *bigtable.AdminClient {
		client, err := bigtable.NewAdminClient(t.Context(), "project", "instance", option.WithGRPCConn(conn))
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	beside := bigtableemulator.TableName{Project: "project", Instance: "instance", Table: strings.Repeat("t", 50)}
	target, err := bigtableService(t.Context(), admin(), beside, server.Address(), url.Values{"retry_timeout": {"20s"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := target.String(), "bigtable project/instance (service), a table for each case"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	report := conformance.Execute(t.Context(), target.Harness, regexp.MustCompile("^I3/(stale-token|strict-lease|token-alone)|^I8/a-lost-reply-is-resolved-by-the-store"))
	if report.Tier != emulators.TierService || report.Summary.Failed > 0 || report.Summary.Passed == 0 || report.Summary.NotApplicable != 1 {
		t.Errorf("got %+v", report)
	}
	tables, err := admin().Tables(t.Context())
	if calls := server.Calls(); err != nil || len(tables) != 0 || calls["CreateTable"] < 3 {
		t.Errorf("tables left: %v, %v, of %d", tables, err, calls["CreateTable"])
	}
	if err := target.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	server.Refuse(0, func(c bigtableemulator.Call) bool { return c.Method == "CreateTable" })
	if _, err := bigtableService(t.Context(), admin(), beside, server.Address(), nil); err == nil || !strings.Contains(err.Error(), "each case needs a table of its own in project/instance") {
		t.Errorf("where no table can be made: %v", err)
	}
}
