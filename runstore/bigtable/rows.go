package bigtable

import (
	"context"
	"errors"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// All filters are ranges, never patterns. Ranges are exact for any bytes, and the server need not
// compile them.

// column selects one column.
func column(family, qualifier string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00")
}

// columns selects a range of columns; an empty end is no bound.
func columns(family, from, to string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, from, to)
}

// wholeFamily selects all columns of a family.
func wholeFamily(family string) bigtable.Filter { return bigtable.ColumnRangeFilter(family, "", "") }

// latest selects the latest version of what any of the filters selects.
func latest(filters ...bigtable.Filter) bigtable.Filter {
	if len(filters) == 1 { // the service refuses an interleave of one
		return bigtable.ChainFilters(filters[0], bigtable.LatestNFilter(1))
	}
	return bigtable.ChainFilters(bigtable.InterleaveFilters(filters...), bigtable.LatestNFilter(1))
}

// cell returns a cell's value, nil if the row does not have it.
func cell(r bigtable.Row, family, qualifier string) []byte {
	for _, item := range r[family] {
		if item.Column[len(family)+1:] == qualifier {
			return item.Value
		}
	}
	return nil
}

// qualifier returns the column of an item without its family.
func qualifier(family string, item bigtable.ReadItem) string { return item.Column[len(family)+1:] }

// The columns of the head's family.
const (
	columnRev  = "rev"  // revision and nonce: what every write's predicate compares
	columnHead = "head" // the head
	columnBeat = "beat" // its timestamp is Bigtable's time of the last grant or renewal

	// columnFormer is a column of familyOther: the grants before the last one (rules.FormerGrants). The
	// head does not hold them, because every write replaces the head. A run that was leased once has no
	// such cell.
	columnFormer = "former"
	// columnTerms and columnEnded are columns of familyOther, too. The first has the terms before that of
	// the last grant (rules.TermList), the second the token of a grant and the time of its end, in
	// microseconds, eight bytes each. Programs that do not know them leave them as they are, so the end
	// counts only for the token that it names.
	columnTerms = "terms"
	columnEnded = "ended"
)

// row is what one read returned of a run's row.
type row struct {
	stored []byte // the revision's cell; nil when there is none
	head   head
	beat   int64 // the timestamp of the last grant or renewal, microseconds
	cells  bigtable.Row
	late   bool // dropLateCells has removed cells
}

// parseRow decodes the head of a row. Its errors name the run, and match ErrCorrupt or
// ErrUnsupported.
func parseRow(r bigtable.Row) (*row, error) {
	p, decoded, beat := &row{cells: r}, false, bigtable.ReadItem{}
	for _, item := range r[familyHead] {
		switch qualifier(familyHead, item) {
		case columnHead:
			h, err := decodeHead(runOf(r.Key()), item.Value)
			if err != nil {
				return nil, ofRun(runOf(r.Key()), err)
			}
			p.head, decoded = h, true
		case columnRev:
			p.stored = item.Value
		case columnBeat:
			beat = item
		}
	}
	if p.stored != nil && (!decoded || len(p.stored) < revisionSize) {
		return nil, ofRun(runOf(r.Key()), errNoHead)
	}
	if p.head.wroteBeat(beat.Value) {
		p.beat = int64(beat.Timestamp)
	}
	p.dropLateCells()
	return p, nil
}

// exists reports whether the run exists and was not purged.
func (r *row) exists() bool { return r.stored != nil && !r.head.Purged }

// readRun reads a run's head and what the further filters select.
func (s *engine) readRun(ctx context.Context, id runstore.RunID, more ...bigtable.Filter) (r *row, err error) {
	filter := latest(append([]bigtable.Filter{wholeFamily(familyHead)}, more...)...)
	err = s.retry(ctx, func(ctx context.Context) error {
		found, err := s.table.ReadRow(ctx, runKey(id), bigtable.RowFilter(filter))
		if err == nil {
			r, err = parseRow(found)
		}
		return err
	})
	return r, err
}

// readRows returns the rows of a set, and counts its requests in the budget of ctx.
func (s *engine) readRows(ctx context.Context, set bigtable.RowSet, opts ...bigtable.ReadOption) (rows []bigtable.Row, err error) {
	err = s.retry(ctx, func(ctx context.Context) error {
		rows = rows[:0]
		budgetOf(ctx).spend()
		return s.table.ReadRows(ctx, set, func(r bigtable.Row) bool {
			rows = append(rows, r)
			return true
		}, opts...)
	})
	return rows, err
}

// maxRowSet bounds the keys of one request, which may have 512 KB:
// https://cloud.google.com/bigtable/docs/reads#large-rows
const maxRowSet = 200 << 10

// batch returns how many of n items one request carries: at most most, and at most so many bytes unless it is one item.
func batch(n, most, bytes int, size func(i int) int) int {
	for i := range min(n, most) {
		if bytes -= size(i); bytes < 0 && i > 0 {
			return i
		}
	}
	return min(n, most)
}

