package alloydb

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/postgres"
)

func init() {
	admin.Register("alloydb", admin.Engine{
		Plan: func(ctx context.Context, u runstore.URL) (p admin.Plan, err error) {
			err = onPrimary(ctx, u, func(opts *Options, r route) (err error) {
				p, err = postgres.PlanMigration(ctx, r.config, opts.postgres())
				return err
			})
			return p, err
		},
		Apply: func(ctx context.Context, u runstore.URL) error {
			return onPrimary(ctx, u, func(opts *Options, r route) error {
				return postgres.Migrate(ctx, r.config, opts.postgres())
			})
		},
		Check: func(ctx context.Context, u runstore.URL) (all []admin.Finding) {
			err := onPrimary(ctx, u, func(opts *Options, r route) error {
				all = postgres.Check(ctx, r.config, opts.postgres())
				return nil
			})
			if err != nil {
				all = []admin.Finding{{Check: "connection", Status: admin.Fail, Found: err.Error(), Advice: "check the URL, and the rights of this account"}}
			}
			return all
		},
	})
}

// onPrimary calls f with the way to the primary that a URL names, and closes it.
func onPrimary(ctx context.Context, u runstore.URL, f func(opts *Options, r route) error) error {
	opts, err := ParseURL(u)
	if err != nil {
		return err
	}
	r, err := opts.route(ctx, opts.Instance+opts.Host) // one of them is empty
	if err != nil {
		return openError(err)
	}
	defer r.close()
	return f(opts, r)
}
