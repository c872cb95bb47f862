package sqlite

import (
	"context"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

func init() {
	runstore.Register("sqlite", func(ctx context.Context, u runstore.URL) (runstore.RunStore, error) {
		path, opts, err := ParseURL(u)
		if err != nil {
			return nil, err
		}
		s, err := Open(ctx, path, opts)
		if err != nil {
			return nil, err
		}
		return s, nil
	})
}

// ParseURL parses sqlite:FILE?synchronous=normal&group=1&readers=8&create=no&readonly=yes. The keys
// are the fields of [Options].
func ParseURL(u runstore.URL) (path string, opts *Options, err error) {
	opts = &Options{}
	err = adapter.ReadParams(u, map[string]func(string) error{
		"synchronous": adapter.Text(&opts.Synchronous),
		"group":       adapter.Number("group", &opts.MaxGroup),
		"readers":     adapter.Number("readers", &opts.Readers),
		"create":      adapter.YesNo("create", &opts.MustExist, "no"),
		"readonly":    adapter.YesNo("readonly", &opts.ReadOnly, "yes"),
	})
	if err == nil && opts.ReadOnly && u.Params.Get("create") == "yes" {
		err = adapter.Invalid("create", "yes does not go with readonly=yes")
	}
	if err != nil {
		return "", nil, err
	}
	opts.Synchronous = Synchronous(strings.ToUpper(string(opts.Synchronous)))
	return strings.TrimPrefix(u.Address, "//"), opts, nil
}
