package bigtable

import (
	"context"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func init() {
	runstore.Register("bigtable", func(ctx context.Context, u runstore.URL) (runstore.RunStore, error) {
		opts, err := ParseURL(u)
		if err != nil {
			return nil, err
		}
		s, err := Open(ctx, opts)
		if err != nil {
			return nil, err
		}
		return s, nil
	})
}

// ParseURL reads bigtable://project/instance/table?key=value&… The keys are those of
// [Options]: app_profile, emulator=host:port, create=no, retry_timeout.
func ParseURL(u runstore.URL) (*Options, error) {
	if err := u.RejectUnknownParams("app_profile", "create", "emulator", "retry_timeout"); err != nil {
		return nil, err
	}
	path, ok := strings.CutPrefix(u.Address, "//")
	parts := strings.Split(path, "/")
	if !ok || len(parts) != 3 {
		return nil, badOption("store URL", "%s: write bigtable://project/instance/table", u)
	}
	o := &Options{
		Project: parts[0], Instance: parts[1], Table: parts[2],
		AppProfile: u.Params.Get("app_profile"), Emulator: u.Params.Get("emulator"),
	}
	switch v := u.Params.Get("create"); v {
	case "", "yes":
	case "no":
		o.NoCreate = true
	default:
		return nil, badOption("create", "%q is neither yes nor no", v)
	}
	if v := u.Params.Get("retry_timeout"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d == 0 {
			return nil, badOption("retry_timeout", "%q is no duration such as 10s", v)
		}
		o.RetryTimeout = d
	}
	return o, nil
}
