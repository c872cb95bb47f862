package floor

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strings"

	client "cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// Spanner is the floor of Spanner: the same Go client on tables of its own in the store's database,
// whose names begin with Bench.
//
// Commit is one read-write transaction, serializable and with pessimistic locks as the store's. It
// reads the run's row by its key, checks token and grant id, and buffers mutations for the last
// seq, the events, the id and the records. Insert mutations fail if the id or a new record exists.
// Where a record is overwritten, one query reads the versions together with the run's row. Times
// are Spanner's commit timestamps. A commit takes two round trips, and more where Spanner aborts
// the transaction, because the client then repeats it.
type Spanner struct {
	client   *client.Client
	admin    *database.DatabaseAdminClient
	database string
	runs     []spannerRun
	next     uint64 // the number of the next run to create
}

type spannerRun struct {
	key   int64 // the number with its bits reversed, which spreads the runs
	grant string
	plain plain
}

var spannerTables = []string{
	`BenchRuns (Run INT64 NOT NULL, Token INT64 NOT NULL, GrantId STRING(64) NOT NULL, LastSeq INT64 NOT NULL) PRIMARY KEY (Run)`,
	`BenchEvents (Run INT64 NOT NULL, Seq INT64 NOT NULL, Time TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true), Token INT64 NOT NULL,
		Kind STRING(128) NOT NULL, Owner STRING(256) NOT NULL, Data BYTES(MAX) NOT NULL) PRIMARY KEY (Run, Seq)`,
	`BenchBatches (Run INT64 NOT NULL, Id STRING(64) NOT NULL, Seq INT64 NOT NULL, Time TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true)) PRIMARY KEY (Run, Id)`,
	`BenchRecords (Run INT64 NOT NULL, RecordKey STRING(1024) NOT NULL, Version INT64 NOT NULL, Seq INT64 NOT NULL,
		Time TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true), Value BYTES(MAX) NOT NULL) PRIMARY KEY (Run, RecordKey)`,
	`BenchPlain (Run INT64 NOT NULL, N INT64 NOT NULL, Time TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
		Kind STRING(1) NOT NULL, Name STRING(1024) NOT NULL, Data BYTES(MAX) NOT NULL) PRIMARY KEY (Run, N)`,
}

