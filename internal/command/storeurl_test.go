package command

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/postgres"
	"github.com/tapestore/tapestore/runstore/spanner"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func TestStoreURL(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"memory": "memory:", ":memory:": "memory:", "memory:": "memory:", "memory:shared": "memory:shared",
		"sqlite::memory:": "sqlite::memory:", "sqlite://:memory:": "sqlite::memory:", "SQLite:x": "SQLite:x",
		"sqlite:tape.db": "sqlite:tape.db", "sqlite://tape.db": "sqlite:tape.db", "sqlite:///var/tape.db": "sqlite:/var/tape.db",
		"tape.db": "sqlite:tape.db", "data/tape.sqlite3": "sqlite:data/tape.sqlite3", "tape.db?readers=2": "sqlite:tape.db?readers=2",
		"/var/a:b.db": "sqlite:/var/a:b.db", "/var/My Files/tape": "sqlite:/var/My Files/tape", "./x": "sqlite:./x", `C:\tape.db`: `sqlite:C:\tape.db`,
		"sqlite:a=b@c":      "sqlite:a=b@c", // whoever writes the scheme means it
		"postgres://u@h/db": "postgres://u@h/db", "POSTGRES://u@h/db": "POSTGRES://u@h/db", "spanner://p/i/d": "spanner://p/i/d",
	} {
		if got, err := storeURL(given); err != nil || got != want {
			t.Errorf("storeURL(%q) = %q, %v, want %q", given, got, err, want)
		}
	}
	for given, want := range map[string]error{
		"": errNoStore, "tape": errNoURL, "postgres": errNoURL, "host=db user=u password=s3cret": errNoURL, "host=/run/x.db": errNoURL,
		"//u:s3cret@h/db": errNoURL, "postgres//u:s3cret@h/db.db": errNoURL, "./x?password=s3@cret": errNoURL,
		" postgres://u:s3cret@h/db": errEdges, "postgres ": errEdges, `"postgres://u:s3cret@h/db"`: errEdges, "'./tape.db'": errEdges,
		"sqlite://u:s3cret@h/db": errNoFile, "sqlite:postgres://u:s3cret@h/db": errNoFile,
	} {
		if got, err := storeURL(given); got != "" || !errors.Is(err, want) {
			t.Errorf("storeURL(%q) = %q, %v, want the error %v", given, got, err, want)
		}
	}
	for given, want := range map[string]string{":memory:": "memory:", "tape": "sqlite:tape", "a/b": "sqlite:a/b", "postgres://u:s3cret@h/db": "", "password=x": ""} {
		if got, err := dbURL(given); got != want || (err == nil) != (want != "") {
			t.Errorf("dbURL(%q) = %q, %v, want %q", given, got, err, want)
		}
	}
}

// mistyped are ways to get a URL wrong that has a password in place of §, where no server
// is asked.
var mistyped = []string{
	"host=db user=u password=§", " postgres://u:§@127.0.0.1:1/db", `"postgres://u:§@127.0.0.1:1/db"`, "'postgres://u:§@127.0.0.1:1/db'",
	"postgres:/u:§@127.0.0.1:1/db", "postgres:u:§@127.0.0.1:1/db", "postgres//u:§@127.0.0.1:1/db", "//u:§@127.0.0.1:1/db", "u:§@127.0.0.1:1/db",
	"postgres://u:§@127.0.0.1:port/db", "postgres://u:§", "postgrse://u:§@127.0.0.1:1/db", "postgres://127.0.0.1:1/db password=§",
	"postgres://127.0.0.1:1/db&password=§", "postgres://127.0.0.1:1/db;password=§", "alloydb://127.0.0.1:1/db password=§", "alloydb://127.0.0.1:1/db&password=§",
	"postgres://127.0.0.1:1/db?pasword=§", "postgres://127.0.0.1:1/db?§", "sqlite://u:§@127.0.0.1:1/db", "sqlite:postgres://u:§@127.0.0.1:1/db",
	"bigtable://u:§@p/i", "spanner://u:§@p/i", "alloydb:/u:§@127.0.0.1:1/db", "alloydb://u:§@127.0.0.1:port/db",
}

