package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// durableSettings are the settings that Durable turns on and that are otherwise off.
// synchronous_commit is always on: without it a commit would be acknowledged while it is still in
// the server's own memory, and Kill would lose it. Handing the commit to the operating system costs
// nothing more.
var durableSettings = []string{"fsync", "full_page_writes"}

// checkSettings returns an error if a server that this process did not start lacks a requested
// setting, which cannot be changed here.
func checkSettings(ctx context.Context, c *pgx.Conn, opts *Options) error {
	wanted := maps.Clone(opts.Settings)
	if opts.Durable {
		if wanted == nil {
			wanted = map[string]string{}
		}
		for _, name := range append(durableSettings, "synchronous_commit") {
			wanted[name] = "on"
		}
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		var value *string
		if err := c.QueryRow(ctx, "SELECT current_setting($1, true)", name).Scan(&value); err != nil {
			return err
		}
		switch {
		case value == nil:
			problems = append(problems, fmt.Errorf("the server has no setting %s, and %q is needed", name, wanted[name]))
		case !settingHolds(name, *value, wanted[name]):
			problems = append(problems, fmt.Errorf("the server's %s is %q, and %q is needed", name, *value, wanted[name]))
		}
	}
	return errors.Join(problems...)
}

// settingHolds reports whether a setting has the wanted value. A list of libraries may have more
// libraries than wanted.
func settingHolds(name, value, wanted string) bool {
	if !strings.HasSuffix(name, "_preload_libraries") {
		return strings.EqualFold(value, wanted)
	}
	list := func(s string) []string { return strings.Fields(strings.ReplaceAll(s, ",", " ")) }
	has := list(value)
	return !slices.ContainsFunc(list(wanted), func(library string) bool { return !slices.Contains(has, library) })
}
