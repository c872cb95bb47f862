package floor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// Bigtable is the floor of Bigtable: the same Go client on a table of its own beside the store's.
//
// Commit is one conditional mutation of the run's row. Its predicate compares one cell, the head,
// which holds the token, the grant id and the last seq, with what the holder last wrote there. The
// mutation replaces the head and sets a cell for each event, the id and each record. An unchanged
// head proves that no other writer has changed the row, so the holder knows the row's ids and
// record versions from memory. The ids are a ring of 160 cells, as in the store. An event's time is
// the timestamp that Bigtable gives its cell.
//
// A row cannot grow without bound: after 64 events Commit first copies those in the row into a row
// of their own, in one more request, and deletes them from the run's row with the next conditional
// mutation. Commits of one process on one run take turns, because each needs the head that the
// previous one wrote. Commit writes fewer bytes than the store: the head has no nonces for lost
// replies.
type Bigtable struct {
	admin  *client.AdminClient
	client *client.Client
	name   string
	table  *client.Table
	runs   []bigtableRun
	hold   int
}

type bigtableRun struct {
	mu       sync.Mutex
	commits  string // the key of the row
	inserts  string // prefix of the keys of plain rows
	grant    string
	head     []byte
	last     int64
	unsealed [][]byte // the events in the row
	drop     bool     // the events also have a row of their own, and are to be deleted from this one
	ids      []string // the ring
	named    int      // total number of ids stored so far
	versions map[string]int64
	plain    plain
}

// The column families.
const (
	familyHead    = "h"
	familyEvents  = "e"
	familyBatches = "b"
	familyRecords = "r"
)

const (
	// sealEvery is how many events a row holds: 64, as many as a segment of the store.
	sealEvery = 64
	// ringSize is how many ids a row holds: 160, as in the store.
	ringSize = 160
)

// OpenBigtable creates the table.
func OpenBigtable(ctx context.Context, opts *bigtable.Options) (f *Bigtable, err error) {
	f = &Bigtable{name: opts.Table + "-bench"}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.disconnect())
		}
	}()
	config := client.ClientConfig{AppProfile: opts.AppProfile}
	address := opts.Emulator
	if address == "" {
		address = os.Getenv("BIGTABLE_EMULATOR_HOST")
	}
	if address != "" {
		config.MetricsProvider = client.NoopMetricsProvider{}
		config.DisableDynamicChannelPool, config.DisableConnectionRecycler = true, true
		config.DisableDirectAccess, config.DisableSession = true, true
	}
	// Each client has a connection of its own, and closes it.
	options := func() ([]option.ClientOption, error) {
		var all []option.ClientOption
		if address == "" {
			for _, d := range opts.DialOptions {
				all = append(all, option.WithGRPCDialOption(d))
			}
			return all, nil
		}
		conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
		}, opts.DialOptions...)...)
		return append(all, option.WithGRPCConn(conn)), err
	}
	forAdmin, err := options()
	if err != nil {
		return nil, err
	}
	forData, err := options()
	if err != nil {
		return nil, err
	}
	if f.admin, err = client.NewAdminClient(ctx, opts.Project, opts.Instance, forAdmin...); err != nil {
		return nil, err
	}
	if f.client, err = client.NewClientWithConfig(context.WithoutCancel(ctx), opts.Project, opts.Instance, config, forData...); err != nil {
		return nil, err
	}
	_ = f.admin.DeleteTable(ctx, f.name) // left by a run that was killed
	one := client.MaxVersionsPolicy(1)
	if err := f.admin.CreateTableFromConf(ctx, &client.TableConf{TableID: f.name, Families: map[string]client.GCPolicy{
		familyHead: one, familyEvents: one, familyBatches: one, familyRecords: one,
	}}); err != nil {
		return nil, err
	}
	f.table = f.client.Open(f.name)
	return f, nil
}

// encode returns the head of a run: its token, its last seq, the number of its ids so far, its
// grant id and its owner.
func (r *bigtableRun) encode(token, last int64, named int) []byte {
	head := binary.BigEndian.AppendUint64(nil, uint64(token))
	head = binary.BigEndian.AppendUint64(head, uint64(last))
	head = binary.BigEndian.AppendUint64(head, uint64(named))
	return append(append(head, r.grant...), owner...)
}