// No URL, however mistyped, becomes a file, and no part of its password is printed,
// whatever command or flag it is given to.
func TestNoPasswordIsPrinted(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	const password = "Zq1s3cret9Kx"
	for _, form := range mistyped {
		given := strings.ReplaceAll(form, "§", password)
		inFile := configFile(t, fmt.Sprintf("serve:\n  healthz_listen: ''\n  store: %q\n", given))
		inFileTwice := configFile(t, fmt.Sprintf("serve: {store: %q, fence: %q, %q: x}\n", given, given, given))
		for _, args := range [][]string{
			{"serve", "--listen", "127.0.0.1:0", "--healthz-listen", "", "--store", given},
			{"serve", "--listen", "127.0.0.1:0", "--healthz-listen", "", "--store", "memory", given},
			{"serve", "--listen", given, "--store", "memory"},
			{"inspect", "runs", "--store=" + given}, {"inspect", "run", given, "--store", "memory"}, {"inspect", "runs", "--store", "memory", "--limit", given},
			{"conformance", "--store", given, "--run", "^I12/ttl-is-bounded$"}, {"conformance", "--engine", given}, {"conformance", given},
			{"serve", "--config", given}, {"config", "check", given},
			{"serve", "--listen", "127.0.0.1:0", "--config", inFile}, {"config", "check", inFileTwice},
			{"emulators", "up", given}, {given}, {"--stroe=" + given}, {"-s" + given},
		} {
			root := newRoot()
			var out strings.Builder
			root.SetOut(&out)
			root.SetErr(&out)
			root.SetArgs(args)
			err := root.ExecuteContext(t.Context())
			if err == nil {
				t.Errorf("%q succeeded", args)
				continue
			}
			said := out.String() + hideArguments(oneLine(err), args)
			if strings.Contains(said, "Zq1") || strings.Contains(said, "9Kx") {
				t.Errorf("%q: a part of the password is in %q", args, said)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("created: %v, %v", left, err)
	}
}

// An address that an adapter refuses is refused without any part of the password, whatever
// characters that holds.
func FuzzNoPasswordIsPrinted(f *testing.F) {
	for shape := range mistyped {
		for _, middle := range []string{"", ":", "@", "/", "?", "#", "%", "&", "=", " ", "?sslmode=", "&migrate=", "/:@", "]", "\n", `"`, "%zz", "`: "} {
			f.Add(shape, middle)
		}
	}
	f.Fuzz(func(t *testing.T, shape int, middle string) {
		if shape < 0 || shape >= len(mistyped) || mistyped[shape] == "postgres://u:§" && strings.Contains(middle, "@") {
			t.Skip("of postgres://u:pass@word without a host, word is the host")
		}
		given := strings.ReplaceAll(mistyped[shape], "§", "Zq1"+middle+"9Kx")
		said := []string{shownURL(given)}
		note := func(err error) {
			if err != nil {
				said = append(said, err.Error())
			}
		}
		address, err := storeURL(given)
		note(err)
		u, err := runstore.ParseURL(address)
		note(err)
		if err == nil {
			note(parseURL(u))
		}
		for _, text := range said {
			if strings.Contains(text, "Zq1") || strings.Contains(text, "9Kx") {
				t.Errorf("%q: a part of the password is in %q", given, text)
			}
		}
	})
}

// parseURL is what opening a URL does before anything is connected to.
func parseURL(u runstore.URL) (err error) {
	switch u.Scheme {
	case "sqlite":
		_, _, err = sqlite.ParseURL(u)
	case "postgres", "postgresql":
		_, _, err = postgres.ParseURL(u)
	case "alloydb":
		_, err = alloydb.ParseURL(u)
	case "bigtable":
		_, err = bigtable.ParseURL(u)
	case "spanner":
		_, err = spanner.ParseURL(u)
	}
	return err
}
