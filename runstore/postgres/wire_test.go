package postgres_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore/postgres"
)

// wire watches what a handle sends, and can lose a message. It leaves out the
// notifications, which are sent behind the writes.
type wire struct {
	mu     sync.Mutex
	trips  int         // how often something was sent after something was received
	writes []statement // those of runs, in the order in which they were sent
	harm   harm        // to the next statement that has…
	on     string      // …this in it; if empty, to the next write of a run
}

type statement struct {
	sql  string
	args []any
}

type harm int

const (
	none harm = iota
	loseRequest
	loseReply
	swallowRequest // the connection stays open, as with a host that has died
)

// through makes a handle's connections watched.
func (w *wire) through(config *pgxpool.Config, _ *postgres.Options) {
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watched{Conn: conn, wire: w}, nil
	}
	config.ConnConfig.Tracer = w
}

// watched is a connection. Its fields are its wire's.
type watched struct {
	net.Conn
	wire    *wire
	silent  bool // a notification is under way
	sending bool
	harm    harm
}

func (c *watched) Write(b []byte) (int, error) {
	w := c.wire
	w.mu.Lock()
	if !c.sending && !c.silent {
		w.trips++
	}
	c.sending = true
	lost, swallowed := c.harm == loseRequest, c.harm == swallowRequest
	w.mu.Unlock()
	if swallowed {
		return len(b), nil
	}
	if lost {
		_ = c.Conn.Close() // the server never hears of it; pgx may be reading already
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *watched) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	if c.harm != none { // a lost reply's server has answered
		_ = c.Conn.Close()
		return 0, syscall.ECONNRESET
	}
	c.sending = false
	return n, err
}

func (w *wire) begin(conn *pgx.Conn, sql string, args []any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := conn.PgConn().Conn().(*watched)
	if !ok {
		return
	}
	c.silent = strings.Contains(sql, "pg_notify")
	if isWrite(sql) {
		w.writes = append(w.writes, statement{sql, args})
	}
	if w.on != "" && strings.Contains(sql, w.on) || w.on == "" && isWrite(sql) {
		c.harm, w.harm = w.harm, none
	}
}

// isWrite reports whether a statement is a write of a run.
func isWrite(sql string) bool {
	return strings.Contains(sql, ".write(") || strings.Contains(sql, "UPDATE tapestore.runs")
}

// TraceQueryStart implements pgx.QueryTracer.
func (w *wire) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	w.begin(conn, data.SQL, data.Args)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (w *wire) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (w *wire) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		w.begin(conn, q.SQL, q.Arguments)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (w *wire) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (w *wire) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// lose does harm to the next statement that contains on, or, if on is empty, to the next write. It
// discards the record of what was sent so far.
func (w *wire) lose(h harm, on string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.harm, w.on, w.writes = h, on, nil
}

// sent returns the writes that were sent since lose was called.
func (w *wire) sent() []statement {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// harmed reports whether the harm of the last call of lose has been done.
func (w *wire) harmed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.harm == none
}

// counted returns how many trips f takes.
func (w *wire) counted(f func()) int {
	w.mu.Lock()
	before := w.trips
	w.mu.Unlock()
	f()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trips - before
}
