package postgres

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
)

// direct reports whether r is sent as a commit statement. If the fence is of a later epoch than the positions
// that the handle knows, it is not: the server adds the base then, or refuses the fence.
func (r *request) direct() bool {
	return r.write != nil && !r.byFunction && !r.fence.IsZero() && r.fence.Token().Epoch() <= r.epoch
}

// mergeable reports whether r can share a statement with other requests of its run: it is direct,
// and reads and changes no record.
func (r *request) mergeable() bool {
	return r.direct() && len(r.write.keys) == 0 && len(r.write.guards) == 0
}

// direct reports whether there is a dedicated statement for a commit: it appends events under a
// fence, and at most checks versions, puts records and has an id; or it only puts one record.
func (c *write) direct() bool {
	deletes := slices.ContainsFunc(c.values, func(v []byte) bool { return v == nil })
	return !c.fence.IsZero() && c.token == nil && c.seq == nil && c.status == nil && (len(c.payloads) > 0 || c.recordOnly()) && !deletes &&
		c.newStatus == nil && c.runnable.IsZero() && !c.release && !c.purge
}

// recordOnly reports whether a commit has no events and puts one record without index entries.
func (c *write) recordOnly() bool {
	return len(c.payloads) == 0 && len(c.keys) == 1 && len(c.guards) <= 1 && len(c.entryRecord) == 0
}

// storedKey returns the key of the row in batches that a commit leaves, or nil if it leaves none. A
// commit without an event and without an id stores its nonce there.
func (r *request) storedKey() []byte {
	if r.resultKey == nil && r.write.recordOnly() {
		return binary.BigEndian.AppendUint64([]byte{'n'}, uint64(r.nonce))
	}
	return r.resultKey
}

// commitArgs are the arguments of a commit statement, see the comment at the top of statement.go.
type commitArgs struct {
	runs, grants, owners                   [][]byte
	tokens, bases, counts, results         []int64
	eventOf, eventNo                       []int64
	nonces                                 []*int64
	kinds, payloads                        [][]byte
	resultOf, resultNo, first, last, named []int64
	names                                  [][]byte
	guardOf, versions                      []int64
	guards                                 [][]byte
	recordOf                               []int64
	keys, values                           [][]byte
	explained                              []int32
	entryCounts                            []int16
	entryRecord                            []int32
	entryIndexes                           [][]byte
	entryTimes                             []*time.Time
	entryOffsets                           []*int64
}

// add adds the batches of one run. base is the position of transaction 0 for this run.
func (a *commitArgs) add(base int64, group []*request) {
	f := group[0].fence
	run, n, results := int64(len(a.runs)+1), int64(0), int64(0)
	for _, r := range group {
		w := r.write
		if r.resultKey != nil {
			a.resultOf, a.resultNo = append(a.resultOf, run), append(a.resultNo, results)
			a.first, a.last = append(a.first, n+1), append(a.last, n+int64(len(w.payloads)))
			a.named, a.names = append(a.named, r.nonce), append(a.names, r.resultKey)
			results++
		}
		for k := range w.payloads {
			n++
			var nonce *int64
			if k == 0 {
				nonce = &r.nonce
			}
			a.eventOf, a.eventNo, a.nonces = append(a.eventOf, run), append(a.eventNo, n), append(a.nonces, nonce)
		}
		a.kinds, a.payloads = append(a.kinds, w.kinds...), append(a.payloads, w.payloads...)
		for _, g := range w.guards {
			a.guardOf, a.guards, a.versions = append(a.guardOf, run), append(a.guards, []byte(g.Key)), append(a.versions, int64(g.Version))
		}
		before, places := len(a.keys), make([]int16, len(w.keys))
		for i, record := range w.entryRecord {
			places[record-1]++
			a.entryRecord, a.entryIndexes = append(a.entryRecord, int32(before)+record), append(a.entryIndexes, w.entryIndexes[i])
		}
		a.entryTimes, a.entryOffsets = append(a.entryTimes, w.entryTimes...), append(a.entryOffsets, w.entryOffsets...)
		for range w.keys {
			a.recordOf = append(a.recordOf, run)
		}
		a.keys, a.values, a.explained = append(a.keys, w.keys...), append(a.values, w.values...), append(a.explained, w.explained...)
		a.entryCounts = append(a.entryCounts, places...)
	}
	a.runs, a.grants, a.owners = append(a.runs, []byte(f.Run())), append(a.grants, []byte(f.Grant())), append(a.owners, data([]byte(f.Owner())))
	a.tokens, a.bases = append(a.tokens, int64(f.Token())), append(a.bases, base)
	a.counts, a.results = append(a.counts, n), append(a.results, results)
}

