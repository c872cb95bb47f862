package bigtable

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// TableName names a table.
type TableName struct{ Project, Instance, Table string }

// String returns the table's full name.
func (t TableName) String() string {
	return t.parent() + "/tables/" + t.Table
}

func (t TableName) parent() string {
	return "projects/" + t.Project + "/instances/" + t.Instance
}

// NewTable returns a unique name of a table that does not exist. The caller creates the table; the
// emulator accepts every project and instance.
func (s *Server) NewTable() TableName {
	return TableName{project, s.instance, fmt.Sprintf("table-%d", s.tables.Add(1))}
}

// Drop deletes a table, if it is there.
func (s *Server) Drop(ctx context.Context, t TableName) error {
	if err := s.drop(ctx, t.String()); err != nil {
		return fmt.Errorf("emulators: bigtable: drop %s: %w", t, err)
	}
	return nil
}

func (s *Server) drop(ctx context.Context, name string) error {
	_, err := adminpb.NewBigtableTableAdminClient(s.conn).DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: name}, grpc.WaitForReady(true))
	s.gate.forget(name)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// list returns the tables of the tests.
func (s *Server) list(ctx context.Context, opts ...grpc.CallOption) ([]*adminpb.Table, error) {
	parent := TableName{Project: project, Instance: s.instance}.parent()
	res, err := adminpb.NewBigtableTableAdminClient(s.conn).ListTables(ctx, &adminpb.ListTablesRequest{Parent: parent}, opts...)
	return res.GetTables(), err
}

// dropAll deletes the tables of the tests from an emulator that keeps running.
func (s *Server) dropAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), host.DropBound)
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
