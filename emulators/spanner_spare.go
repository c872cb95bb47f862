package emulators

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
)

// spannerSpare is a database that was given back.
type spannerSpare struct {
	database SpannerDatabase
	uses     int
	tables   []string // all that it has
}

// spannerUses is how often a database is given out. The emulator keeps rows that were
// deleted, and reads pass over them.
const spannerUses = 8

// SpareDatabase is NewDatabase, but for a user that does not mind a database that others
// have used: it may have tables, which are empty but for those that GiveBack has kept, and
// it has a past, which stale reads see.
func (s *SpannerServer) SpareDatabase(ctx context.Context) (SpannerDatabase, error) {
	if spare, ok := s.databases.spare(); ok {
		return spare, nil
	}
	return s.NewDatabase(ctx)
}

// GiveBack ends the use of a database of SpareDatabase. It deletes all rows but those of the
// tables that are to be kept. The database is dropped instead if its user has left a call or
// a transaction under way, which could reach who has it next.
func (s *SpannerServer) GiveBack(ctx context.Context, d SpannerDatabase, keep ...string) error {
	if !s.empty(ctx, d, keep) {
		return s.Drop(ctx, d)
	}
	return nil
}

// empty makes a spare of a database, if it can.
func (s *SpannerServer) empty(ctx context.Context, d SpannerDatabase, keep []string) bool {
	s.life.RLock()
	defer s.life.RUnlock()
	used, known := s.databases.use(d)
	b := s.proxy.backend.Load()
	if s.ended || !known || used.uses == spannerUses || b.shim == nil || !s.proxy.isQuiet(d.String()) || !b.shim.isQuiet(d.String()) {
		return false
	}
	if err := used.deleteAll(ctx, b.conn, keep); err != nil {
		return false // whatever is wrong with it goes with it
	}
	s.databases.spared(used)
	return true
}

// deleteAll deletes the rows of all tables but some. Those of interleaved tables may go with
// their parents'.
func (u *spannerSpare) deleteAll(ctx context.Context, conn *grpc.ClientConn, keep []string) (err error) {
	client := spannerpb.NewSpannerClient(conn)
	session, err := client.CreateSession(ctx, &spannerpb.CreateSessionRequest{Database: u.database.String()})
	if err != nil {
		return err
	}
	defer func() {
		_, failed := client.DeleteSession(ctx, &spannerpb.DeleteSessionRequest{Name: session.Name})
		err = errors.Join(err, failed)
	}()
	if len(u.tables) == 0 {
		const tables = "SELECT t.table_name FROM information_schema.tables AS t WHERE t.table_schema = '' AND t.table_type = 'BASE TABLE'"
		found, err := client.ExecuteSql(ctx, &spannerpb.ExecuteSqlRequest{Session: session.Name, Sql: tables})
		if err != nil {
			return err
		}
		for _, row := range found.Rows {
			u.tables = append(u.tables, row.Values[0].GetStringValue())
		}
	}
	request := &spannerpb.CommitRequest{Session: session.Name, Transaction: &spannerpb.CommitRequest_SingleUseTransaction{SingleUseTransaction: spannerReadWrite()}}
	for _, table := range u.tables {
		if !slices.Contains(keep, table) {
			request.Mutations = append(request.Mutations, &spannerpb.Mutation{Operation: &spannerpb.Mutation_Delete_{
				Delete: &spannerpb.Mutation_Delete{Table: table, KeySet: &spannerpb.KeySet{All: true}},
			}})
		}
	}
	if _, err := client.Commit(ctx, request); err != nil {
		return fmt.Errorf("delete what is in %s: %w", u.database, err)
	}
	return nil
}

// spare gives out a database again.
func (ds *spannerDatabases) spare() (SpannerDatabase, bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if len(ds.spares) == 0 {
		return SpannerDatabase{}, false
	}
	last := len(ds.spares) - 1
	next := ds.spares[last]
	ds.spares = ds.spares[:last]
	ds.used[next.database] = next
	return next.database, true
}

// use counts one more use of a database, if it is ours.
func (ds *spannerDatabases) use(d SpannerDatabase) (u spannerSpare, known bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if _, known = ds.open[d]; !known {
		return u, false
	}
	u = ds.used[d]
	u.database, u.uses = d, u.uses+1
	return u, true
}

// spared keeps a database that is empty for who comes next.
func (ds *spannerDatabases) spared(u spannerSpare) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.spares = append(ds.spares, u)
}

// isQuiet tells whether no RPC about a database is under way.
func (p *spannerProxy) isQuiet(database string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.under[database] == 0
}

// enter counts an RPC until leave is called.
func (p *spannerProxy) enter(database string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.under[database]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.under[database]--; p.under[database] == 0 {
			delete(p.under, database)
		}
	}
}

// isQuiet tells whether no transaction of a database is open, or being committed.
func (s *spannerShim) isQuiet(database string) bool {
	s.mu.Lock()
	var txs []*spannerTx
	for _, tx := range s.txs {
		if tx.database == database {
			txs = append(txs, tx)
		}
	}
	s.mu.Unlock()
	return !slices.ContainsFunc(txs, (*spannerTx).isUnderWay)
}

func (tx *spannerTx) isUnderWay() bool {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.state == spannerOpen || tx.state == spannerCommitting
}
