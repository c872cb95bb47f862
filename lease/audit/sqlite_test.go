package audit_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// Check finds what was changed in a file behind the store's back.
func TestPlantedInSQLite(t *testing.T) {
	t.Parallel()
	template, host := t.TempDir(), embedded.NewHost()
	open := func(t *testing.T, path string) *sqlite.Store {
		t.Helper()
		s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: host, Synchronous: sqlite.Normal, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(t, filepath.Join(template, "tape.db"))
	fill(t, s, host.Advance)
	if found, _ := check(t, s, audit.Options{}); len(found) > 0 {
		t.Fatalf("before the changes: %v", found)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const event = " WHERE run = (SELECT no FROM runs WHERE id = CAST('run-3' AS BLOB)) AND seq = "
	const record = " WHERE run = (SELECT no FROM runs WHERE id = CAST('run-3' AS BLOB)) AND key = CAST('%s' AS BLOB)"
	const run = " WHERE id = CAST('run-3' AS BLOB)"
	for name, c := range map[string]struct {
		change string
		want   want
	}{
		"a write under a former token":           {"UPDATE events SET token = 1, owner = CAST('a' AS BLOB)" + event + "6", want{kind: audit.KindToken, seq: 6, problem: "token 1"}},
		"two owners under one token":             {"UPDATE events SET owner = CAST('c' AS BLOB)" + event + "4", want{kind: audit.KindOwner, seq: 4}},
		"another owner than the holder":          {"UPDATE runs SET owner = CAST('c' AS BLOB)" + run, want{kind: audit.KindOwner, seq: 5}},
		"an owner without a token":               {"UPDATE events SET owner = CAST('c' AS BLOB)" + event + "3", want{kind: audit.KindOwner, seq: 3}},
		"a token that was never granted":         {"UPDATE events SET token = 7" + event + "6", want{kind: audit.KindToken, problem: "an event at seq 6 has token 7"}},
		"a last token that fell":                 {"UPDATE runs SET token = 1" + run, want{kind: audit.KindToken, problem: "the last token of the run is 1"}},
		"a token of an epoch that never began":   {fmt.Sprintf("UPDATE runs SET token = %d", runstore.Epoch(2).Floor()+1) + run, want{kind: audit.KindToken, problem: "epoch 2"}},
		"a lost event":                           {"DELETE FROM events" + event + "4", want{kind: audit.KindDamaged}},
		"a seq twice":                            {"UPDATE events SET seq = 3" + event + "4", want{kind: audit.KindDamaged}},
		"an event of another run":                {"UPDATE events SET run = (SELECT no FROM runs WHERE id = CAST('run-4' AS BLOB))" + event + "4", want{kind: audit.KindDamaged}},
		"a last seq that fell":                   {"UPDATE runs SET last_seq = 6" + run, want{kind: audit.KindSeq, problem: "ends at seq 7, and the head at 6"}},
		"an event of a former time":              {"UPDATE events SET time = time - 3600000000" + event + "6", want{kind: audit.KindClock, seq: 6}},
		"an event of the future":                 {"UPDATE events SET time = time + 36000000000" + event + "7", want{kind: audit.KindClock, problem: "later than the store clock"}},
		"a record changed under a former token":  {fmt.Sprintf("UPDATE records SET created_token = 1, updated_token = 1"+record, "silent"), want{kind: audit.KindRecord, key: "silent"}},
		"a stamp of a token never granted":       {fmt.Sprintf("UPDATE records SET version = 2, updated_token = 3"+record, "silent"), want{kind: audit.KindRecord, key: "silent"}},
		"a stamp of an event that is not there":  {fmt.Sprintf("UPDATE records SET updated_seq = 9"+record, "first"), want{kind: audit.KindRecord, key: "first"}},
		"a record that goes back to version 1":   {fmt.Sprintf("UPDATE records SET version = 1"+record, "first"), want{kind: audit.KindRecord, key: "first"}},
		"a version that is not positive":         {fmt.Sprintf("UPDATE records SET version = 0"+record, "first"), want{kind: audit.KindRecord, key: "first"}},
		"a runnable run that is in no index":     {"UPDATE runs SET place = NULL" + run, want{kind: audit.KindIndex, index: runstore.IndexRunnable}},
		"an entry before the runnable time":      {"UPDATE runs SET place = 1" + run, want{kind: audit.KindIndex, index: runstore.IndexRunnable, problem: "which is not from"}},
		"a lease that was granted at a new time": {"UPDATE runs SET granted = granted + 60000000" + run, want{kind: audit.KindClock, seq: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(template)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "tape.db")
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			result, err := db.ExecContext(t.Context(), c.change)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := result.RowsAffected(); n != 1 || err != nil {
				t.Fatalf("%d rows were changed, error %v", n, err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			s := open(t, path)
			found, _ := check(t, s, audit.Options{})
			c.want.run = "run-3"
			if !slices.ContainsFunc(found, c.want.matches) {
				t.Errorf("got %v, want %+v", found, c.want)
			}
			for _, f := range found {
				if f.Run != "run-3" && (f.Run != "run-4" || c.want.kind != audit.KindDamaged) {
					t.Errorf("unexpected: %v", f)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
