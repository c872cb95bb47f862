package emulators

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

// spannerShim runs transactions on sessions of its own, one at a time on each. Today's
// clients have one multiplexed session each and run any number of transactions in it;
// the emulator forgets a read-write transaction of a session when a later one is used,
// and a read-only one when 32 later ones are.
//
// What the client is told of is the shim's: the id of a read-write transaction is its
// session, NUL and the emulator's id, see spannerTx; that of a read-only one has its
// read timestamp besides, see spannerSnapshot.
type spannerShim struct {
	conn    *grpc.ClientConn
	client  spannerpb.SpannerClient
	idle    time.Duration
	running sync.WaitGroup
	// life ends with the emulator: what changes data is carried out whether or not
	// the client waits for it.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	free     map[string][]string   // sessions, by database
	sessions map[string][]string   // all of ours, by database
	txs      map[string]*spannerTx // by the id that the client has
	finished []*spannerTx          // those of txs that have ended, in that order

	partitionMu  sync.Mutex        // taken before the other
	partitionTxs map[string]string // the sessions and ids of transactionAt, by that of a snapshot
}

func newSpannerShim(conn *grpc.ClientConn, idle time.Duration) *spannerShim {
	s := &spannerShim{
		conn: conn, client: spannerpb.NewSpannerClient(conn), idle: idle,
		free: map[string][]string{}, sessions: map[string][]string{}, txs: map[string]*spannerTx{},
		partitionTxs: map[string]string{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// serve carries out an RPC that is the shim's to do; handled is false for all others.
func (s *spannerShim) serve(a *spannerRPC, method string, req proto.Message) (handled bool, err error) {
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
	case spannerStatement:
		return s.statement(a, method, path.Base(method), req)
	}
	return false, nil
}

// take gives out a session of a database that nobody uses; fresh is one just made.
func (s *spannerShim) acquireSession(ctx context.Context, database string) (session string, fresh bool, err error) {
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

// give takes a session back.
func (s *spannerShim) releaseSession(database, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.sessions[database], session) { // else its database is gone
		s.free[database] = append(s.free[database], session)
	}
}

// discard forgets a session that the emulator does not have.
func (s *spannerShim) removeSession(database, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[database] = slices.DeleteFunc(s.sessions[database], func(other string) bool { return other == session })
}

// forget is called when a database was dropped, and its sessions with it.
func (s *spannerShim) databaseDropped(database string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.free, database)
	delete(s.sessions, database)
}

// onSession does something on a session of a database: on another one where the emulator
// does not have the first, because the database was dropped and made again.
func (s *spannerShim) onSession(ctx context.Context, database string, do func(session string) error) (session string, err error) {
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

// find returns the transaction of an id that a client has, or nil.
func (s *spannerShim) find(id []byte) *spannerTx {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.txs[string(id)]
}

// ended keeps a transaction that has ended, for whoever repeats a call of it, and gives
// back its session.
func (s *spannerShim) finishTx(tx *spannerTx) {
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

// close ends what is under way, and waits for it.
func (s *spannerShim) close() {
	s.mu.Lock()
	s.cancel()
	txs := slices.Collect(maps.Values(s.txs))
	s.mu.Unlock()
	for _, tx := range txs {
		tx.mu.Lock() // which is never taken by who has the other
		tx.idle.Stop()
		tx.mu.Unlock()
	}
	s.running.Wait()
}

// background runs what close waits for, unless that was called.
func (s *spannerShim) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.running.Go(f)
	return true
}

var errSpannerStopped = status.Error(codes.Unavailable, "the emulator has ended")

// deleteSessions deletes the shim's sessions, and so what they still do.
func (s *spannerShim) deleteSessions(ctx context.Context) error {
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

// spannerID is an id that the emulator knows in a session only, made one that is known
// by itself.
func spannerID(session string, id []byte) string { return session + "\x00" + string(id) }

// sendSpanner answers with one message.
func sendSpanner(a *spannerRPC, m proto.Message) error {
	frame, err := proto.Marshal(m)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return a.sendFrame(frame)
}