// Hold implements bench.Floor.
func (f *Bigtable) Hold(ctx context.Context, n int) error {
	f.hold++
	f.runs = make([]bigtableRun, n)
	for i := range f.runs {
		r := &f.runs[i]
		r.grant = newGrant()
		r.commits = f.prefix("c") + runName(r.grant, i)
		r.inserts = f.prefix("i") + runName(r.grant, i)
		r.head, r.ids, r.versions = r.encode(firstToken, 0, 0), make([]string, ringSize), map[string]int64{}
		m := client.NewMutation()
		m.Set(familyHead, "head", 0, r.head)
		if err := f.table.Apply(ctx, r.commits, m); err != nil {
			return err
		}
	}
	return nil
}

// prefix returns the prefix of the keys that Commit or Insert has written since Hold.
func (f *Bigtable) prefix(of string) string { return fmt.Sprintf("%s/%06d/", of, f.hold) }

// TakeOver implements Floor.
func (f *Bigtable) TakeOver(ctx context.Context, run int) error {
	r := &f.runs[run]
	m := client.NewMutation()
	m.Set(familyHead, "head", 0, r.encode(firstToken+1, r.last, r.named))
	return f.table.Apply(ctx, r.commits, m)
}

var errRepeated = errors.New("floor: the batch id is remembered, or the record is there")

// Commit implements bench.Floor.
func (f *Bigtable) Commit(ctx context.Context, run int, w bench.Write) error {
	r := &f.runs[run]
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := f.seal(ctx, r); err != nil {
		return err
	}
	m := client.NewMutation()
	if r.drop {
		m.DeleteCellsInFamily(familyEvents)
	}
	last, named := r.last, r.named
	events := make([][]byte, w.Events)
	for i := range events {
		last++
		events[i] = eventCell(w.Event(i))
		m.Set(familyEvents, eventColumn(last), client.ServerTime, events[i])
	}
	if w.BatchID != "" {
		for _, id := range r.ids {
			if id == w.BatchID {
				return errRepeated
			}
		}
		m.Set(familyBatches, strconv.Itoa(named%ringSize), 0, append(binary.BigEndian.AppendUint64(nil, uint64(last)), w.BatchID...))
		named++
	}
	for key := range w.Keys() {
		version := r.versions[key]
		if w.New && version != 0 {
			return errRepeated
		}
		value := binary.BigEndian.AppendUint64(nil, uint64(version+1))
		value = binary.BigEndian.AppendUint64(value, uint64(last))
		m.Set(familyRecords, key, 0, append(value, w.Data...))
	}
	head := r.encode(firstToken, last, named)
	m.Set(familyHead, "head", 0, head)
	unchanged := client.ChainFilters(client.ColumnRangeFilter(familyHead, "head", "head\x00"), client.LatestNFilter(1), valueIs(r.head))
	var matched bool
	err := f.table.Apply(ctx, r.commits, client.NewCondMutation(unchanged, m, nil), client.GetCondMutationResult(&matched))
	if err != nil {
		return err
	}
	if !matched {
		return ErrStale
	}
	if r.drop {
		r.unsealed, r.drop = r.unsealed[:0], false
	}
	r.unsealed = append(r.unsealed, events...)
	if w.BatchID != "" {
		r.ids[r.named%ringSize] = w.BatchID
	}
	for key := range w.Keys() {
		r.versions[key]++
	}
	r.head, r.last, r.named = head, last, named
	return nil
}

// valueIs returns a filter for the cells with the given value. It uses a range, which needs no
// regular expression, unlike client.ValueFilter.
func valueIs(value []byte) client.Filter {
	return client.ValueRangeFilter(value, append(value[:len(value):len(value)], 0))
}

// eventColumn returns the column of an event. Columns sort by seq.
func eventColumn(seq int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(seq))) }

// eventCell encodes an event: its token, kind, owner and data.
func eventCell(data []byte) []byte {
	cell := make([]byte, 0, 8+len(kind)+len(owner)+2+len(data))
	cell = binary.BigEndian.AppendUint64(cell, firstToken)
	cell = append(append(cell, kind...), 0)
	cell = append(append(cell, owner...), 0)
	return append(cell, data...)
}

