package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// examined runs doctor and returns the status of each check.
func examined(t *testing.T, wantStatus int, args ...string) map[string]admin.Status {
	t.Helper()
	out, _, err := here(t, "", append([]string{"doctor", "--json"}, args...)...)
	var v doctorView
	if exitStatus(err) != wantStatus || json.Unmarshal([]byte(out), &v) != nil {
		t.Fatalf("doctor %v: got %s, %v, want status %d", args, out, err, wantStatus)
	}
	checks := map[string]admin.Status{}
	for _, f := range v.Findings {
		if f.Found == "" || (f.Advice == "") != (f.Status == admin.OK) {
			t.Errorf("a finding without a text, or without advice: %+v", f)
		}
		checks[f.Check] = f.Status
	}
	return checks
}

// The doctor reports an empty store, changes nothing by reading, and with --write leaves one purged
// run.
func TestStoreDoctorCommand(t *testing.T) {
	t.Parallel()
	for engine, url := range adminEngines(t, "doctor-command") {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			if engine != "memory" {
				checks := examined(t, exitRefused, "--store", url)
				if checks["schema"] != admin.Fail || checks["store"] != admin.Warn || checks["clock"] != "" {
					t.Errorf("an empty store: got %v, want a failure of the schema and no opening", checks)
				}
				if s, err := runstore.Open(t.Context(), readOnly(url)); err == nil {
					t.Error("the doctor has created the store")
					_ = s.Close()
				}
			}
			openNew(t, url)
			checks := examined(t, 0, "--store", url)
			for _, check := range []string{"version", "epochs", "clock", "latency"} {
				if checks[check] != admin.OK && (check != "latency" || checks[check] != admin.Warn) {
					t.Errorf("%s is %q, want ok, among %v", check, checks[check], checks)
				}
			}
			if checks["write"] != "" {
				t.Errorf("the doctor wrote without being asked: %v", checks)
			}
			for range 2 { // the second finds the purged run of the first
				checks = examined(t, 0, "--write", "--store", url)
				if checks["fence"] != admin.OK || checks["write"] == "" || checks["write"] == admin.Fail || checks["purge"] != "" {
					t.Errorf("with --write: got %v", checks)
				}
			}
		})
	}
}

// What is wrong with a file is a finding with advice, and the exit status says so.
func TestDoctorOfBadStores(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for url, want := range map[string]string{
		"sqlite:" + dir + "/none.db":    "holds no store",
		"sqlite:" + dir + "/a/none.db":  "there is no directory",
		"postgres://u@127.0.0.1:1/tape": "connect",
	} {
		out, _, err := here(t, "", "doctor", "--store", url)
		if exitStatus(err) != exitRefused || !strings.HasPrefix(out, "fail ") || !strings.Contains(out, want) || !strings.Contains(out, "→ ") {
			t.Errorf("%s: got %s, %v, want a failure that says %q, and advice", url, out, err, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 0 {
		t.Errorf("files afterwards: %v, %v", left, err)
	}
	for _, args := range []string{"doctor", "migrate", "migrate --apply"} {
		out, _, err := here(t, "", append(strings.Fields(args), "--store", "postgres://u:hunter2-secret@127.0.0.1:1/tape")...)
		if err == nil || strings.Contains(out+err.Error(), "hunter2") {
			t.Errorf("%s shows the password, or reaches a server that is not there: %s, %v", args, out, err)
		}
	}
	if _, _, err := here(t, "", "doctor"); exitStatus(err) != 1 {
		t.Errorf("without a store: got %v", err)
	}
	file := filepath.Join(dir, "tape.db")
	openNew(t, "sqlite:"+file)
	if checks := examined(t, 0, "--store", "sqlite:"+file+"?synchronous=normal"); checks["synchronous"] != admin.Warn {
		t.Errorf("synchronous=normal: got %v, want a warning", checks)
	}
	out, _, err := here(t, "", "doctor", "--store", "sqlite:"+file)
	if err != nil || !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool { return strings.HasPrefix(l, "ok ") && strings.Contains(l, "journal mode") }) {
		t.Errorf("as text: got %s, %v", out, err)
	}
}

// The example of docs/operating.md has the version of the schema that the doctor prints.
func TestDoctorOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`is at version \d+, that of this program`).FindString(string(page))
	url := "sqlite:" + filepath.Join(t.TempDir(), "tape.db")
	openNew(t, url)
	out, _, err := here(t, "", "doctor", "--store", url)
	if err != nil || example == "" || !strings.Contains(out, example) {
		t.Errorf("%v: the page has %q, and the doctor prints\n%s", err, example, out)
	}
}
