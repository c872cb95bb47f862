package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/admin"
)

func init() {
	for _, scheme := range []string{"postgres", "postgresql"} {
		admin.Register(scheme, admin.Engine{
			Plan: func(ctx context.Context, u runstore.URL) (admin.Plan, error) {
				config, opts, err := ParseURL(u)
				if err != nil {
					return admin.Plan{}, err
				}
				return PlanMigration(ctx, config, opts)
			},
			Apply: func(ctx context.Context, u runstore.URL) error {
				config, opts, err := ParseURL(u)
				if err != nil {
					return err
				}
				return Migrate(ctx, config, opts)
			},
			Check: func(ctx context.Context, u runstore.URL) []admin.Finding {
				config, opts, err := ParseURL(u)
				if err != nil {
					return []admin.Finding{{Check: "store URL", Status: admin.Fail, Found: err.Error(), Advice: "write postgres://user@host:port/database"}}
				}
				return Check(ctx, config, opts)
			},
		})
	}
}

// PlanMigration returns what [Migrate] would do. It only reads, over one connection. It takes
// ownership of config.
//
// Errors: ErrUnsupported for a schema that is newer than this program's, and those of Open.
func PlanMigration(ctx context.Context, config *pgxpool.Config, opts *Options) (admin.Plan, error) {
	e, conn, err := dialOnce(ctx, config, opts)
	if err != nil {
		return admin.Plan{}, outcome.Wrap("plan postgres migration", "", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was left undone
	p, err := e.plan(ctx, conn)
	if err != nil {
		return p, outcome.Wrap("plan postgres migration", "", outcome.NotApplied(ctx, err))
	}
	return p, nil
}

// Migrate creates the schema or brings it to this program's version, whatever Options.NoMigrate
// says, and opens no store. The role needs the rights of the migrating role only. It takes ownership
// of config. Several processes may migrate at once; after an error a repeat continues.
//
// Errors: those of Open.
func Migrate(ctx context.Context, config *pgxpool.Config, opts *Options) error {
	var own Options
	if opts != nil {
		own = *opts
	}
	own.NoMigrate = false
	e, err := newEngine(&own, int(config.MaxConns))
	if err != nil {
		return outcome.Wrap("migrate postgres store", "", err)
	}
	configure(config, e)
	if err := e.migrate(ctx, config.ConnConfig); err != nil {
		return outcome.Wrap("migrate postgres store", "", err)
	}
	return nil
}

// Check returns findings about the schema, the session and the server. It only reads, over one
// connection, and takes ownership of config.
func Check(ctx context.Context, config *pgxpool.Config, opts *Options) []admin.Finding {
	var r admin.Report
	e, conn, err := dialOnce(ctx, config, opts)
	if err != nil {
		r.Fail("connection", err.Error(), "check the URL, the network, the password and pg_hba.conf")
		return r
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was left undone
	r.OK("connection", "%s, at most %d connections of this program", transport(conn), config.MaxConns)
	if err := e.checkSession(ctx, conn, &r); err != nil {
		r.Fail("session", err.Error(), "see the message")
		return r
	}
	p, err := e.plan(ctx, conn)
	if server := new(pgconn.PgError); errors.As(err, &server) && server.Code == "42501" { // insufficient_privilege
		r.Fail("schema", err.Error(), grants)
		return r
	}
	r.Schema(p, err)
	if err != nil || len(p.Steps) > 0 {
		return r
	}
	if err := e.checkPrivileges(ctx, conn, &r); err != nil {
		r.Fail("permissions", err.Error(), "see the message")
		return r
	}
	e.checkIncarnation(ctx, conn, &r)
	return r
}

// dialOnce returns an engine without a pool and one connection with the session settings of the
// store. It does not retry, because a person waits.
func dialOnce(ctx context.Context, config *pgxpool.Config, opts *Options) (*engine, *pgx.Conn, error) {
	e, err := newEngine(opts, int(config.MaxConns))
	if err != nil {
		return nil, nil, err
	}
	configure(config, e)
	conn, err := e.connectAlone(ctx, config.ConnConfig)
	if err != nil {
		return nil, nil, outcome.NotApplied(ctx, err)
	}
	return e, conn, nil
}

// plan compares the schema with this program's.
func (e *engine) plan(ctx context.Context, conn *pgx.Conn) (p admin.Plan, err error) {
	p = admin.Plan{Holder: fmt.Sprintf("schema %q of database %q", e.opts.Schema, conn.Config().Database), Program: len(migrations)}
	if p.Version, err = e.schemaVersion(ctx, conn); err != nil || p.Version == len(migrations) {
		return p, err
	}
	at, err := incarnationOf(ctx, conn)
	if err != nil {
		return p, err
	}
	steps, err := e.stepsBetween(ctx, conn, p.Version, len(migrations), at)
	begin := admin.Step{Name: "begin", Statements: []string{"BEGIN;", noTimeout(0) + ";", e.inQuotes(sqlSchemaLock) + ";", noTimeout(e.opts.LockTimeout) + ";"}}
	p.Steps = slices.Concat([]admin.Step{begin}, steps, []admin.Step{{Name: "commit", Statements: []string{"COMMIT;"}}})
	return p, err
}

// transport says whether the driver encrypts a connection. AlloyDB's connector encrypts below it.
func transport(conn *pgx.Conn) string {
	if conn.Config().TLSConfig != nil {
		return "TLS"
	}
	return "no TLS by the driver"
}

// checkSession checks the session and the server's settings.
func (e *engine) checkSession(ctx context.Context, conn *pgx.Conn, r *admin.Report) error {
	var pid uint32
	var role, version, isolation, synchronous, standbys, fsync, fullPages, autovacuum, readOnly string
	var standby, plpgsql bool
	var prepared int64
	err := conn.QueryRow(ctx, sqlAdminSession, onceOnly(conn)).Scan(&pid, &role, &version, &standby, &isolation, &synchronous, &standbys,
		&fsync, &fullPages, &autovacuum, &readOnly, &plpgsql, &prepared)
	if err != nil {
		return err
	}
	alter := func(setting string) string { return "ALTER ROLE \"" + role + "\" SET " + setting }
	switch {
	case standby:
		r.Fail("server", fmt.Sprintf("%s, a standby", version), "connect to the primary: target_session_attrs=read-write in the URL")
	case readOnly == "on":
		r.Fail("server", fmt.Sprintf("%s, and the role %q begins transactions that only read", version, role), alter("default_transaction_read_only = off"))
	default:
		r.OK("server", "%s, a primary, as role %q", version, role)
	}
	if pooled := pid != conn.PgConn().PID(); pooled && !e.opts.Pooled {
		r.Warn("pooler", "the server's process is not the one that answered: a proxy pools connections", "write pooled=yes in the URL if it pools transactions; session pooling needs no change")
	} else if pooled {
		r.OK("pooler", "a proxy pools connections, and pooled=yes says so")
	} else {
		r.OK("pooler", "none")
	}
	if isolation == readCommitted {
		r.OK("isolation", "%s", isolation)
	} else {
		r.Fail("isolation", isolation, alter("default_transaction_isolation = 'read committed'"))
	}
	switch {
	case synchronous != "off":
		r.OK("durability", "synchronous_commit is %s, synchronous standbys: %q", synchronous, standbys)
	case e.opts.Pooled:
		r.Fail("durability", "synchronous_commit is off, and a proxy shares the sessions: a crash could give a token out twice", alter("synchronous_commit = on"))
	default:
		r.OK("durability", "synchronous_commit is off for the role; the store turns it on for its sessions")
	}
	if fsync == "off" || fullPages == "off" {
		r.Warn("crash safety", fmt.Sprintf("fsync is %q, full_page_writes is %q: a crash of the host may lose acknowledged commits or damage the database", fsync, fullPages),
			"turn both on, except on a server for tests")
	} else {
		r.OK("crash safety", "fsync and full_page_writes are on")
	}
	if autovacuum == "off" {
		r.Warn("autovacuum", "off: rows that heartbeats replace are never removed", "turn autovacuum on")
	}
	if prepared > 0 {
		r.Warn("prepared transactions", fmt.Sprintf("%d in this database: while one is open the feed waits for it", prepared), "commit or roll back those of pg_prepared_xacts that nothing will finish")
	}
	if plpgsql {
		r.OK("extensions", "plpgsql is there; the store needs no other")
	} else {
		r.Fail("extensions", "plpgsql is missing", "CREATE EXTENSION plpgsql")
	}
	return nil
}

// shownPrivileges bounds how many missing privileges a finding names.
const shownPrivileges = 3

// grants is the advice for a role that lacks privileges.
const grants = "as the role that migrates: the GRANTs of the section Privileges in runstore/postgres/README.md"

// checkPrivileges checks that this role may do all that serving needs.
func (e *engine) checkPrivileges(ctx context.Context, conn *pgx.Conn, r *admin.Report) error {
	rows, err := conn.Query(ctx, e.sql(e.inQuotes(sqlAdminPrivileges)), onceOnly(conn))
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case len(missing) == 0:
		r.OK("permissions", "the role may read and write the store")
	default:
		shown := strings.Join(missing[:min(len(missing), shownPrivileges)], "; ")
		r.Fail("permissions", fmt.Sprintf("the role lacks %d privileges, among them: %s", len(missing), shown),
			grants)
	}
	return nil
}

// checkIncarnation compares the server with the one that the epoch belongs to.
func (e *engine) checkIncarnation(ctx context.Context, conn *pgx.Conn, r *admin.Report) {
	var at, known incarnation
	var standby, asynchronous bool
	var isolation string
	var epoch, base int64
	var version int
	err := conn.QueryRow(ctx, e.sql(sqlSessionCheck), onceOnly(conn)).Scan(
		&standby, &at.cluster, &at.timeline, &known.cluster, &known.timeline, &asynchronous, &isolation, &epoch, &base, &version)
	switch {
	case incarnationHidden(err):
		r.Warn("incarnation", "this role may not read the server's identity, so that a promotion raises no epoch",
			"GRANT EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint() TO the role, or raise the epoch by hand after a failover")
	case err != nil:
		r.Fail("incarnation", err.Error(), "see the message")
	case at != known:
		r.KeepClosed("incarnation", fmt.Sprintf("the epoch belongs to cluster %s on timeline %d, and this is %s on %d: the next program that opens the store raises the epoch",
			known.cluster, known.timeline, at.cluster, at.timeline), "expected after a failover or a restore: start the server, or tapestore epoch list; otherwise check the URL")
	default:
		r.OK("incarnation", "cluster %s, timeline %d, as the epoch has it", at.cluster, at.timeline)
	}
}
