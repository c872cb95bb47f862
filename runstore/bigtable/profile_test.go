package bigtable_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	operate "github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// profiles answers for the app profiles of an instance, which the emulator has not.
type profiles struct {
	adminpb.UnimplementedBigtableInstanceAdminServer
	asked string
	reply *adminpb.AppProfile
	err   error
}

func (p *profiles) GetAppProfile(_ context.Context, req *adminpb.GetAppProfileRequest) (*adminpb.AppProfile, error) {
	p.asked = req.Name
	return p.reply, p.err
}

// serve returns the options of a client of the profiles.
func (p *profiles) serve(t testing.TB) []option.ClientOption {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	adminpb.RegisterBigtableInstanceAdminServer(s, p)
	go func() { _ = s.Serve(l) }() // Stop ends it
	t.Cleanup(s.Stop)
	return []option.ClientOption{option.WithEndpoint("passthrough:///" + l.Addr().String()),
		option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

func single(cluster string, transactions bool) *adminpb.AppProfile {
	return &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{
		ClusterId: cluster, AllowTransactionalWrites: transactions,
	}}}
}

// A profile under which conditional mutations are not atomic is refused at opening, with
// the command that mends it. What it routes to is part of where the store says it is.
// An account that may not look is told so, and opens.
func TestAppProfile(t *testing.T) {
	t.Parallel()
	const place = "projects/project/instances/instance/clusters/%/tables/table"
	for _, tc := range []struct {
		name    string
		profile string
		reply   *adminpb.AppProfile
		err     error
		at      string // where the store says it is; "" if it is refused
		warns   bool
	}{
		{"one cluster, with transactions", "", single("east", true), nil, "east", false},
		{"another profile", "writer", single("west", true), nil, "west", false},
		{"one cluster, without transactions", "writer", single("east", false), nil, "", false},
		{"many clusters", "", &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_MultiClusterRoutingUseAny_{
			MultiClusterRoutingUseAny: &adminpb.AppProfile_MultiClusterRoutingUseAny{},
		}}, nil, "", false},
		{"who may not look", "", nil, status.Error(codes.PermissionDenied, "no"), "", true},
		{"a profile that is missing", "writer", nil, status.Error(codes.NotFound, "no such profile"), "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := &profiles{reply: tc.reply, err: tc.err}
			var log strings.Builder
			o := &bigtable.Options{Project: "project", Instance: "instance", Table: "table", AppProfile: tc.profile,
				Logger: slog.New(slog.NewTextHandler(&log, nil))}
			at, err := bigtable.CheckProfile(t.Context(), o, p.serve(t)...)
			name := tc.profile
			if name == "" {
				name = "default"
			}
			if want := "projects/project/instances/instance/appProfiles/" + name; p.asked != want {
				t.Errorf("it asked for %q, want %q", p.asked, want)
			}
			if warned := strings.Contains(log.String(), "single-row transactions"); warned != tc.warns {
				t.Errorf("it logged %q", log.String())
			}
			if tc.at != "" || tc.warns {
				if want := strings.Replace(place, "%", tc.at, 1); err != nil || at != want {
					t.Errorf("it is at %q, %v, want %q", at, err, want)
				}
				return
			}
			if !errors.Is(err, runstore.ErrUnavailable) {
				t.Fatalf("got %v, want ErrUnavailable", err)
			}
			command := "gcloud bigtable app-profiles update " + name + " --project=project --instance=instance --route-to=CLUSTER --transactional-writes"
			if tc.err == nil && !strings.Contains(err.Error(), command) {
				t.Errorf("got %q, want the command %q in it", err, command)
			}
			if tc.err != nil && !strings.Contains(err.Error(), "no such profile") {
				t.Errorf("got %q, want what Bigtable said", err)
			}
		})
	}
}

// The first handle that knows its cluster adds it to a store that was opened without, under the same epoch. From
// then on a failover raises the epoch.
func TestClusterThatWasNotKnown(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	for _, step := range []struct {
		cluster string
		raise   bool // by an operator
		epochs  int
		warns   bool // the doctor, in the cluster east
	}{
		{"", false, 0, true},
		{"east", false, 0, false},
		{"", true, 1, false},
		{"east", false, 1, false},
		{"west", false, 2, true},
	} {
		if err := bigtable.OpenIn(t.Context(), s, step.cluster); err != nil {
			t.Fatal(err)
		}
		if step.raise {
			if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
				t.Fatal(err)
			}
		}
		all, err := s.Epochs(t.Context())
		if err != nil || len(all) != step.epochs {
			t.Errorf("opened in %q: there are %d epochs, %v, want %d", step.cluster, len(all), err, step.epochs)
		}
		found, err := bigtable.JudgeIncarnation(t.Context(), s, "east")
		if err != nil || (found.Status == operate.Warn) != step.warns {
			t.Errorf("opened in %q: the doctor finds %v, %v; want a warning: %t", step.cluster, found, err, step.warns)
		}
	}
}

// A store that was written elsewhere is another: in another table or one of the same name,
// as after a restore, or in another cluster, as after a failover. Where a cluster is not
// known any will do.
func TestSameIncarnation(t *testing.T) {
	t.Parallel()
	at := func(table, cluster string) string {
		return "projects/project/instances/instance/clusters/" + cluster + "/tables/" + table
	}
	for _, tc := range []struct {
		name, stored, table, cluster string
		same                         bool
	}{
		{"here", at("table", "east"), "table", "east", true},
		{"another table", at("original", "east"), "table", "east", false},
		{"a table whose name ends alike", at("a-table", "east"), "table", "east", false},
		{"another cluster", at("table", "west"), "table", "east", false},
		{"this cluster is not known", at("table", "west"), "table", "", true},
		{"that cluster was not known", at("table", ""), "table", "east", true},
		{"neither is known", at("table", ""), "table", "", true},
		{"another table, and no cluster is known", at("original", ""), "table", "", false},
		{"another instance, and no cluster is known", strings.Replace(at("table", ""), "instances/instance", "instances/other", 1), "table", "", false},
		{"nonsense", "elsewhere", "table", "", false},
		{"nothing", "", "table", "east", false},
	} {
		o := bigtable.Options{Project: "project", Instance: "instance", Table: tc.table}
		for _, of := range []struct {
			stored, restored string
			same             bool
		}{{"", "", true}, {"/restored/a@1", "a@1", true}, {"", "a@1", false}, {"/restored/a@1", "", false}, {"/restored/a@1", "a@2", false}} {
			if same := bigtable.SameIncarnation(tc.stored+of.stored, o, tc.cluster, of.restored); same != (tc.same && of.same) {
				t.Errorf("%s, restored from %q: a store that is at %q: same %v", tc.name, of.restored, tc.stored+of.stored, same)
			}
		}
	}
}
