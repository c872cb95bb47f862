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
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	adapter "github.com/tapestore/tapestore/runstore/spanner"
)

// createBound, 2 minutes, bounds the creation of a database, which takes long on the service.
const createBound = 2 * time.Minute

// spannerAt returns the Target of a store's URL: the URL's instance on the service or on Spanner
// Omni, or an emulator that is already running anywhere.
func spannerAt(ctx context.Context, u runstore.URL) (*Target, error) {
	opts, err := adapter.ParseURL(u)
	if err != nil {
		return nil, err
	}
	params := maps.Clone(u.Params)
	// The databases of the cases are new and have no roles.
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
	beside := spanneremulator.DatabaseName{Project: opts.Project, Instance: opts.Instance, Database: opts.Database}
	return spannerService(ctx, admin, beside, "", params)
}

// spannerEmulator returns a Target that runs all cases on one emulator, those with Overtakes too:
// the newest transaction wins there often enough.
func spannerEmulator(ctx context.Context, address string, params url.Values) (*Target, error) {
	server, err := spanneremulator.At(ctx, address)
	if err != nil {
		return nil, err
	}
	return &Target{
		Harness: Spanner(server, server, params),
		about:   fmt.Sprintf("%s at %s, a database for each case", server.Engine(), address),
		close:   server.Close,
	}, nil
}

// spannerService gives each case a database in the instance of beside, a database that belongs to a
// user. It takes ownership of admin. emulator is "" except in tests.
func spannerService(ctx context.Context, admin *database.DatabaseAdminClient, beside spanneremulator.DatabaseName, emulator string, params url.Values) (*Target, error) {
	// Fail before any case if this user may not create databases.
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
			// Create the database here and not by the first of several handles that a case may open
			// at once: on the service a creation takes longer than the handles' timeouts.
			if err := createDatabase(t.Context(), admin, own); err != nil {
				t.Fatalf("create %s: %v", own, err)
			}
			return spannerDatabase{own, params}.instance(emulator)
		}},
		about: fmt.Sprintf("spanner %s/%s (service), a database for each case", beside.Project, beside.Instance),
		close: admin.Close,
	}, nil
}

// caseDatabase returns a new database in the instance of beside. Its name has at most 30
// characters, the limit of Spanner.
func caseDatabase(beside spanneremulator.DatabaseName) spanneremulator.DatabaseName {
	beside.Database = beside.Database[:min(len(beside.Database), 12)] + "-case-" + strings.ToLower(rand.Text()[:12])
	return beside
}

// createDatabase creates a database. If the creation fails, it drops what was created.
func createDatabase(ctx context.Context, admin *database.DatabaseAdminClient, d spanneremulator.DatabaseName) error {
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

// dropDatabase drops a database, if it exists.
func dropDatabase(ctx context.Context, admin *database.DatabaseAdminClient, d spanneremulator.DatabaseName) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err := admin.DropDatabase(ctx, &databasepb.DropDatabaseRequest{Database: d.String()})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
