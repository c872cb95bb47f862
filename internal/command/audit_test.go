package command

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// The audit prints what it finds, and its exit status says whether that is a corruption.
func TestAuditCommand(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	url := "sqlite:" + path
	store := openNew(t, url)
	spec := runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "a", TTL: time.Minute}}
	spec.Writes.Append("one", nil)
	spec.Writes.Put("record", nil, runstore.Place{Index: "mine", At: runstore.After(0)})
	if _, err := store.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	out, errs, err := here(t, "", "audit", "--store", url, "--index", "mine")
	const counts = "1 runs (0 unlisted), 1 events in 1 terms, 1 records, 2 index entries, 1 events of the feed\n"
	if err != nil || errs != "" || out != counts+"0 corruptions, 0 warnings\n" {
		t.Errorf("got %q, %q, %v", out, errs, err)
	}
	plant := func(statement string) {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	plant("UPDATE runs SET granted = granted + 1000000")
	out, _, err = here(t, "", "audit", "--store", url)
	if err != nil || !strings.HasPrefix(out, `clock run "run" seq 1: the event under token 1 is of `) || !strings.HasSuffix(out, "\n0 corruptions, 3 warnings\n") {
		t.Errorf("a warning: got %q, %v", out, err)
	}
	plant("UPDATE runs SET granted = granted - 1000000; UPDATE events SET token = 3")
	out, _, err = here(t, "", "audit", "--store", url)
	if exitStatus(err) != exitRefused || !strings.Contains(err.Error(), "found 2 corruptions") ||
		!strings.Contains(out, `token run "run": an event at seq 1 has token 3, and the last token of the run is 1`+"\n") {
		t.Errorf("a corruption: got %q, %v", out, err)
	}
	out, _, err = here(t, "", "audit", "--store", url, "--format", "json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var first struct{ Finding findingView }
	var last struct{ Report reportView }
	if exitStatus(err) != exitRefused || len(lines) != 3 || json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[2]), &last) != nil ||
		first.Finding.Run != "run" || first.Finding.Warning || last.Report.Findings != 2 || last.Report.Runs != 1 {
		t.Errorf("as JSON: got %s, %v", out, err)
	}
	if _, errs, status := run(t, "audit", "--store", url); status != exitRefused || errs != "tapestore: the audit has found 2 corruptions\n" {
		t.Errorf("as a process: status %d, %q", status, errs)
	}
	for args, says := range map[string]string{
		"":                                 "--store",
		"--store " + url + " --format xml": "table or json",
		"--store " + url + " --max-runs 0": "the least is 1",
		"--store " + url + " --index runs": "is no index of records",
		"--store " + path + "-missing.db":  "there is no file",
		"--store " + url + " what":         "takes no arguments",
		"--store " + url + " --index":      "needs an argument",
	} {
		out, _, err := here(t, "", append([]string{"audit"}, strings.Fields(args)...)...)
		if exitStatus(err) != 1 || out != "" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %q, %v, want an error that says %q", args, out, err, says)
		}
	}
}

// TestAuditWithManyWarnings checks that warnings alone, however many they are, do not change the exit status
// of an audit.
func TestAuditWithManyWarnings(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	url := "sqlite:" + path
	store := openNew(t, url)
	spec := runstore.RunSpec{ID: "run"}
	spec.Writes.Append("one", nil)
	for i := range 25 {
		spec.Writes.Put(runstore.RecordKey(fmt.Sprint("record-", i)), nil)
	}
	if _, err := store.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE records SET version = 2, updated = created - 1000000"); err != nil {
		t.Fatal(err)
	}
	out, errs, err := here(t, "", "audit", "--store", url)
	if err != nil || !strings.HasSuffix(out, "\n0 corruptions, 20 warnings\n") || !strings.Contains(errs, " further warnings, too many at once, were not read again\n") {
		t.Errorf("got %q, %q, %v", out, errs, err)
	}
	out, _, err = here(t, "", "audit", "--store", url, "--format", "json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var last struct{ Report reportView }
	if err != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil || last.Report.Suppressed != 0 || last.Report.SuppressedWarnings == 0 {
		t.Errorf("as JSON: got %s, %v", lines[len(lines)-1], err)
	}
}

// misread is a store whose first reading of a run's records is false.
type misread struct {
	runstore.RunStore
	read bool // one audit reads one page of records at a time
}

func (s *misread) Unwrap() runstore.RunStore { return s.RunStore }

func (s *misread) ReadRecords(ctx context.Context, run runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	records, err := s.RunStore.ReadRecords(ctx, run, q)
	for i := range records {
		if !s.read {
			records[i].Version = -1
		}
	}
	s.read = s.read || len(records) > 0
	return records, err
}

// TestAuditDidNotFinish checks that an audit which saw more contradictions than it reads again has not
// finished, although those that it read again were none.
func TestAuditDidNotFinish(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	runstore.Register("misread", func(context.Context, runstore.URL) (runstore.RunStore, error) {
		return &misread{RunStore: engine.Open()}, nil
	})
	store := engine.Open()
	create := func(id runstore.RunID, records int) {
		t.Helper()
		spec := runstore.RunSpec{ID: id}
		spec.Writes.Append("one", nil)
		for i := range records {
			spec.Writes.Put(runstore.RecordKey(fmt.Sprint("record-", i)), nil)
		}
		if _, err := store.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	create("few", 20)
	if out, errs, err := here(t, "", "audit", "--store", "misread:"); err != nil || errs != "" || !strings.HasSuffix(out, "\n0 corruptions, 0 warnings\n") {
		t.Errorf("as many contradictions as are read again: %q, %q, %v", out, errs, err)
	}
	create("a-many", 25)
	for _, format := range []string{"table", "json"} {
		out, _, err := here(t, "", "audit", "--store", "misread:", "--format", format)
		if exitStatus(err) != 1 || !strings.Contains(err.Error(), "did not finish: 5 contradictions") {
			t.Errorf("%s: got %q, %v, want an audit that did not finish", format, out, err)
		}
	}
}
