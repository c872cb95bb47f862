package spanner

import (
	"context"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
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
	o := &Options{}
	err := adapter.ReadParams(u, map[string]func(string) error{
		"create": adapter.YesNo("create", &o.NoCreate, "no"), "emulator": adapter.Text(&o.Emulator),
		"feed_shards": adapter.Number("feed_shards", &o.FeedShards), "omni": adapter.Text(&o.Omni),
		"priority": o.setPriority, "retry_timeout": adapter.Duration("retry_timeout", &o.RetryTimeout), "role": adapter.Text(&o.Role),
	})
	if err == nil {
		o.Project, o.Instance, o.Database, err = adapter.SplitAddress(u, "database")
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Options) setPriority(value string) error {
	priority, ok := priorities[value]
	if !ok {
		return adapter.Invalid("priority", "%q is neither low nor medium nor high", value)
	}
	o.Priority = priority
	return nil
}
