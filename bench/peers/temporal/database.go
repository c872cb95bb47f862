package temporal

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"sync/atomic"

	"github.com/iancoleman/strcase"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence"
	"go.temporal.io/server/common/persistence/serialization"
	persistencesql "go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/resolver"
	"go.temporal.io/server/schema"

	"github.com/tapestore/tapestore/bench/engines"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

const (
	driverName   = "pgx"
	schemaFile   = "postgresql/v12/temporal/schema.sql"
	databaseName = "temporal" // for Temporal's logs; the connections name their own
)

// database is a database with Temporal's schema, and Temporal's stores of shards and of tasks.
type database struct {
	pool       *sqlx.DB // Temporal's own
	factory    *persistencesql.Factory
	shards     persistence.ShardStore
	executions persistence.ExecutionStore
	blobs      serialization.Serializer
	version    string // of PostgreSQL
	drop       func(ctx context.Context) error
	contests   atomic.Int32
}

// openDatabase creates a database on the server, with Temporal's schema and stores.
func openDatabase(ctx context.Context, server *postgresemulator.Server) (_ *database, err error) {
	made, err := server.NewDatabase(ctx, "")
	if err != nil {
		return nil, err
	}
	db := &database{blobs: serialization.NewSerializer(), drop: made.Drop}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.close())
		}
	}()
	connection, err := pgx.ParseConfig(made.URL)
	if err != nil {
		return nil, err
	}
	connection.Tracer = counter{}
	// Like Temporal's own pool, but with the number of connections of the other sides.
	db.pool = sqlx.NewDb(stdlib.OpenDB(*connection), driverName)
	db.pool.SetMaxOpenConns(engines.Pool)
	db.pool.SetMaxIdleConns(engines.Pool)
	db.pool.MapperFunc(strcase.ToSnake)
	tables, err := fs.ReadFile(schema.Assets(), schemaFile)
	if err != nil {
		return nil, err
	}
	if err := execAll(ctx, db.pool.DB, string(tables)); err != nil {
		return nil, err
	}
	db.factory = persistencesql.NewFactory(config.SQL{
		PluginName: postgresql.PluginNamePGX, DatabaseName: databaseName,
		Connect: func(*config.SQL) (*sqlx.DB, error) { return db.pool, nil },
	}, resolver.NewNoopResolver(), "bench", log.NewNoopLogger(), metrics.NoopMetricsHandler, db.blobs)
	if db.shards, err = db.factory.NewShardStore(); err != nil {
		return nil, err
	}
	if db.executions, err = db.factory.NewExecutionStore(); err != nil {
		return nil, err
	}
	return db, db.pool.QueryRowContext(ctx, "SHOW server_version").Scan(&db.version)
}

// execAll executes a text of several statements.
func execAll(ctx context.Context, db *sql.DB, text string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(driverConn any) error {
		_, err := driverConn.(*stdlib.Conn).Conn().PgConn().Exec(ctx, text).ReadAll()
		return err
	})
}

func (db *database) close() error {
	var err error
	if db.executions != nil {
		db.executions.Close()
	}
	if db.shards != nil {
		db.shards.Close()
	}
	if db.factory != nil {
		db.factory.Close()
	}
	if db.pool != nil {
		err = db.pool.Close()
	}
	return errors.Join(err, db.drop(context.Background()))
}

// counter counts the statements of a turn by the counter in a statement's context.
type counter struct{}

// callsKey is the context key of the statement counter.
type callsKey struct{}

func (counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if n, ok := ctx.Value(callsKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
	return ctx
}
func (counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
