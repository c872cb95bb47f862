package alloydb_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// alternating stands in for a proxy that pools transactions over several nodes: it sends each
// transaction of its client to the node after that of the transaction before. It ends with the
// client's connection.
func alternating(client net.Conn, nodes []*pgproto3.Frontend) error {
	defer client.Close()
	c := pgproto3.NewBackend(client, client)
	if _, err := c.ReceiveStartupMessage(); err != nil {
		return err
	}
	c.Send(&pgproto3.AuthenticationOk{})
	c.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"}) // for the simple protocol
	c.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	c.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for turn := 0; ; {
		if err := c.Flush(); err != nil {
			return err
		}
		node := nodes[turn%len(nodes)]
		for asked := false; !asked; {
			m, err := c.Receive()
			if err != nil {
				return err
			}
			switch m.(type) {
			case *pgproto3.Terminate: // the client's connection, not the node's
				return nil
			case *pgproto3.Query, *pgproto3.Sync:
				asked = true
			}
			node.Send(m)
		}
		if err := node.Flush(); err != nil {
			return err
		}
		for replied := false; !replied; {
			m, err := node.Receive()
			if err != nil {
				return err
			}
			c.Send(m)
			ready, is := m.(*pgproto3.ReadyForQuery)
			if replied = is; is && ready.TxStatus == 'I' {
				turn++
			}
		}
	}
}

// TestPooledReadIsOnTheNodeThatWasMeasured checks that behind a proxy that sends each transaction to
// another node, no node is read by the lag of another.
func TestPooledReadIsOnTheNodeThatWasMeasured(t *testing.T) {
	t.Parallel()
	var nodes []*pgproto3.Frontend
	for _, replayed := range []string{"0", "-1 hour"} {
		create, _, address := shadowed(t, slog.DiscardHandler)
		create(inRecovery, "clock_timestamp() "+at("0"), "pg_last_xact_replay_timestamp() "+at(replayed),
			"behind() RETURNS text LANGUAGE sql AS $$SELECT '"+replayed+"'$$")
		h, err := connect(t, address).PgConn().Hijack()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Conn.Close() })
		nodes = append(nodes, h.Frontend)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config, err := pgxpool.ParseConfig("postgres://node/?sslmode=disable&pool_max_conns=1")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"node"}, nil }
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { ended <- alternating(there, nodes) }()
			return here, nil
		}
		config.ConnConfig.DefaultQueryExecMode = mode
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // a transaction
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		p := alloydb.NewReadPool(pool, true, slog.New(slog.DiscardHandler))
		for i, want := range []error{nil, alloydb.ErrBehind, nil, alloydb.ErrBehind} {
			behind := "unread"
			err := p.Read(t.Context(), time.Minute, func(ctx context.Context, conn *pgx.Conn) error {
				return conn.QueryRow(ctx, "SELECT public.behind()").Scan(&behind)
			})
			if wantRead := map[error]string{nil: "0", alloydb.ErrBehind: "unread"}[want]; !errors.Is(err, want) || behind != wantRead {
				t.Errorf("mode %v, read %d: got %v and read a node that is behind by %s, want %v and %s", mode, i+1, err, behind, want, wantRead)
			}
		}
		pool.Close()
		<-ended
	}
}

// TestPooledReadPoolIsReadInOneTransaction checks that the option decides whether a read is in a
// transaction, which takes more round trips.
func TestPooledReadPoolIsReadInOneTransaction(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	address := s.Postgres().Address()
	for pooled, want := range map[bool]byte{true: 'T', false: 'I'} {
		o := options(t, s)
		o.Instance, o.Dialer, o.Host, o.ReadPool, o.Params = "", nil, address, address, patientDials
		o.Postgres = &postgres.Options{Pooled: pooled}
		store, err := alloydb.OpenWithReadPool(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the read pool is read", func() bool {
			var status byte
			err := alloydb.PoolOf(store).Read(t.Context(), time.Hour, func(_ context.Context, conn *pgx.Conn) error {
				status = conn.PgConn().TxStatus()
				return nil
			})
			if err != nil { // a machine so busy that the pool did not respond in time
				t.Logf("try again after %v", err)
				return false
			}
			if status != want {
				t.Errorf("pooled %t: the status of the read's transaction is %c, want %c", pooled, status, want)
			}
			return true
		})
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
