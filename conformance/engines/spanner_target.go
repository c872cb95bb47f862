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

	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	adapter "github.com/tapestore/tapestore/runstore/spanner"
)

// createBound is for a database of the service, which takes its time.
const createBound = 2 * time.Minute

// spannerAt finds out how the cases can have databases at a store's URL: on the service
// and on Spanner Omni in its instance, and on an emulator that somebody runs anywhere.
func spannerAt(ctx context.Context, u runstore.URL) (*Target, error) {
	opts, err := adapter.ParseURL(u)
	if err != nil {
		return nil, err
	}
	params := maps.Clone(u.Params)
	// The databases of the cases are new, and have no roles.
	for _, key := range []string{"create", "emulator", "role"} {
		delete(params, key)
	}
	if opts.Omni != "" && opts.Emulator != "" {
		return nil, errors.New("spanner: emulator= goes with no omni=")
	}
	if opts.Omni == "" {
		if address := cmp.Or(opts.Emulator, os.Getenv("SPANNER_EMULATOR_HOST")); address != "" {
			return spannerEmulator(ctx, address, params)
		}
	}
	var client []option.ClientOption
	if opts.Omni != "" {
		client = []option.ClientOption{option.WithEndpoint("passthrough:///" + opts.Omni), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
	}
	admin, err := database.NewDatabaseAdminClient(ctx, client...)
	if err != nil {
		return nil, err
	}
	beside := emulators.SpannerDatabase{Project: opts.Project, Instance: opts.Instance, Database: opts.Database}
	return spannerService(ctx, admin, beside, "", params)
}

// spannerEmulator uses one emulator for the cases that overtake too: the newest transaction
// wins there often enough.
func spannerEmulator(ctx context.Context, address string, params url.Values) (*Target, error) {
	server, err := emulators.SpannerAt(ctx, address)
	if err != nil {
		return nil, err
	}
	return &Target{
		Harness: Spanner(server, server, params),
		about:   fmt.Sprintf("%s at %s, a database for each case", server.Engine(), address),
		close:   server.Close,
	}, nil
}

// spannerService gives each case a database beside one that is somebody's, and takes
// admin over. emulator is "" but in tests.
func spannerService(ctx context.Context, admin *database.DatabaseAdminClient, beside emulators.SpannerDatabase, emulator string, params url.Values) (*Target, error) {
	// Whoever may not make databases is told so before any case.
	probe := caseDatabase(beside)
	err := createDatabase(ctx, admin, probe)
	if err == nil {
		err = dropDatabase(context.WithoutCancel(ctx), admin, probe)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("each case needs a database of its own in %s/%s: %w", beside.Project, beside.Instance, err), admin.Close())
	}
	return &Target{
		Harness: conformance.Harness{Tier: emulators.TierService, New: func(t conformance.T) conformance.Instance {
			own := caseDatabase(beside)
			t.Cleanup(func() {
				if err := dropDatabase(context.Background(), admin, own); err != nil {
					t.Errorf("drop %s: %v", own, err)
				}
			})
			// Not left to the handles, of which a case may open several at once: the service
			// creates for longer than they are patient.
			if err := createDatabase(t.Context(), admin, own); err != nil {
				t.Fatalf("create %s: %v", own, err)
			}
			return spannerDatabase{own, params}.instance(emulator)
		}},
		about: fmt.Sprintf("spanner %s/%s (service), a database for each case", beside.Project, beside.Instance),
		close: admin.Close,
	}, nil
}

// caseDatabase is a new name beside a database, of the 30 characters that a name may have.
func caseDatabase(beside emulators.SpannerDatabase) emulators.SpannerDatabase {
	beside.Database = beside.Database[:min(len(beside.Database), 12)] + "-case-" + strings.ToLower(rand.Text()[:12])
	return beside
}

// createDatabase leaves nothing of what it could not bring to an end.
func createDatabase(ctx context.Context, admin *database.DatabaseAdminClient, d emulators.SpannerDatabase) error {
	asking, cancel := context.WithTimeout(ctx, reachBound)
	defer cancel()
	made, err := admin.CreateDatabase(asking, &databasepb.CreateDatabaseRequest{
		Parent: "projects/" + d.Project + "/instances/" + d.Instance, CreateStatement: "CREATE DATABASE `" + d.Database + "`",
	})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, createBound)
	defer cancel()
	if _, err = made.Wait(waiting); err != nil {
		err = errors.Join(err, dropDatabase(context.WithoutCancel(ctx), admin, d))
	}
	return err
}

// dropDatabase drops a database, if it is there.
func dropDatabase(ctx context.Context, admin *database.DatabaseAdminClient, d emulators.SpannerDatabase) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err := admin.DropDatabase(ctx, &databasepb.DropDatabaseRequest{Database: d.String()})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
