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

// ParseURL reads sqlite:FILE?synchronous=normal&group=1&readers=8&create=no. The keys
// are those of [Options].
func ParseURL(u runstore.URL) (path string, opts *Options, err error) {
	if err := u.Known("synchronous", "group", "readers", "create"); err != nil {
		return "", nil, err
	}
	path = strings.TrimPrefix(u.Address, "//")
	opts = &Options{Synchronous: Synchronous(strings.ToUpper(u.Params.Get("synchronous")))}
	switch create := u.Params.Get("create"); create {
	case "", "yes":
	case "no":
		opts.MustExist = true
	default:
		return "", nil, badOption("create", "%q is neither yes nor no", create)
	}
	for key, field := range map[string]*int{"group": &opts.MaxGroup, "readers": &opts.Readers} {
		if !u.Params.Has(key) {
			continue
		}
		n, err := strconv.Atoi(u.Params.Get(key))
		if err != nil || n == 0 {
			return "", nil, badOption(key, "is no number above 0")
		}
		*field = n
	}
	return path, opts, nil
}