// readList reads rows by their keys, with as few requests as possible, and calls f for each row that exists.
func (s *engine) readList(ctx context.Context, keys []string, filter bigtable.Filter, f func(bigtable.Row) error) error {
	for len(keys) > 0 {
		n := batch(len(keys), len(keys), maxRowSet, func(i int) int { return len(keys[i]) + 8 })
		rows, err := s.readRows(ctx, bigtable.RowList(keys[:n]), bigtable.RowFilter(filter))
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := f(r); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	return nil
}

// maxFilter bounds a filter, which may have 20 KB:
// https://cloud.google.com/bigtable/quotas
const maxFilter = 15 << 10

// filterSize estimates how many bytes the filter of one record takes of a request.
func filterSize(k runstore.RecordKey) int { return 2*len(k) + 24 }

// recordFilters selects records by their keys, or all records if the keys do not fit into a filter.
func recordFilters(keys []runstore.RecordKey) []bigtable.Filter {
	if len(keys) == 0 {
		return nil
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	size := 0
	filters := make([]bigtable.Filter, len(keys))
	for i, k := range keys {
		size += filterSize(k)
		filters[i] = column(familyRecords, string(k))
	}
	if size > maxFilter {
		return []bigtable.Filter{wholeFamily(familyRecords)}
	}
	return filters
}

// mutation is a change of one row.
type mutation struct {
	key string
	m   *bigtable.Mutation
	n   int // about its size in bytes
}

// maxMessage and maxMutations bound the bytes and the rows that one request of writeAll or deleteGarbage carries.
const (
	maxMessage   = 2 << 20
	maxMutations = 10_000
)

// writeAll applies idempotent changes of rows, with as few requests as possible. The changes of one
// request are applied in any order, and each separately.
func (s *engine) writeAll(ctx context.Context, all []mutation) error {
	for len(all) > 0 {
		n := batch(len(all), maxMutations, maxMessage, func(i int) int { return all[i].n })
		if err := s.retry(ctx, func(ctx context.Context) error { return s.applyBulk(ctx, all[:n]) }); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// applyBulk sends one request with changes of rows.
func (s *engine) applyBulk(ctx context.Context, all []mutation) error {
	keys, muts := make([]string, len(all)), make([]*bigtable.Mutation, len(all))
	for i, m := range all {
		keys[i], muts[i] = m.key, m.m
	}
	errs, err := s.table.ApplyBulk(ctx, keys, muts)
	return errors.Join(append(errs, err)...)
}

// ifCell returns the conditional form of a mutation, which is applied if the latest version of one cell is in the
// range [from, to) or, if from is nil, if the row has no such cell. wants is what its predicate reports then. One
// exact match of one cell: the service documents it as atomic with the mutation.
func ifCell(family, qualifier string, from, to []byte, m *bigtable.Mutation) (conditional *bigtable.Mutation, wants bool) {
	if from == nil {
		return bigtable.NewCondMutation(latest(column(family, qualifier)), nil, m), false
	}
	same := bigtable.ChainFilters(column(family, qualifier), bigtable.LatestNFilter(1), bigtable.ValueRangeFilter(from, to))
	return bigtable.NewCondMutation(same, m, nil), true
}

// applyIf applies a mutation of a row under a condition for a cell of familyOther, see ifCell. repeated says that it
// sent more than one copy: then another copy may have been applied, even if applied is false or err is not nil.
func (s *engine) applyIf(ctx context.Context, key, qualifier string, from, to []byte, m *bigtable.Mutation) (applied, repeated bool, err error) {
	conditional, wants := ifCell(familyOther, qualifier, from, to, m)
	sent := 0
	err = s.retry(ctx, func(ctx context.Context) error {
		sent++
		var matched bool
		err := s.table.Apply(ctx, key, conditional, bigtable.GetCondMutationResult(&matched))
		applied = err == nil && matched == wants
		return err
	})
	return applied, sent > 1, err
}

func put(key, column string, value []byte) mutation { return putAt(key, column, 0, value) }

func putAt(key, column string, at bigtable.Timestamp, value []byte) mutation {
	m := bigtable.NewMutation()
	m.Set(familyOther, column, at, value)
	return mutation{key, m, len(key) + len(value) + 64}
}

func remove(key string) mutation {
	m := bigtable.NewMutation()
	m.DeleteRow()
	return mutation{key, m, len(key) + 16}
}

// scanPage is how many keys a scan reads in one request.
const scanPage = 2000

// scanPrefix calls f for the keys of the rows that begin with prefix, page by page.
func (s *engine) scanPrefix(ctx context.Context, prefix string, f func(keys []string) error) error {
	return s.scanRange(ctx, prefix, after(prefix), f)
}

// scanRange calls f for the keys of the rows in a range, page by page.
func (s *engine) scanRange(ctx context.Context, from, to string, f func(keys []string) error) error {
	for {
		keys, err := s.keys(ctx, from, to, scanPage)
		if err == nil && len(keys) > 0 {
			err = f(keys)
		}
		if err != nil || len(keys) < scanPage {
			return err
		}
		from = keys[len(keys)-1] + "\x00"
	}
}

// keys returns the first keys in a range, up to a limit.
func (s *engine) keys(ctx context.Context, from, to string, limit int) (keys []string, err error) {
	filter := bigtable.ChainFilters(bigtable.CellsPerRowLimitFilter(1), bigtable.StripValueFilter())
	rows, err := s.readRows(ctx, bigtable.NewRange(from, to), bigtable.RowFilter(filter), bigtable.LimitRows(int64(limit)))
	for _, r := range rows {
		keys = append(keys, strings.Clone(r.Key()))
	}
	return keys, err
}
