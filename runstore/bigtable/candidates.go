package bigtable

import (
	"context"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// candidates reads a sorted page of entries, true or not: the first between low and high, or the last if
// q.Newest is set. It reads each entries of every shard. If each is 0, it reads as many as the page
// needs, of all shards with one request if that suffices. more reports whether there may be others.
func (s *engine) candidates(ctx context.Context, q runstore.IndexQuery, low, high string, each int) (page []indexEntry, more bool, err error) {
	limit := q.Limit + perShard
	// One request for all shards returns entries in the order of the shards. So it suffices only if
	// it returns all entries.
	rows := ranges(low, high)
	if each == 0 {
		page, err = s.readEntries(ctx, rows, limit, q.Newest)
	}
	horizon := ""
	if err == nil && (each > 0 || len(page) == limit) {
		each = max(each, perShard, 2*limit/shards)
		page, horizon, err = s.eachShard(ctx, rows, each, q.Newest)
	}
	slices.SortFunc(page, func(a, b indexEntry) int {
		if q.Newest {
			a, b = b, a
		}
		return strings.Compare(a.sortKey(), b.sortKey())
	})
	if more = horizon != ""; more {
		page = slices.DeleteFunc(page, func(p indexEntry) bool {
			return q.Newest && p.sortKey() < horizon || !q.Newest && p.sortKey() > horizon
		})
	}
	return page, more, err
}

// ranges returns the rows of all shards above low and below high.
func ranges(low, high string) (all bigtable.RowRangeList) {
	for i := range shards {
		shard := kindIndex + string([]byte{byte(i)})
		all = append(all, bigtable.NewOpenRange(shard+low, shard+high))
	}
	return all
}

// eachShard reads the first entries of every shard. Behind the horizon a shard may have more entries; if
// it is empty, there are none.
func (s *engine) eachShard(ctx context.Context, ranges bigtable.RowRangeList, limit int, newest bool) (page []indexEntry, horizon string, err error) {
	pages, errs := make([][]indexEntry, len(ranges)), make([]error, len(ranges))
	var wg sync.WaitGroup
	for i, r := range ranges {
		wg.Go(func() { pages[i], errs[i] = s.readEntries(ctx, r, limit, newest) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, "", err
		}
		if len(pages[i]) < limit {
			continue
		}
		last := pages[i][limit-1].sortKey()
		if horizon == "" || newest && last > horizon || !newest && last < horizon {
			horizon = last
		}
	}
	return slices.Concat(pages...), horizon, nil
}

// readEntries reads up to limit entries, the last ones first if newest is set. 0 is no limit.
func (s *engine) readEntries(ctx context.Context, rows bigtable.RowSet, limit int, newest bool) (page []indexEntry, err error) {
	options := []bigtable.ReadOption{
		bigtable.RowFilter(bigtable.ChainFilters(wholeFamily(familyOther), bigtable.LatestNFilter(1), bigtable.StripValueFilter())),
	}
	if limit > 0 { // to the client 0 is a limit, too
		options = append(options, bigtable.LimitRows(int64(limit)))
	}
	if newest {
		options = append(options, bigtable.ReverseScan())
	}
	err = s.retry(ctx, func(ctx context.Context) error {
		page = page[:0]
		return s.table.ReadRows(ctx, rows, func(r bigtable.Row) bool {
			if p, ok := parseIndexEntry(r.Key()[2:]); ok {
				page = append(page, p)
			}
			return true
		}, options...)
	})
	return page, err
}
