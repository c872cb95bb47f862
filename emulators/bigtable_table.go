package emulators

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// BigtableTable names a table.
type BigtableTable struct{ Project, Instance, Table string }

// String returns the table's full name.
func (t BigtableTable) String() string {
	return t.parent() + "/tables/" + t.Table
}

func (t BigtableTable) parent() string {
	return "projects/" + t.Project + "/instances/" + t.Instance
}

// NewTable returns a unique name of a table that does not exist. The caller creates the table; the
// emulator accepts every project and instance.
func (s *BigtableServer) NewTable() BigtableTable {
	return BigtableTable{bigtableProject, s.instance, fmt.Sprintf("table-%d", s.tables.Add(1))}
}

// Drop deletes a table, if it is there.
func (s *BigtableServer) Drop(ctx context.Context, t BigtableTable) error {
	if err := s.drop(ctx, t.String()); err != nil {
		return fmt.Errorf("emulators: bigtable: drop %s: %w", t, err)
	}
	return nil
}

func (s *BigtableServer) drop(ctx context.Context, name string) error {
	_, err := adminpb.NewBigtableTableAdminClient(s.conn).DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: name}, grpc.WaitForReady(true))
	s.gate.forget(name)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// list returns the tables of the tests.
func (s *BigtableServer) list(ctx context.Context, opts ...grpc.CallOption) ([]*adminpb.Table, error) {
	parent := BigtableTable{Project: bigtableProject, Instance: s.instance}.parent()
	res, err := adminpb.NewBigtableTableAdminClient(s.conn).ListTables(ctx, &adminpb.ListTablesRequest{Parent: parent}, opts...)
	return res.GetTables(), err
}

// dropAll deletes the tables of the tests from an emulator that keeps running.
func (s *BigtableServer) dropAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	tables, err := s.list(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, table := range tables {
		errs = append(errs, s.drop(ctx, table.Name))
	}
	return errors.Join(errs...)
}
