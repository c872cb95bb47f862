package sqlfile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

func files(texts ...string) fstest.MapFS {
	all := fstest.MapFS{}
	for i := 0; i < len(texts); i += 2 {
		all["sql/"+texts[i]+".sql"] = &fstest.MapFile{Data: []byte(texts[i+1])}
	}
	return all
}

const text = `-- run_read returns a run -- whole --
-- if there is one.
-- $1 id

SELECT '-- no comment', a
	, b -- if named
	, c -- if named old
	, d -- if not named
	, e -- if old not named
-- if old
	-- before version 2
	, f
	, g -- if named
-- end
FROM runs  -- the table
WHERE id = $1
`

func TestStatement(t *testing.T) {
	t.Parallel()
	const begin, end = "SELECT '-- no comment', a\n", "FROM runs\nWHERE id = $1"
	for parts, want := range map[string]string{
		"":          begin + "\t, d\n" + end,
		"named":     begin + "\t, b\n" + end,
		"old":       begin + "\t, d\n\t, e\n\t, f\n" + end,
		"old named": begin + "\t, b\n\t, c\n\t, f\n\t, g\n" + end,
	} {
		got := sqlfile.Load(files("run_read", text)).Statement("run_read", strings.Fields(parts)...)
		if got != want {
			t.Errorf("parts %q: got\n%s\nwant\n%s", parts, got, want)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s := sqlfile.Load(files("a", "-- a reads.\nSELECT 1", "b", "SELECT 1", "c", "-- c reads.\nSELECT 1"))
	s.Statement("a")
	s.Statement("b")
	want := []string{`sql/b.sql does not begin with a comment "-- b …"`, "sql/c.sql is unused"}
	if got := s.Faults(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStatementPanics(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"missing": "there is no file sql/missing.sql",
		"empty":   "sql/empty.sql holds no statement",
		"open":    `sql/open.sql does not end "if old"`,
		"nested":  `sql/nested.sql begins "if new" within "if old"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("got panic %q, want %q", got, want)
				}
			}()
			sqlfile.Load(files("empty", "-- empty\n", "open", "SELECT 1\n-- if old\n", "nested", "SELECT 1\n-- if old\n-- if new\n-- end\n-- end\n")).Statement(name)
		})
	}
}
