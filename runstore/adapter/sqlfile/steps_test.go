package sqlfile_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

func TestSteps(t *testing.T) {
	t.Parallel()
	got := sqlfile.Steps(fstest.MapFS{
		"schema/0002_terms.sql": {Data: []byte("ALTER TABLE runs")},
		"schema/0001_runs.sql":  {Data: []byte("CREATE TABLE runs")},
		"schema/README.md":      {Data: []byte("no step")},
		"sql/0003_read.sql":     {Data: []byte("SELECT 1")},
	})
	want := []sqlfile.Step{{Name: "0001_runs", Text: "CREATE TABLE runs"}, {Name: "0002_terms", Text: "ALTER TABLE runs"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFunctions(t *testing.T) {
	t.Parallel()
	got := sqlfile.Functions(fstest.MapFS{
		"functions/write.sql":   {Data: []byte("CREATE FUNCTION write")},
		"functions/collect.sql": {Data: []byte("CREATE FUNCTION collect")},
		"schema/0001_runs.sql":  {Data: []byte("CREATE TABLE runs")},
	})
	if want := "CREATE FUNCTION collect\nCREATE FUNCTION write\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStepsPanics(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"gap":       "schema/0003_terms.sql",
		"duplicate": "schema/0001_terms.sql",
		"no number": "schema/terms.sql",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := file + " is out of order, want schema/0002_…"
			defer func() {
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("got panic %q, want %q", got, want)
				}
			}()
			sqlfile.Steps(fstest.MapFS{"schema/0001_runs.sql": {}, file: {}})
		})
	}
}
