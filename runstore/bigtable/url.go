package bigtable

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
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

// ParseURL parses bigtable://project/instance/table?key=value&… The keys correspond to the fields of
// [Options]: app_profile, create=no, emulator=host:port, retry_timeout.
func ParseURL(u runstore.URL) (*Options, error) {
	o := &Options{}
	err := adapter.ReadParams(u, map[string]func(value string) error{
		"app_profile": adapter.Text(&o.AppProfile), "create": adapter.YesNo("create", &o.NoCreate, "no"),
		"emulator": adapter.Text(&o.Emulator), "retry_timeout": adapter.Duration("retry_timeout", &o.RetryTimeout),
	})
	if err == nil {
		o.Project, o.Instance, o.Table, err = adapter.SplitAddress(u, "table")
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}
