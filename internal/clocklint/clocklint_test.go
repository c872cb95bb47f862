package clocklint_test

import (
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/tapestore/tapestore/internal/clocklint"
)

// TestAdapters forbids the adapters all readings of clocks but these.
func TestAdapters(t *testing.T) {
	t.Parallel()
	allowed := []clocklint.Allowed{
		{File: "localclock/localclock.go", Reading: "time.Now",
			Reason: "the one reading, which tests replace"},
		{File: "memory/store.go", Reading: "time.Now",
			Reason: "the store clock of a store that lives in its process; Options.Clock replaces it"},
		{File: "sqlite/clock.go", Reading: "time.Now",
			Reason: "the host's wall clock, a part of its HostClock, which tests replace"},
		{File: "sqlite/clock_linux.go", Reading: "unix.ClockGettime",
			Reason: "how long the host has been up, a part of its HostClock, which tests replace"},
		{File: "telemetry/measure.go", Reading: "time.Now",
			Reason: "the start of an operation, for its duration in metrics; nothing else sees it"},
		{File: "telemetry/measure.go", Reading: "time.Since",
			Reason: "the duration of an operation, for metrics"},
		{File: "telemetry/sample.go", Reading: "time.Now",
			Reason: "when the metrics were sampled, for an alert that compares it with the clock of the metrics' collector"},
		{File: "postgres/sql/runnable_move.sql", Reading: "statement_timestamp", Times: 2,
			Reason: "as in a scan, it chooses the entries to move; the move itself compares no clock"},
	}
	for scan, times := range map[string]int{"index_page": 1, "runs_page": 1, "runnable_page": 4} {
		allowed = append(allowed, clocklint.Allowed{File: "postgres/sql/" + scan + ".sql", Reading: "statement_timestamp", Times: times,
			Reason: "one bound for a whole scan, which waits for no lock; an index can be read up to it, because it is stable"})
	}
	found, err := clocklint.Check(os.DirFS("../../runstore"), allowed)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

// TestFindings plants readings, and wants each of them found.
func TestFindings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, file, text string
		want             []string
	}{
		{"a call", "acme/a.go", "package a\nimport \"time\"\nvar began = time.Now()", []string{"time.Now"}},
		{"a function value", "acme/a.go", "package a\nimport \"time\"\nvar clock = time.Now", []string{"time.Now"}},
		{"durations", "acme/a.go", "package a\nimport \"time\"\nfunc f(at time.Time) { _ = time.Since(at); _ = time.Until(at) }", []string{"time.Since", "time.Until"}},
		{"another name", "acme/a.go", "package a\nimport clock \"time\"\nvar began = clock.Now()", []string{"time.Now"}},
		{"no name", "acme/a.go", "package a\nimport . \"time\"\nvar began = Now()", []string{`import . "time"`}},
		{"a linked name", "acme/a.go", "package a\nimport _ \"unsafe\"\n//go:linkname nanotime runtime.nanotime\nfunc nanotime() int64", []string{"go:linkname"}},
		{"a timestamp by the client", "bigtable/a.go", "package a\nimport \"cloud.google.com/go/bigtable\"\nvar at = bigtable.Now()", []string{"bigtable.Now"}},
		{"a statement", "postgres/a.go", "package a\nconst q = `SELECT 1\nWHERE expires > now()`", []string{"now"}},
		{"a script", "postgres/schema/1.sql", "SELECT CURRENT_TIMESTAMP; -- not now()\nSELECT transaction_timestamp();", []string{"current_timestamp", "transaction_timestamp"}},
		{"an engine in the process", "sqlite/a.go", "package a\nconst q = `SELECT strftime('%s', 'now'), unixepoch()`", []string{"strftime", "'now'", "unixepoch"}},
		{"what is no reading", "acme/a.go", "package a\nimport \"time\"\n// time.Now() and now() tell nothing.\nfunc f(now func() time.Time) { _ = now(); time.Sleep(1); _ = \"not now\" }", nil},
		{"the clock of the server", "postgres/a.go", "package a\nconst q = `SELECT clock_timestamp()`", nil},
		{"Spanner's clock", "spanner/a.go", "package a\nconst q = `SELECT CURRENT_TIMESTAMP()`", nil},
		{"Spanner's clock in a script", "spanner/sql/1.sql", "SELECT CURRENT_TIMESTAMP(), CURRENT_DATE()", []string{"current_date"}},
		{"tests", "acme/a_test.go", "package a\nimport \"time\"\nvar began = time.Now()", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			found, err := clocklint.Check(fstest.MapFS{tc.file: {Data: []byte(tc.text)}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range found {
				got = append(got, f.Reading)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestAllowed proves that an entry covers its file alone, and does not outlive its reading.
func TestAllowed(t *testing.T) {
	t.Parallel()
	reading := &fstest.MapFile{Data: []byte("package a\nimport \"time\"\nvar began = time.Now()")}
	twice := &fstest.MapFile{Data: []byte("package a\nimport \"time\"\nvar began, again = time.Now(), time.Now()")}
	for _, tc := range []struct {
		name    string
		allowed clocklint.Allowed
		want    int
	}{
		{"one of two files", clocklint.Allowed{File: "acme/a.go", Reading: "time.Now", Reason: "a test"}, 3},
		{"one of two readings", clocklint.Allowed{File: "acme/two.go", Reading: "time.Now", Reason: "a test"}, 3},
		{"two readings", clocklint.Allowed{File: "acme/two.go", Reading: "time.Now", Times: 2, Reason: "a test"}, 2},
		{"no reason", clocklint.Allowed{File: "acme/a.go", Reading: "time.Now"}, 4},
		{"a reading that is gone", clocklint.Allowed{File: "acme/c.go", Reading: "time.Now", Reason: "a test"}, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			found, err := clocklint.Check(fstest.MapFS{"acme/a.go": reading, "acme/b.go": reading, "acme/two.go": twice}, []clocklint.Allowed{tc.allowed})
			if err != nil || len(found) != tc.want {
				t.Errorf("got %v, error %v, want %d findings", found, err, tc.want)
			}
		})
	}
}
