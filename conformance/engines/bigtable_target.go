package engines

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	adapter "github.com/tapestore/tapestore/runstore/bigtable"
)

// bigtableAt returns the Target of a store's URL: the URL's instance on the service, or an emulator
// that is already running anywhere.
func bigtableAt(ctx context.Context, u runstore.URL) (*Target, error) {
	opts, err := adapter.ParseURL(u)
	if err != nil {
		return nil, err
	}
	params := maps.Clone(u.Params)
	for _, key := range []string{"create", "emulator"} { // the tables of the cases are new
		delete(params, key)
	}
	if address := cmp.Or(opts.Emulator, os.Getenv("BIGTABLE_EMULATOR_HOST")); address != "" {
		server, err := bigtableemulator.At(ctx, address)
		if err != nil {
			return nil, err
		}
		return &Target{
			Harness: Bigtable(server, params),
			about:   fmt.Sprintf("%s at %s, a table for each case", server.Engine(), address),
			close:   server.Close,
		}, nil
	}
	admin, err := bigtable.NewAdminClient(ctx, opts.Project, opts.Instance)
	if err != nil {
		return nil, err
	}
	return bigtableService(ctx, admin, bigtableemulator.TableName{Project: opts.Project, Instance: opts.Instance, Table: opts.Table}, "", params)
}

// bigtableService gives each case a table in the instance of beside, a table that belongs to a
// user. emulator is "" except in tests.
func bigtableService(ctx context.Context, admin *bigtable.AdminClient, beside bigtableemulator.TableName, emulator string, params url.Values) (*Target, error) {
	ctx, cancel := context.WithTimeout(ctx, reachBound)
	defer cancel()
	where := beside
	name := func() string {
		return beside.Table[:min(len(beside.Table), 30)] + "-case-" + strings.ToLower(rand.Text()[:12])
	}
	where.Table = name()
	// Fail before any case if this user may not create tables.
	err := admin.CreateTable(ctx, where.Table)
	if err == nil {
		err = admin.DeleteTable(ctx, where.Table)
	}
	if err != nil {
		err = fmt.Errorf("each case needs a table of its own in %s/%s: %w", beside.Project, beside.Instance, err)
		return nil, errors.Join(err, admin.Close())
	}
	return &Target{
		Harness: conformance.Harness{Tier: emulators.TierService, New: func(t conformance.T) conformance.Instance {
			own := beside
			own.Table = name()
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				if err := admin.DeleteTable(ctx, own.Table); err != nil && status.Code(err) != codes.NotFound {
					t.Errorf("delete table %s: %v", own.Table, err)
				}
			})
			return bigtableTable{own, params}.instance(emulator)
		}},
		about: fmt.Sprintf("bigtable %s/%s (service), a table for each case", beside.Project, beside.Instance),
		close: admin.Close,
	}, nil
}
