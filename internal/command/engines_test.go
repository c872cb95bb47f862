package command

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

// fewCases are some that are quick, and one that kills processes.
const fewCases = "^(I12/ttl-is-bounded|I3/token-alone-is-no-fence|I4/a-killed-process-leaves-whole-batches-only)"

// ownTemp makes an empty temporary directory that also a server's user can reach,
// and returns the variable that names it. At the end nothing may be left in it.
func ownTemp(t *testing.T) (env []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "tapestore-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return []string{"TMPDIR=" + dir}
}

// sharedServer returns the server that the tests of this package share.
func sharedServer(t *testing.T) *postgresemulator.Server {
	t.Helper()
	s, err := postgresemulator.Shared(context.Background())
	emulators.Require(t, err)
	return s
}

// A user's server is used as the user's role allows, and has afterwards what it had
// before.
func TestConformanceOnAServer(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	if server.Engine().Tier != emulators.TierLocal {
		t.Skipf("not applicable: roles are made only on a private server, and this is a %s", server.Engine().Tier)
	}
	for role, c := range map[string]struct{ may, url, says string }{
		"maker":    {may: "CREATEDB", says: ` \(service\), a database for each case`},
		"tenant":   {says: ` \(service\), a schema for each case`},
		"proxied":  {url: "alloydb", may: "CREATEDB", says: `^alloydb .* \(service\), a database for each case`},
		"occupant": {url: "alloydb", says: `^alloydb .* \(service\), a schema for each case`},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			db, err := server.NewDatabase(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			role := db.Name + "_" + role
			query(t, db.URL, fmt.Sprintf("CREATE ROLE %s LOGIN %s; ALTER DATABASE %s OWNER TO %[1]s", role, c.may, db.Name))
			t.Cleanup(func() {
				if err := db.Drop(context.Background()); err != nil {
					t.Error(err)
				}
				query(t, server.URL(), "DROP ROLE "+role)
			})
			u, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			u.User, u.RawQuery = url.User(role), "retry_timeout=20s&migrate=no" // no word on TLS, as people write it
			if c.url != "" {
				u.Scheme = c.url
			}
			out, errs, status := runCommand(t, builtCommand(t), "conformance", "--store", u.String(), "--run", fewCases+"|^I8/a-(lost-reply|killed-server)")
			if status != 0 || strings.Count(errs, "\n") != 1 || !regexp.MustCompile(c.says).MatchString(errs) {
				t.Errorf("got status %d and %q, want 0 and one line like %s", status, errs, c.says)
			}
			for _, want := range []string{
				"(service), capabilities", "passed         a-killed-process-leaves", "passed         a-lost-reply-is-resolved",
				"not applicable a-killed-server-keeps", ", 0 failed, 1 not applicable",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if strings.Contains(out, "private server keeps") {
				t.Errorf("a list of what a private server lacks, on a user's own:\n%s", out)
			}
			if left := query(t, db.URL, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tapestore%'"); len(left) > 0 {
				t.Errorf("schemas left: %v", left)
			}
			if left := query(t, db.URL, "SELECT datname FROM pg_database WHERE pg_get_userbyid(datdba) = '"+role+"'"); !slices.Equal(left, []string{db.Name}) {
				t.Errorf("the role has the databases %v, want only its own", left)
			}
		})
	}
}

// A role that may make nothing is told so before any case.
func TestConformanceWithoutRights(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	if server.Engine().Tier != emulators.TierLocal {
		t.Skipf("not applicable: roles are made only on a private server, and this is a %s", server.Engine().Tier)
	}
	query(t, server.URL(), "CREATE ROLE tapestore_guest LOGIN")
	t.Cleanup(func() { query(t, server.URL(), "DROP ROLE tapestore_guest") })
	out, errs, status := run(t, "conformance", "--store", strings.Replace(server.URL(), "postgres@", "tapestore_guest@", 1))
	const says = "tapestore_guest may create neither databases nor schemas"
	if status != 1 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) {
		t.Errorf("got status %d, %q and %q, want one line that says %q", status, out, errs, says)
	}
}

// Ctrl-C in the middle of the suite ends what was started.
func TestConformanceInterrupted(t *testing.T) {
	t.Parallel()
	requireLocal(t)
	for args, runs := range map[string]string{
		"--engine postgres": "postgres ",
		// Cases that only a server can have: the engines before it are done at once.
		"--all --run ^(I8/a-killed-server|I11/a-frozen-server)": "[3/",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(builtCommand(t), append([]string{"conformance"}, strings.Fields(args)...)...)
			cmd.Env = append(os.Environ(), ownTemp(t)...)
			var out bytes.Buffer
			cmd.Stdout = &out
			errs, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			bound := time.AfterFunc(hang, func() { _ = cmd.Process.Kill() })
			defer bound.Stop()
			lines := bufio.NewScanner(errs)
			for lines.Scan() && !strings.HasPrefix(lines.Text(), runs) { // what was started: it runs
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			last := ""
			for lines.Scan() {
				last = lines.Text()
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(last, "interrupted") {
				t.Errorf("got %v and %q, want exit status 1 and a word on the interruption", err, last)
			}
			if strings.Contains(args, "--all") && !strings.Contains(out.String(), "spanner not run: interrupted") ||
				strings.Contains(args, "--engine") && !strings.Contains(out.String(), " not run: interrupted") {
				t.Errorf("what was finished is not reported:\n%s", out.String())
			}
		})
	}
}

// query runs statements and returns the texts of the last one's rows.
func query(t *testing.T, address, statements string) (rows []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // at the end of a test too
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.PgConn().Exec(ctx, statements).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
	for _, row := range results[len(results)-1].Rows {
		rows = append(rows, string(row[0]))
	}
	return rows
}