// OpenSpanner creates the tables.
func OpenSpanner(ctx context.Context, opts *spanner.Options) (f *Spanner, err error) {
	f = &Spanner{database: fmt.Sprintf("projects/%s/instances/%s/databases/%s", opts.Project, opts.Instance, opts.Database)}
	config := client.ClientConfig{DatabaseRole: opts.Role, UserAgent: "tapestore-bench"}
	local := opts.Emulator + opts.Omni
	if local == "" {
		local = os.Getenv("SPANNER_EMULATOR_HOST")
	}
	var options []option.ClientOption
	if local != "" {
		config.DisableNativeMetrics = true
		options = append(options, option.WithEndpoint("passthrough:///"+local), option.WithoutAuthentication(), option.WithGRPCConnectionPool(1),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	if opts.Omni != "" {
		config.Type, config.UsePlainText = client.OMNI, true
	}
	for _, d := range opts.DialOptions {
		options = append(options, option.WithGRPCDialOption(d))
	}
	if f.admin, err = database.NewDatabaseAdminClient(ctx, options...); err != nil {
		return nil, err
	}
	statements := f.drops()
	for _, table := range spannerTables {
		statements = append(statements, "CREATE TABLE "+table)
	}
	if err := f.ddl(ctx, statements); err != nil {
		return nil, errors.Join(err, f.admin.Close())
	}
	if f.client, err = client.NewClientWithConfig(context.WithoutCancel(ctx), f.database, config, options...); err != nil {
		return nil, errors.Join(err, f.admin.Close())
	}
	return f, nil
}

func (f *Spanner) drops() (statements []string) {
	for _, table := range spannerTables {
		name, _, _ := strings.Cut(table, " ")
		statements = append(statements, "DROP TABLE IF EXISTS "+name)
	}
	return statements
}

func (f *Spanner) ddl(ctx context.Context, statements []string) error {
	change, err := f.admin.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{Database: f.database, Statements: statements})
	if err != nil {
		return err
	}
	return change.Wait(ctx)
}

// Hold implements bench.Floor.
func (f *Spanner) Hold(ctx context.Context, n int) error {
	f.runs = make([]spannerRun, n)
	var list []*client.Mutation
	for i := range f.runs {
		f.next++
		r := &f.runs[i]
		r.key, r.grant = int64(bits.Reverse64(f.next)), newGrant()
		list = append(list, client.Insert("BenchRuns", []string{"Run", "Token", "GrantId", "LastSeq"}, []any{r.key, int64(firstToken), r.grant, int64(0)}))
	}
	_, err := f.client.Apply(ctx, list)
	return err
}

// TakeOver implements Floor.
func (f *Spanner) TakeOver(ctx context.Context, run int) error {
	_, err := f.client.Apply(ctx, []*client.Mutation{
		client.Update("BenchRuns", []string{"Run", "Token", "GrantId"}, []any{f.runs[run].key, int64(firstToken + 1), newGrant()}),
	})
	return err
}

// spannerVersions reads the run's row with the versions of records.
const spannerVersions = `SELECT r.Token, r.GrantId, r.LastSeq,
	ARRAY(SELECT COALESCE(x.Version, 0) FROM UNNEST(@keys) AS k WITH OFFSET AS i
		LEFT JOIN BenchRecords AS x ON x.Run = @run AND x.RecordKey = k ORDER BY i) AS Versions
FROM BenchRuns AS r WHERE r.Run = @run`

// spannerHead is what a commit reads.
type spannerHead struct {
	Token    int64
	GrantID  string `spanner:"GrantId"`
	LastSeq  int64
	Versions []int64
}

// Commit implements bench.Floor.
func (f *Spanner) Commit(ctx context.Context, run int, w bench.Write) error {
	r := &f.runs[run]
	_, err := f.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *client.ReadWriteTransaction) error {
		head, err := r.read(ctx, tx, w)
		if err != nil {
			return err
		}
		if head.Token != firstToken || head.GrantID != r.grant {
			return ErrStale
		}
		return tx.BufferWrite(r.mutations(head, w))
	}, client.TransactionOptions{
		IsolationLevel: spannerpb.TransactionOptions_SERIALIZABLE, ReadLockMode: spannerpb.TransactionOptions_ReadWrite_PESSIMISTIC,
	})
	if client.ErrCode(err) == codes.Unknown && errors.Is(err, ErrStale) {
		return ErrStale
	}
	return err
}

// read reads the run's head, and the versions of the records if the write overwrites records.
func (r *spannerRun) read(ctx context.Context, tx *client.ReadWriteTransaction, w bench.Write) (head spannerHead, err error) {
	if w.Key == "" || w.New {
		row, err := tx.ReadRow(ctx, "BenchRuns", client.Key{r.key}, []string{"Token", "GrantId", "LastSeq"})
		if err == nil {
			err = row.Columns(&head.Token, &head.GrantID, &head.LastSeq)
		}
		return head, err
	}
	var names []string
	for key := range w.Keys() {
		names = append(names, key)
	}
	err = tx.Query(ctx, client.Statement{SQL: spannerVersions, Params: map[string]any{"run": r.key, "keys": names}}).Do(func(row *client.Row) error {
		return row.ToStruct(&head)
	})
	return head, err
}