// seal copies the events of a full row into a row of their own. No other writer writes that row,
// and a copy without a following commit has no effect, because readers go by the head.
func (f *Bigtable) seal(ctx context.Context, r *bigtableRun) error {
	if len(r.unsealed) < sealEvery || r.drop {
		return nil
	}
	first := r.last - int64(len(r.unsealed)) + 1
	m := client.NewMutation()
	for i, data := range r.unsealed {
		m.Set(familyEvents, eventColumn(first+int64(i)), client.ServerTime, data)
	}
	if err := f.table.Apply(ctx, fmt.Sprintf("%s/%016x", r.commits, first), m); err != nil {
		return err
	}
	r.drop = true
	return nil
}

// Insert implements bench.Floor: an unconditional mutation of a new row, with a cell for each event,
// the id and each record.
func (f *Bigtable) Insert(ctx context.Context, run int, w bench.Write) error {
	r := &f.runs[run]
	m := client.NewMutation()
	n := 0
	_ = w.EachRow(func(kind bench.RowKind, name string, data []byte) error { // never fails
		if kind == bench.EventRow {
			name, data = strconv.Itoa(n), eventCell(data)
			n++
		}
		m.Set(string(kind), name, client.ServerTime, data)
		return nil
	})
	return f.table.Apply(ctx, fmt.Sprintf("%s/%016x", r.inserts, r.plain.take(1)), m)
}

// Stored implements bench.Floor.
func (f *Bigtable) Stored(ctx context.Context) (committed, inserted int, err error) {
	// The copy in a sealed row and the original in the run's row are one event.
	seen := map[string]bool{}
	if err = f.cells(ctx, f.prefix("c"), familyEvents, func(row string, cell client.ReadItem) {
		run := row[:min(len(row), len(f.prefix("c"))+36)]
		seen[run+cell.Column] = true
	}); err != nil {
		return 0, 0, err
	}
	err = f.cells(ctx, f.prefix("i"), familyEvents, func(string, client.ReadItem) { inserted++ })
	return len(seen), inserted, err
}

// StoredRecords implements bench.RecordCounter.
func (f *Bigtable) StoredRecords(ctx context.Context) (committed, inserted int, err error) {
	if err = f.cells(ctx, f.prefix("c"), familyRecords, func(_ string, cell client.ReadItem) {
		committed += int(binary.BigEndian.Uint64(cell.Value))
	}); err != nil {
		return 0, 0, err
	}
	err = f.cells(ctx, f.prefix("i"), familyRecords, func(string, client.ReadItem) { inserted++ })
	return committed, inserted, err
}

func (f *Bigtable) cells(ctx context.Context, prefix, family string, each func(row string, cell client.ReadItem)) error {
	return f.table.ReadRows(ctx, client.PrefixRange(prefix), func(row client.Row) bool {
		for _, cell := range row[family] {
			each(row.Key(), cell)
		}
		return true
	}, client.RowFilter(client.ChainFilters(client.FamilyFilter(family), client.LatestNFilter(1))))
}

// About implements bench.Floor.
func (f *Bigtable) About(w bench.Write) string {
	text := "CheckAndMutateRow: if the latest h:head equals the head that the holder wrote last (token, last seq, ids, grant, owner), set h:head"
	if w.Events > 0 {
		text += fmt.Sprintf(", %d cells of e", w.Events)
	}
	if w.BatchID != "" {
		text += ", a cell of b"
	}
	if w.Key != "" {
		text += fmt.Sprintf(", %d cells of r", max(1, w.Records))
	}
	return text + fmt.Sprintf("; after every %d events one MutateRow copies them into a row of their own", sealEvery)
}

// Close deletes the table.
func (f *Bigtable) Close() error {
	return errors.Join(f.admin.DeleteTable(context.Background(), f.name), f.disconnect())
}

func (f *Bigtable) disconnect() error {
	var errs []error
	if f.client != nil {
		errs = append(errs, f.client.Close())
	}
	if f.admin != nil {
		errs = append(errs, f.admin.Close())
	}
	return errors.Join(errs...)
}
