package bigtable_test

import (
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A family whose cells go by their age would lose the store: opening refuses it.
func TestCollectionByAgeIsRefused(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	_ = open(t, table).Close() // it makes the table
	admin, err := client.NewAdminClient(t.Context(), table.Project, table.Instance, option.WithEndpoint("passthrough:///"+server(t).Address()),
		option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	if err := admin.SetGCPolicy(t.Context(), table.Table, "e", client.MaxAgePolicy(240*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(t, table); err == nil || !strings.Contains(err.Error(), "family e") {
		t.Errorf("got error %v, want one that names family e", err)
	}
}
