package spanner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/admin/instance/apiv1/instancepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// project is the project of all test databases.
const project = "tapestore"

// DatabaseName names a database.
type DatabaseName struct{ Project, Instance, Database string }

// String returns the database's full name, as clients take it.
func (d DatabaseName) String() string { return d.parent() + "/databases/" + d.Database }

func (d DatabaseName) parent() string {
	return "projects/" + d.Project + "/instances/" + d.Instance
}

// databases tracks the databases of the tests and their instances.
type databases struct {
	prefix string // of the instances

	mu        sync.Mutex
	instances []string // created here; databases are added to the last
	made      int
	open      map[DatabaseName]struct{}
	restarts  int
}

func newDatabases() databases {
	return databases{prefix: "test-" + strings.ToLower(rand.Text()[:10]), open: map[DatabaseName]struct{}{}}
}

// NewDatabase creates an empty database with a unique name, in an instance of this server.
//
// If an emulator that was started here no longer answers, NewDatabase restarts it, unless a
// database of NewDatabase would be lost: each is in use until Drop. Otherwise NewDatabase returns
// an error, and the caller may call Restart.
func (s *Server) NewDatabase(ctx context.Context) (DatabaseName, error) {
	d, restarts, err := s.newDatabase(ctx)
	if err != nil && s.program != "" && ctx.Err() == nil && (status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Unavailable) {
		if failed := s.restartUnused(ctx, restarts); failed != nil {
			err = fmt.Errorf("%w; %w", err, failed)
		} else {
			d, _, err = s.newDatabase(ctx)
		}
	}
	if err != nil {
		return DatabaseName{}, fmt.Errorf("emulators: spanner: a new database: %w", err)
	}
	return d, nil
}

func (s *Server) newDatabase(ctx context.Context) (_ DatabaseName, restarts int, err error) {
	s.lifeMu.RLock()
	defer s.lifeMu.RUnlock()
	if s.stopped {
		return DatabaseName{}, 0, errors.New("the server is closed")
	}
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	d, err := s.databases.create(ctx, s.proxy.backend.Load().conn)
	return d, s.databases.restarts, err
}

// restartUnused restarts an emulator that did not answer when it had been restarted so many times,
// unless it was restarted since or databases are in use.
func (s *Server) restartUnused(ctx context.Context, restarts int) error {
	s.lifeMu.Lock()
	defer s.lifeMu.Unlock()
	if s.databases.restarts != restarts {
		return nil
	}
	if n := s.databases.inUse(); n > 0 {
		return fmt.Errorf("the emulator does not answer, and is not restarted: %d databases of it are in use and would be lost", n)
	}
	return s.restart(ctx)
}

// Drop deletes a database, if it is there.
func (s *Server) Drop(ctx context.Context, d DatabaseName) error {
	s.lifeMu.RLock()
	defer s.lifeMu.RUnlock()
	if s.stopped {
		return nil // the database ended with the server
	}
	b := s.proxy.backend.Load()
	if err := s.databases.drop(ctx, b.conn, d); err != nil {
		return fmt.Errorf("emulators: spanner: drop %s: %w", d, err)
	}
	b.databaseDropped(d.String())
	return nil
}

// create creates a database. An instance has room for a hundred; create adds instances as needed.
func (ds *databases) create(ctx context.Context, conn *grpc.ClientConn, statements ...string) (DatabaseName, error) {
	ds.mu.Lock()
	defer ds.mu.Unlock() // a database takes milliseconds
	if len(ds.instances) == 0 {
		if err := ds.addInstance(ctx, conn); err != nil {
			return DatabaseName{}, err
		}
	}
	for full := false; ; full = true {
		ds.made++
		d := DatabaseName{project, ds.instances[len(ds.instances)-1], fmt.Sprintf("db-%d", ds.made)}
		err := createDatabase(ctx, conn, d, statements...)
		if err == nil {
			ds.open[d] = struct{}{}
			return d, nil
		}
		if full || status.Code(err) != codes.ResourceExhausted {
			return DatabaseName{}, err
		}
		if err := ds.addInstance(ctx, conn); err != nil {
			return DatabaseName{}, err
		}
	}
}

// addInstance creates an instance. The caller holds mu.
func (ds *databases) addInstance(ctx context.Context, conn *grpc.ClientConn) error {
	name := fmt.Sprintf("%s-%d", ds.prefix, len(ds.instances)+1)
	parent := "projects/" + project
	op, err := instancepb.NewInstanceAdminClient(conn).CreateInstance(ctx, &instancepb.CreateInstanceRequest{
		Parent: parent, InstanceId: name,
		Instance: &instancepb.Instance{Name: parent + "/instances/" + name, Config: parent + "/instanceConfigs/emulator-config", DisplayName: name, NodeCount: 1},
	}, grpc.WaitForReady(true))
	if err := awaitOperation(ctx, conn, op, err); err != nil {
		return err
	}
	ds.instances = append(ds.instances, name)
	return nil
}

func createDatabase(ctx context.Context, conn *grpc.ClientConn, d DatabaseName, statements ...string) error {
	op, err := databasepb.NewDatabaseAdminClient(conn).CreateDatabase(ctx, &databasepb.CreateDatabaseRequest{
		Parent: d.parent(), CreateStatement: "CREATE DATABASE `" + d.Database + "`", ExtraStatements: statements,
	})
	return awaitOperation(ctx, conn, op, err)
}

// awaitOperation waits for the end of a long-running operation. An emulator has usually finished it
// by the time of its reply.
func awaitOperation(ctx context.Context, conn *grpc.ClientConn, op *longrunningpb.Operation, err error) error {
	ticker := time.NewTicker(host.PollInterval)
	defer ticker.Stop()
	for err == nil && !op.GetDone() {
		select {
		case <-ticker.C:
			op, err = longrunningpb.NewOperationsClient(conn).GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.GetName()})
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err == nil && op.GetError() != nil {
		err = status.ErrorProto(op.GetError())
	}
	return err
}

func (ds *databases) drop(ctx context.Context, conn *grpc.ClientConn, d DatabaseName) error {
	_, err := databasepb.NewDatabaseAdminClient(conn).DropDatabase(ctx, &databasepb.DropDatabaseRequest{Database: d.String()})
	if status.Code(err) == codes.NotFound {
		err = nil
	}
	if err == nil {
		ds.mu.Lock()
		defer ds.mu.Unlock()
		delete(ds.open, d)
	}
	return err
}

// dropAll deletes the databases and instances that were created in an emulator that keeps running.
func (ds *databases) dropAll(ctx context.Context, conn *grpc.ClientConn) error {
	ds.mu.Lock()
	open, instances := ds.open, ds.instances
	ds.open, ds.instances = map[DatabaseName]struct{}{}, nil
	ds.mu.Unlock()
	var errs []error
	for d := range open {
		errs = append(errs, ds.drop(ctx, conn, d))
	}
	for _, name := range instances {
		_, err := instancepb.NewInstanceAdminClient(conn).DeleteInstance(ctx, &instancepb.DeleteInstanceRequest{Name: DatabaseName{Project: project, Instance: name}.parent()})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// forgetAll clears the state after a restart, which lost all data.
func (ds *databases) forgetAll() {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.restarts++
	clear(ds.open)
	ds.instances = nil
}

func (ds *databases) inUse() int {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return len(ds.open)
}
