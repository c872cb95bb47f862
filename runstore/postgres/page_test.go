package postgres_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore/postgres"
)

// The page shows the statement that the adapter sends.
func TestPageShowsTheAppend(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	words := func(sql string) string {
		return strings.NewReplacer("( ", "(", " )", ")").Replace(strings.Join(strings.Fields(sql), " "))
	}
	_, shown, _ := strings.Cut(string(page), "```sql\nWITH r AS (")
	shown, _, _ = strings.Cut(shown, "```")
	if got, want := words("WITH r AS ("+shown), words(postgres.StatementOfAnEvent()); got != want {
		t.Errorf("README.md shows the statement\n%s\nwant what is sent\n%s", got, want)
	}
}
