package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
)

// A handle whose schema a newer program migrates applies no write that the schema no longer
// has, and reports why, whether its statements were prepared before or not.
func TestMigratedByANewerProgram(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"pooled=no", "pooled=yes", "default_query_exec_mode=simple_protocol"} {
		for _, prepared := range []bool{false, true} {
			name := mode
			if prepared {
				name += ", after writes"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				address := database(t)
				s := open(t, with(address, mode, "pool_max_conns=1"))
				lease := hold(t, open(t, address), "run")
				other := hold(t, open(t, address), "other")
				record := appending(lease, "event")
				record.Put("record", []byte("value"))
				record.Put("another", nil)
				record.Delete("absent")
				both := []runstore.Batch{record, appending(other, "event")}
				if prepared {
					commit(t, s, record)
					if _, err := s.CommitMulti(t.Context(), both); err != nil {
						t.Fatal(err)
					}
				}
				conn := connect(t, address)
				exec(t, conn, `ALTER FUNCTION tapestore.write RENAME TO write_of_a_newer_program`)
				refused := func(kind error, says string) {
					t.Helper()
					before := stored(t, conn)
					for what, write := range map[string]func() error{
						"commit": func() error { _, err := s.Commit(t.Context(), record); return err },
						"commit of several runs": func() error {
							_, err := s.CommitMulti(t.Context(), both)
							return err
						},
						"acquire": func() error {
							_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
								Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}, Preempt: "test",
							})
							return err
						},
						"release": func() error {
							_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
							return err
						},
					} {
						err := write()
						var server *pgconn.PgError
						if !errors.Is(err, kind) || !strings.Contains(err.Error(), says) || !errors.As(err, &server) || server.Code != "42883" {
							t.Errorf("%s: got error %v, want %v that says %q, of SQLSTATE 42883", what, err, kind, says)
						}
					}
					if after := stored(t, conn); after != before {
						t.Errorf("the store was\n%s\nand is\n%s", before, after)
					}
				}
				// The function is missing for another reason.
				refused(runstore.ErrUnavailable, "does not exist")
				exec(t, conn, `INSERT INTO tapestore.migrations (version) VALUES (99)`)
				refused(runstore.ErrUnsupported, `"tapestore" is at version 99, which is newer than this program's`)
			})
		}
	}
}

// The call of the former program, prepared before the migration, is refused after it.
func TestFormerWriteIsRefused(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	former, conn := connect(t, address), formerSchema(t, address)
	const call = `SELECT verdict FROM tapestore.write(0::smallint, $1::bytea, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
		NULL, NULL, NULL, NULL, NULL, NULL, 0, $2::bytea[], $3::bytea[], NULL, NULL, NULL, NULL, NULL, NULL, NULL,
		NULL, false, NULL, NULL, false, false, false)`
	if _, err := former.Prepare(t.Context(), "call", call); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, status, grant_state, purged,
			is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
		VALUES (0, 0, 0, 0, clock_timestamp(), 0, 0, false, false, 'run', '', '', '', '', '')`)
	args := []any{[]byte("run"), [][]byte{[]byte("test")}, [][]byte{[]byte("former")}}
	if verdict := get[int](t, former, "call", args...); verdict != 1 {
		t.Fatalf("before the migration: got verdict %d, want 1", verdict)
	}
	s := open(t, address)
	for what, sql := range map[string]string{"prepared": "call", "new": call} {
		_, err := former.Exec(t.Context(), sql, args...)
		var server *pgconn.PgError
		if !errors.As(err, &server) || server.Code != "42883" {
			t.Errorf("a call that is %s: got error %v, want undefined_function", what, err)
		}
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 1 {
		t.Errorf("got events %+v, %v, want the one of before the migration", events, err)
	}
}
