package runstore_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// String masks what may be a secret, however the URL was mistyped.
func TestURLHidesSecrets(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"sqlite:./tape.db?synchronous=normal":        "sqlite:./tape.db",
		"sqlite:/var/My Files/tape.db":               "sqlite:/var/My Files/tape.db",
		`sqlite:C:\tape.db`:                          `sqlite:C:\tape.db`,
		"sqlite::memory:":                            "sqlite::memory:",
		"memory:shared":                              "memory:shared",
		"pg://user:s3cret@host:5432/db?x=s3cret":     "pg://user:***@host:5432/db",
		"pg://user:s3:c@ret@host/db":                 "pg://user:***@host/db",
		"pg://user:s3c/ret@host/db":                  "pg://user:***@host/db",
		"pg://host/db":                               "pg://host/db",
		"pg://a:1,b:2/db":                            "pg://a:1,b:2/db",
		"pg://[::1]:5432/my%20db":                    "pg://[::1]:5432/my%20db",
		"pg://user@host/":                            "pg://user:***@host/",
		"pg://sa%40p.iam@host/db":                    "pg://sa%40p.iam:***@host/db",
		"pg://u@projects/p/locations/l/instances/i":  "pg://u:***@projects/p/locations/l/instances/i",
		"pg://user:s3cret":                           "pg://***",
		"pg://user:s3c/ret":                          "pg://***",
		"pg://user:s3c?ret@host/db":                  "pg:***",
		"pg://user%3As3cret@host/db":                 "pg://***:***@host/db",
		"pg://host/db password=s3cret":               "pg://host/***",
		"pg://host/db&password=s3cret":               "pg://host/***",
		"pg://host/db%3Fpassword%3Ds3cret":           "pg://host/***",
		"pg:/user:s3cret@host/db":                    "pg:***",
		"pg:user:s3cret":                             "pg:***",
		"sqlite:host=db user=u password=s3cret":      "sqlite:***",
		"sqlite:\x1b[2J":                             "sqlite:***",
		"PG://user:s3cret@host/db":                   "pg://user:***@host/db",
		"bigtable://project/instance/table?create=n": "bigtable://project/instance/table",
	} {
		u, err := runstore.ParseURL(given)
		if err != nil {
			t.Fatalf("%q: %v", given, err)
		}
		if got := u.String(); got != want {
			t.Errorf("%q: got %q, want %q", given, got, want)
		}
	}
}

// secretShapes are ways to write, and to mistype, a URL that holds a password in place of §.
var secretShapes = []string{
	"pg://user:§@host/db", "pg://user:§@host:5432/db?sslmode=off", "pg:/user:§@host/db", "pg:user:§@host/db", "pg//user:§@host/db",
	"//user:§@host/db", "user:§@host/db", " pg://user:§@host/db", "pg://user:§@host/db\n", `"pg://user:§@host/db"`, "'pg://user:§@host/db'",
	"pg://user:§", "pg://:§@host", "pg://user:§@host:5x/db", "pg://host/db?password=§", "pg://host/db password=§", "pg://host/db?sslmode=§",
	"pg://host/db;password=§", "host=db user=u password=§", "host=db password=§ port=5432", "password=§:x", "sqlite:host=db password=§",
	"sqlite://user:§@host/db", "sqlite:pg://user:§@host/db", "https://user:§@host/", "PG://user:§@host/db",
}

// String shows no password, whatever characters it contains and whatever surrounds it.
func FuzzURLHidesSecrets(f *testing.F) {
	for shape := range secretShapes {
		for _, middle := range []string{"", ":", "@", "/", "?", "#", "%", "&", "=", " ", "?a=", "?sslmode=", "&sslmode=", "/:@", "]", "[::1]", "\n", `"`, "%zz", ";", ","} {
			f.Add(shape, middle)
		}
	}
	f.Fuzz(func(t *testing.T, shape int, middle string) {
		if shape < 0 || shape >= len(secretShapes) || secretShapes[shape] == "pg://user:§" && strings.Contains(middle, "@") {
			t.Skip("of pg://user:pass@word without a host, word is the host")
		}
		given := strings.ReplaceAll(secretShapes[shape], "§", "Zq1"+middle+"9Kx")
		var said []string
		u, err := runstore.ParseURL(given)
		if err == nil {
			said = append(said, u.String())
			err = u.RejectUnknownParams("sslmode")
		}
		if err != nil {
			said = append(said, err.Error())
		}
		if _, err := runstore.Open(t.Context(), given); err != nil { // no scheme of them is registered here
			said = append(said, err.Error())
		}
		for _, text := range said {
			if strings.Contains(text, "Zq1") || strings.Contains(text, "9Kx") || strings.Contains(text, "\n") {
				t.Errorf("%q: a part of the password or a line break is in %q", given, text)
			}
		}
	})
}