// statement returns the statement for the batches that were added and its arguments. f is its form except for what
// the batches need.
func (a *commitArgs) statement(f form) (sql string, args []any) {
	f.ids, f.guards = len(a.names) > 0, len(a.keys) > 0 || len(a.guards) > 0
	f.puts = f.guards
	all := []any{
		a.runs, a.tokens, a.grants, a.owners, a.bases, a.counts, a.results,
		a.eventOf, a.eventNo, a.nonces, a.kinds, a.payloads,
		a.resultOf, a.resultNo, a.first, a.last, a.named, a.names,
		a.guardOf, a.guards, a.versions,
		a.recordOf, a.keys, a.values, a.explained, a.entryCounts,
		a.entryRecord, a.entryIndexes, a.entryTimes, a.entryOffsets,
	}
	if !f.multi {
		copy(all, []any{a.runs[0], a.tokens[0], a.grants[0], a.owners[0], a.bases[0], a.counts[0], a.results[0]})
	}
	s := commitStatements[f]()
	for _, i := range s.args {
		args = append(args, all[i])
	}
	return s.sql, args
}

// oneEventForm returns the form for one event. ok is false if r has more than that form takes.
func (r *request) oneEventForm() (f form, ok bool) {
	w := r.write
	f = form{alone: true, oneEvent: true, noEvent: w.recordOnly(), ids: r.storedKey() != nil, guards: len(w.guards) > 0, puts: len(w.keys) > 0}
	if f.guards && f.puts && w.guards[0].Version == 0 && string(w.guards[0].Key) == string(w.keys[0]) {
		f.inserts, f.guards, f.puts = true, false, false
	}
	return f, len(w.payloads) <= 1 && len(w.guards) <= 1 && len(w.keys) <= 1 && len(w.entryRecord) == 0
}

// scalar returns argument i, counted from 0, of a statement for one event.
func (r *request) scalar(i int, base int64) any {
	w := r.write
	switch i + 1 {
	case 1:
		return []byte(r.run)
	case 2:
		return int64(r.fence.Token())
	case 3:
		return []byte(r.fence.Grant())
	case 4:
		return data([]byte(r.fence.Owner()))
	case 5:
		return base
	case 10:
		return r.nonce
	case 11:
		return w.kinds[0]
	case 12:
		return w.payloads[0]
	case 18:
		return r.storedKey()
	case 20:
		return []byte(w.guards[0].Key)
	case 21:
		return int64(w.guards[0].Version)
	case 23:
		return w.keys[0]
	case 24:
		return w.values[0]
	case 25:
		return w.explained[0]
	case 31:
		return (int64(runstore.MaxPosition) - base) >> 14
	}
	panic("postgres: a statement for one event has no such argument")
}

// commit sets the statement for batches of one run under one fence. base is the position of
// transaction 0.
func (st *statement) commit(base int64) {
	first := st.requests[0]
	st.read, st.base, st.groups = st.readCommitted, &base, [][]*request{st.requests}
	if f, ok := first.oneEventForm(); ok && len(st.requests) == 1 {
		f.timed = first.timed
		s := commitStatements[f]()
		st.sql, st.args = s.sql, make([]any, len(s.args))
		for k, i := range s.args {
			st.args[k] = first.scalar(i, base)
		}
		return
	}
	var args commitArgs
	args.add(base, st.requests)
	st.sql, st.args = args.statement(form{alone: len(st.requests) == 1, timed: first.timed})
}

// readCommitted reads the rows of a commit statement, one for each run whose batches it applied, into the
// requests.
func (st *statement) readCommitted(rows pgx.Rows, _ *writeResult) error {
	st.applied = make([]bool, len(st.groups))
	for rows.Next() {
		var i, last int64
		var now pgtype.Timestamptz
		var versions []runstore.Version
		if err := rows.Scan(&i, &now, &last, &versions); err != nil {
			return err
		}
		group := st.groups[i-1]
		st.applied[i-1] = true
		end := runstore.Seq(last) - runstore.Seq(appendsOf(group))
		for _, r := range group {
			n, puts := runstore.Seq(r.appends()), len(r.write.keys)
			end += n
			r.result = writeResult{status: statusApplied, now: timeOf(now), last: end}
			if n > 0 {
				r.result.first = end - n + 1
			}
			if puts > 0 {
				r.result.versions = versions[:puts:puts]
			}
			versions = versions[puts:]
		}
	}
	return rows.Err()
}

func appendsOf(group []*request) (n int) {
	for _, r := range group {
		n += r.appends()
	}
	return n
}
