package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// TestQueryPlans checks that no statement scans a table or sorts: each costs what it returns,
// however much is stored.
func TestQueryPlans(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	openAt(t, path, embedded.NewHost())
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for query, args := range sqlite.Scans() {
		rows, err := db.Query("EXPLAIN QUERY PLAN "+query, make([]any, args)...)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(plan, "\n")
		if strings.Contains(text, "SCAN") || strings.Contains(text, "TEMP B-TREE") || text == "" {
			t.Errorf("%s\nhas the plan\n%s", query, text)
		}
	}
}

// TestStatementFiles checks that each file of the folder sql is used and described. A missing file
// fails every test.
func TestStatementFiles(t *testing.T) {
	t.Parallel()
	for _, fault := range sqlite.StatementFaults() {
		t.Error(fault)
	}
}
