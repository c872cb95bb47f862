package command

import (
	"regexp"
	"strings"
)

// scheme is how a URL begins. A drive letter is none, nor is anything with a
// slash or a dot before the colon.
var scheme = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+-]+:`)

// storeURL returns the store URL that a user meant: the forms that Tape's users
// know, and a bare path as an SQLite file. What has a scheme is left for
// runstore.Open to judge.
func storeURL(given string) string {
	switch given {
	case "memory", ":memory:":
		return "memory:"
	case "sqlite::memory:", "sqlite://:memory:":
		return "sqlite::memory:"
	}
	if path, ok := strings.CutPrefix(given, "sqlite://"); ok {
		return "sqlite:" + path
	}
	if scheme.MatchString(given) {
		return given
	}
	return "sqlite:" + given
}

// dbURL returns the store URL of the old --db flag, which named an SQLite file.
func dbURL(given string) string {
	if given == ":memory:" {
		return "memory:"
	}
	return "sqlite:" + given
}
