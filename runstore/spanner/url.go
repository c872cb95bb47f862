package spanner

import (
	"context"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/runstore"
)

func init() {
	runstore.Register("spanner", func(ctx context.Context, u runstore.URL) (runstore.RunStore, error) {
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

var priorities = map[string]spannerpb.RequestOptions_Priority{
	"":       spannerpb.RequestOptions_PRIORITY_UNSPECIFIED,
	"low":    spannerpb.RequestOptions_PRIORITY_LOW,
	"medium": spannerpb.RequestOptions_PRIORITY_MEDIUM,
	"high":   spannerpb.RequestOptions_PRIORITY_HIGH,
}

// ParseURL parses spanner://project/instance/database?key=value&… The keys correspond to the fields
// of [Options]: create=no, emulator=host:port, feed_shards=64, omni=host:port, priority,
// retry_timeout, role.
func ParseURL(u runstore.URL) (*Options, error) {
	if err := u.RejectUnknownParams("create", "emulator", "feed_shards", "omni", "priority", "retry_timeout", "role"); err != nil {
		return nil, err
	}
	path, ok := strings.CutPrefix(u.Address, "//")
	parts := strings.Split(path, "/")
	if !ok || len(parts) != 3 {
		return nil, badOption("store URL", "%s: write spanner://project/instance/database", u)
	}
	o := &Options{
		Project: parts[0], Instance: parts[1], Database: parts[2],
		Role: u.Params.Get("role"), Emulator: u.Params.Get("emulator"), Omni: u.Params.Get("omni"),
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
	if v := u.Params.Get("feed_shards"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n == 0 {
			return nil, badOption("feed_shards", "%q is no number such as 64", v)
		}
		o.FeedShards = n
	}
	if o.Priority, ok = priorities[u.Params.Get("priority")]; !ok {
		return nil, badOption("priority", "%q is neither low nor medium nor high", u.Params.Get("priority"))
	}
	return o, nil
}
