package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
)

var (
	// scheme matches the beginning of a URL. A drive letter is not a scheme, nor is anything with a
	// slash or a dot before the colon.
	scheme = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+-]+:`)
	// pathBegin and pathEnd match the beginning and the end of a bare path to an SQLite file.
	pathBegin = regexp.MustCompile(`^(/|\.{1,2}[/\\]|[a-zA-Z]:[/\\])`)
	pathEnd   = regexp.MustCompile(`^[^:\s]+\.(db|sqlite|sqlite3)$`)
)

// edges are the characters that an env file or a shell may leave around a URL.
const edges = " \t\r\n\"'"

// The errors of a setting, to follow its name.
var (
	errNoStore = errors.New("is empty; name a store URL, for example sqlite:./tape.db")
	errNoURL   = errors.New("is neither a store URL nor a path; write scheme:address, for example postgres://user@host/database, " +
		"or ./FILE or sqlite:FILE for an SQLite file")
	errEdges  = errors.New("begins or ends with a space, a line break or a quotation mark; write the URL without")
	errNoFile = errors.New("is not the name of a file; write sqlite:FILE if that is really its name")
)

// storeURL returns the store URL for a user's input: the forms that Tape's users know, and a bare
// path as an SQLite file. A text with a scheme is left for runstore.Open to check. Anything else is
// refused, because a mistyped URL, with its password, would otherwise become the name of a new
// file. Errors never repeat the input.
func storeURL(given string) (string, error) {
	found := scheme.FindString(given)
	path, sqlite := given[len(found):], strings.EqualFold(found, "sqlite:")
	switch {
	case given == "":
		return "", errNoStore
	case given == "memory", given == ":memory:":
		return "memory:", nil
	case sqlite && strings.HasPrefix(path, "//"):
		if path = path[len("//"):]; path == ":memory:" || !connects(path) {
			return "sqlite:" + path, nil
		}
		return "", errNoFile
	case sqlite && strings.Contains(path, "://"):
		return "", errNoFile
	case found != "":
		return given, nil
	case !connects(given) && (pathBegin.MatchString(given) || pathEnd.MatchString(beforeParams(given))):
		return "sqlite:" + given, nil
	}
	if strings.Trim(given, edges) != given {
		return "", errEdges
	}
	return "", errNoURL
}

// storeVariable is the environment variable that holds a store URL, for passwords that must not
// appear in the list of processes.
const storeVariable = "TAPE_STORE"

// givenStore returns the store URL of a --store flag, or else of the environment.
func givenStore(flag string, env func(string) (string, bool)) (string, error) {
	given := flag
	if given == "" {
		given, _ = env(storeVariable)
	}
	if given == "" {
		return "", errors.New("name a store with --store URL, or with the variable " + storeVariable)
	}
	address, err := storeURL(given)
	if err != nil {
		return "", fmt.Errorf("--store %w", err)
	}
	return address, nil
}

// dbURL returns the store URL of the old --db flag, which named an SQLite file.
func dbURL(given string) (string, error) {
	switch {
	case given == ":memory:":
		return "memory:", nil
	case connects(given):
		return "", errNoFile
	}
	return "sqlite:" + given, nil
}

// connects reports whether a text may be a connection string, or a part of one, rather than the
// name of a file.
func connects(given string) bool {
	control := func(r rune) bool { return r < ' ' }
	return given != strings.TrimSpace(given) || strings.ContainsAny(given, `@"'`) || strings.Contains(given, "://") ||
		strings.Contains(beforeParams(given), "=") || strings.ContainsFunc(given, control)
}

// beforeParams returns the part of a URL before the question mark.
func beforeParams(given string) string {
	before, _, _ := strings.Cut(given, "?")
	return before
}

// secretWords matches arguments that may contain a password.
var secretWords = regexp.MustCompile(`(?i)@|://|passw|pwd|secret`)

// passwd matches the names of files that a system calls so.
var passwd = regexp.MustCompile(`^(pwd|passwd)(\.[a-z0-9]+)?$`)

// isFile reports whether a text is the path of a file, and no part of it looks like a URL or a setting.
func isFile(text string) bool {
	return !connects(text) && !strings.Contains(text, "?") && (pathBegin.MatchString(text) || pathEnd.MatchString(text) || passwd.MatchString(text))
}

// hideArguments masks the arguments and settings that may contain a password wherever they appear
// in a message, in full, quoted or truncated to the 64 bytes that messages of runstore allow:
// cobra, and flags that expect a name, repeat the rejected value.
func hideArguments(message string, given []string) string {
	for _, arg := range given {
		values := []string{arg}
		if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "-") {
			values = append(values, value)
		}
		for _, value := range values {
			if !secretWords.MatchString(value) || isFile(value) {
				continue
			}
			shown := "***"
			if u, err := runstore.ParseURL(value); err == nil {
				shown = u.String()
			}
			for _, form := range []string{value, strings.Trim(strconv.Quote(value), `"`), oneLine(errors.New(value)), value[:min(len(value), 64)]} {
				if form != "" {
					message = strings.ReplaceAll(message, form, shown)
				}
			}
		}
	}
	return message
}

// onStore opens the store that a flag or the environment names, at the URL that change returns for it,
// calls do, and closes the store. An interrupt ends the context.
func onStore(cmd *cobra.Command, url string, change func(string) string, do func(ctx context.Context, store runstore.RunStore, address string) error) (err error) {
	ctx, stop := interruptible(cmd)
	defer stop()
	address, err := givenStore(url, os.LookupEnv)
	if err != nil {
		return err
	}
	store, err := runstore.Open(ctx, change(address))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return do(ctx, store, address)
}
