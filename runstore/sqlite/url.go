package sqlite

import (
	"context"
	"strconv"
	"strings"

	"github.com/tapestore/tapestore/runstore"
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
	if err := u.RejectUnknownParams("synchronous", "group", "readers", "create", "readonly"); err != nil {
		return "", nil, err
	}
	path = strings.TrimPrefix(u.Address, "//")
	opts = &Options{Synchronous: Synchronous(strings.ToUpper(u.Params.Get("synchronous")))}
	for key, yes := range map[string]func(bool){
		"create":   func(yes bool) { opts.MustExist = !yes },
		"readonly": func(yes bool) { opts.ReadOnly = yes },
	} {
		switch v := u.Params.Get(key); v {
		case "":
		case "yes", "no":
			yes(v == "yes")
		default:
			return "", nil, badOption(key, "%q is neither yes nor no", v)
		}
	}
	if opts.ReadOnly && u.Params.Get("create") == "yes" {
		return "", nil, badOption("create", "yes does not go with readonly=yes")
	}
	for key, field := range map[string]*int{"group": &opts.MaxGroup, "readers": &opts.Readers} {
		if !u.Params.Has(key) {
			continue
		}
		n, err := strconv.Atoi(u.Params.Get(key))
		if err != nil || n == 0 {
			return "", nil, badOption(key, "is not a number above 0")
		}
		*field = n
	}
	return path, opts, nil
}
