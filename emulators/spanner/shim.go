package spanner

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// shim runs transactions on a pool of sessions of its own, one transaction at a time on
// each. Current client libraries run any number of transactions in one multiplexed session. The
// emulator loses a read-write transaction of a session when a later one is used, and a read-only
// transaction after 32 later ones.
//
// The client sees the shim's transaction ids. The id of a read-write transaction consists of its
// session, NUL and the emulator's id (see transaction); the id of a read-only transaction also has
// its read timestamp (see snapshot).
type shim struct {
	conn    *grpc.ClientConn
	client  spannerpb.SpannerClient
	idle    time.Duration
	running sync.WaitGroup
	// ctx ends with the emulator. Calls that change data run under it, whether or not the client
	// waits for them.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	free     map[string][]string     // idle sessions, by database
	sessions map[string][]string     // all sessions of the shim, by database
	txs      map[string]*transaction // by the client's id
	finished []*transaction          // the transactions of txs that have ended, oldest first

	partitionMu  sync.Mutex        // is taken before mu
	partitionTxs map[string]string // session and transaction id of partitionTransaction, by snapshot id
}

func newShim(conn *grpc.ClientConn, idle time.Duration) *shim {
	s := &shim{
		conn: conn, client: spannerpb.NewSpannerClient(conn), idle: idle,
		free: map[string][]string{}, sessions: map[string][]string{}, txs: map[string]*transaction{},
		partitionTxs: map[string]string{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// serve executes an RPC that concerns transactions; handled is false for all others.
func (s *shim) serve(a *rpc, method string, req proto.Message) (handled bool, err error) {
	switch req := req.(type) {
	case *spannerpb.BeginTransactionRequest:
		return true, s.beginTransaction(a, req)
	case *spannerpb.CommitRequest:
		return true, s.commit(a, req)
	case *spannerpb.RollbackRequest:
		return true, s.rollback(a, req)
	case *spannerpb.BatchWriteRequest:
		return true, s.batchWrite(a, req)
	case *databasepb.UpdateDatabaseDdlRequest:
		return true, s.updateSchema(a, method, req)
	case statement:
		return s.statement(a, method, path.Base(method), req)
	}
	return false, nil
}

// acquireSession returns an idle session of a database. fresh reports that the session was created
// for this call.
func (s *shim) acquireSession(ctx context.Context, database string) (session string, fresh bool, err error) {
	s.mu.Lock()
	if free := s.free[database]; len(free) > 0 {
		session = free[len(free)-1]
		s.free[database] = free[:len(free)-1]
	}
	s.mu.Unlock()
	if session != "" {
		return session, false, nil
	}
	made, err := s.client.CreateSession(ctx, &spannerpb.CreateSessionRequest{Database: database})
	if err != nil {
		return "", false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[database] = append(s.sessions[database], made.Name)
	return made.Name, true, nil
}

// releaseSession makes a session idle again.
func (s *shim) releaseSession(database, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.sessions[database], session) { // else its database was dropped
		s.free[database] = append(s.free[database], session)
	}
}

// removeSession removes a session that the emulator does not have.
func (s *shim) removeSession(database, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[database] = slices.DeleteFunc(s.sessions[database], func(other string) bool { return other == session })
}

// databaseDropped removes the sessions of a database that was dropped.
func (s *shim) databaseDropped(database string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.free, database)
	delete(s.sessions, database)
}

// onSession calls do with a session of a database and returns that session. If the emulator does
// not have the session, because the database was dropped and created anew, onSession tries another.
func (s *shim) onSession(ctx context.Context, database string, do func(session string) error) (session string, err error) {
	for {
		session, fresh, err := s.acquireSession(ctx, database)
		if err != nil {
			return "", err
		}
		err = do(session)
		if err == nil {
			return session, nil
		}
		if status.Code(err) != codes.NotFound || fresh {
			s.releaseSession(database, session)
			return "", err
		}
		s.removeSession(database, session)
	}
}

// find returns the transaction with the client's id, or nil.
func (s *shim) find(id []byte) *transaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.txs[string(id)]
}

// finishTx releases the session of a transaction that has ended. The transaction stays in txs, for
// clients that repeat one of its calls, until 10,000 later ones have ended.
func (s *shim) finishTx(tx *transaction) {
	const most = 10_000
	s.releaseSession(tx.database, tx.session)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = append(s.finished, tx)
	for len(s.finished) > most {
		delete(s.txs, s.finished[0].id)
		s.finished = s.finished[1:]
	}
}

// close ends the calls in flight and waits for them.
func (s *shim) close() {
	s.mu.Lock()
	s.cancel()
	txs := slices.Collect(maps.Values(s.txs))
	s.mu.Unlock()
	for _, tx := range txs {
		tx.mu.Lock() // not under s.mu: other code takes s.mu while it holds tx.mu
		tx.idle.Stop()
		tx.mu.Unlock()
	}
	s.running.Wait()
}

// background runs f in a goroutine that close waits for. It reports false, and runs nothing, after
// close.
func (s *shim) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.running.Go(f)
	return true
}

var errStopped = status.Error(codes.Unavailable, "the emulator has ended")

// deleteSessions deletes the shim's sessions, which ends their open transactions.
func (s *shim) deleteSessions(ctx context.Context) error {
	s.mu.Lock()
	var names []string
	for _, sessions := range s.sessions {
		names = append(names, sessions...)
	}
	clear(s.sessions)
	clear(s.free)
	s.mu.Unlock()
	var errs []error
	for _, name := range names {
		if _, err := s.client.DeleteSession(ctx, &spannerpb.DeleteSessionRequest{Name: name}); status.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// txID combines a session and an id that is unique within the session to an id that is unique
// everywhere.
func txID(session string, id []byte) string { return session + "\x00" + string(id) }

// sendMessage sends a reply of one message.
func sendMessage(a *rpc, m proto.Message) error {
	frame, err := proto.Marshal(m)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return a.sendFrame(frame)
}