// mutations returns the mutations of a write, given what the transaction read.
func (r *spannerRun) mutations(head spannerHead, w bench.Write) (list []*client.Mutation) {
	seq := head.LastSeq
	for i := range w.Events {
		seq++
		list = append(list, client.Insert("BenchEvents", []string{"Run", "Seq", "Time", "Token", "Kind", "Owner", "Data"},
			[]any{r.key, seq, client.CommitTimestamp, int64(firstToken), kind, owner, w.Event(i)}))
	}
	if w.Events > 0 {
		list = append(list, client.Update("BenchRuns", []string{"Run", "LastSeq"}, []any{r.key, seq}))
	}
	if w.BatchID != "" {
		list = append(list, client.Insert("BenchBatches", []string{"Run", "Id", "Seq", "Time"}, []any{r.key, w.BatchID, seq, client.CommitTimestamp}))
	}
	i := 0
	for key := range w.Keys() {
		version := int64(1)
		write := client.Insert
		if !w.New {
			version, write = head.Versions[i]+1, client.InsertOrUpdate
		}
		list = append(list, write("BenchRecords", []string{"Run", "RecordKey", "Version", "Seq", "Time", "Value"},
			[]any{r.key, key, version, seq, client.CommitTimestamp, w.Data}))
		i++
	}
	return list
}

// Insert implements bench.Floor: a blind write by Apply, with one mutation per row, in one round
// trip. A repeat after a lost reply writes the same rows again.
func (f *Spanner) Insert(ctx context.Context, run int, w bench.Write) error {
	r := &f.runs[run]
	at := r.plain.take(w.Rows())
	var list []*client.Mutation
	_ = w.EachRow(func(kind bench.RowKind, name string, data []byte) error { // never fails
		list = append(list, client.InsertOrUpdate("BenchPlain", []string{"Run", "N", "Time", "Kind", "Name", "Data"},
			[]any{r.key, at, client.CommitTimestamp, string(kind), name, data}))
		at++
		return nil
	})
	_, err := f.client.Apply(ctx, list, client.ApplyAtLeastOnce())
	return err
}

// Stored implements bench.Floor.
func (f *Spanner) Stored(ctx context.Context) (committed, inserted int, err error) {
	return f.count(ctx, `SELECT (SELECT COUNT(*) FROM BenchEvents WHERE Run IN UNNEST(@runs)),
		(SELECT COUNT(*) FROM BenchPlain WHERE Kind = 'e' AND Run IN UNNEST(@runs))`)
}

// StoredRecords implements bench.RecordCounter.
func (f *Spanner) StoredRecords(ctx context.Context) (committed, inserted int, err error) {
	return f.count(ctx, `SELECT (SELECT COALESCE(SUM(Version), 0) FROM BenchRecords WHERE Run IN UNNEST(@runs)),
		(SELECT COUNT(*) FROM BenchPlain WHERE Kind = 'r' AND Run IN UNNEST(@runs))`)
}

func (f *Spanner) count(ctx context.Context, sql string) (committed, inserted int, err error) {
	all := make([]int64, len(f.runs))
	for i := range f.runs {
		all[i] = f.runs[i].key
	}
	err = f.client.Single().Query(ctx, client.Statement{SQL: sql, Params: map[string]any{"runs": all}}).Do(func(row *client.Row) error {
		var c, i int64
		err := row.Columns(&c, &i)
		committed, inserted = int(c), int(i)
		return err
	})
	return committed, inserted, err
}

// About implements bench.Floor.
func (f *Spanner) About(w bench.Write) string {
	read := "ReadRow of BenchRuns: Token, GrantId, LastSeq"
	if w.Key != "" && !w.New {
		read = spannerVersions
	}
	var tables []string
	for _, m := range []struct {
		there bool
		text  string
	}{
		{w.Events > 0, fmt.Sprintf("%d inserts into BenchEvents and an update of BenchRuns", w.Events)},
		{w.BatchID != "", "an insert into BenchBatches"},
		{w.Key != "", "writes of BenchRecords"},
	} {
		if m.there {
			tables = append(tables, m.text)
		}
	}
	return "In one read-write transaction: " + read + "; then as mutations " + strings.Join(tables, ", ")
}

// Close drops the tables.
func (f *Spanner) Close() error {
	f.client.Close()
	return errors.Join(f.ddl(context.Background(), f.drops()), f.admin.Close())
}
