package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// findings returns what the doctor finds at a URL, by check.
func findings(t *testing.T, address string) map[string]admin.Finding {
	t.Helper()
	u, err := runstore.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]admin.Finding{}
	for _, f := range admin.Of(u.Scheme).Check(t.Context(), u) {
		all[f.Check] = f
	}
	return all
}

// The findings about a role, its settings, the server's identity and the schema are those of the
// server.
func TestCheck(t *testing.T) {
	t.Parallel()
	address := database(t)
	app := role(t, address)
	asApp := with(address, "user="+app, "migrate=no")
	conn := connect(t, address)
	want := func(when, address, check string, status admin.Status, says string) {
		t.Helper()
		if f := findings(t, address)[check]; f.Status != status || !strings.Contains(f.Found+" "+f.Advice, says) {
			t.Errorf("%s: %s is %+v, want %s and %q", when, check, f, status, says)
		}
	}
	exec(t, conn, "GRANT SELECT ON ALL TABLES IN SCHEMA tapestore TO "+app)
	want("a role without USAGE", asApp, "schema", admin.Fail, "permission denied")
	want("a role without USAGE", asApp, "schema", admin.Fail, "the GRANTs of the section Privileges")
	exec(t, conn, "GRANT USAGE ON SCHEMA tapestore TO "+app)
	want("a role that may only read", asApp, "permissions", admin.Fail, "DELETE ON tapestore.batches")
	exec(t, conn, "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tapestore TO "+app)
	exec(t, conn, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tapestore TO "+app)
	want("a role with all grants", asApp, "permissions", admin.OK, "")
	want("a role with all grants", asApp, "isolation", admin.OK, "read committed")
	want("no proxy", asApp, "pooler", admin.OK, "none")

	exec(t, conn, fmt.Sprintf("ALTER ROLE %s SET default_transaction_isolation = 'serializable'", app))
	exec(t, conn, fmt.Sprintf("ALTER ROLE %s SET synchronous_commit = off", app))
	want("settings of a role", asApp, "isolation", admin.OK, "read committed")
	want("settings of a role", asApp, "durability", admin.OK, "the store turns it on")
	pooled := with(asApp, "pooled=yes")
	want("settings of a role behind a proxy", pooled, "isolation", admin.Fail, "ALTER ROLE")
	want("settings of a role behind a proxy", pooled, "durability", admin.Fail, "synchronous_commit = on")
	exec(t, conn, fmt.Sprintf("ALTER ROLE %s SET default_transaction_read_only = on", app))
	want("a role that begins read-only transactions", asApp, "server", admin.Fail, "default_transaction_read_only")

	want("the same server", address, "incarnation", admin.OK, "as the epoch has it")
	exec(t, conn, "UPDATE tapestore.store SET timeline = timeline + 1")
	want("a promoted server", address, "incarnation", admin.Warn, "raises the epoch")
	if f := findings(t, address)["incarnation"]; !f.KeepClosed {
		t.Error("a store whose epoch would be raised would be opened")
	}
	if n := get[int](t, conn, "SELECT count(*) FROM tapestore.epochs"); n != 0 {
		t.Errorf("the check has raised the epoch %d times", n)
	}
	exec(t, conn, fmt.Sprintf("INSERT INTO tapestore.migrations (version) VALUES (%d)", postgres.Migrations()+1))
	want("a newer schema", address, "schema", admin.Fail, "use a newer program")
}

// A plan names the versions that are missing, and what it names brings the schema there.
func TestPlanOfAnOlderSchema(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	conn := connect(t, address)
	last := postgres.Migrations()
	if err := postgres.MigrateTo(t.Context(), conn, last-1); err != nil {
		t.Fatal(err)
	}
	u, err := runstore.ParseURL(with(address, "migrate=no"))
	if err != nil {
		t.Fatal(err)
	}
	engine := admin.Of(u.Scheme)
	plan, err := engine.Plan(t.Context(), u)
	if err != nil || plan.Version != last-1 || plan.Program != last || len(plan.Steps) != 5 || !strings.HasPrefix(plan.Steps[2].Name, fmt.Sprintf("version %04d", last)) {
		t.Fatalf("got %+v, %v", plan, err)
	}
	if got := get[int](t, conn, schemaVersion); got != last-1 {
		t.Fatalf("the plan has changed the schema to version %d", got)
	}
	if err := engine.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if got := get[int](t, conn, schemaVersion); got != last {
		t.Errorf("got version %d, want %d", got, last)
	}
	guest := role(t, address)
	u.Params.Set("user", guest)
	if err := engine.Apply(t.Context(), u); err == nil {
		t.Error("a role without rights was told that it had migrated")
	}
}
