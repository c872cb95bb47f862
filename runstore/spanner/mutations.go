package spanner

import (
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// Spanner's limits of one commit:
// https://cloud.google.com/spanner/docs/limits#limits-for. The emulator knows neither.
const (
	maxMutations   = 80_000
	maxCommitBytes = 100_000_000
)

// mutations collects the mutations of one commit and what they count against Spanner's limits.
type mutations struct {
	list []*spanner.Mutation
	// count is an upper bound of Spanner's own count: one for each column of a written row, one for
	// each deleted row, and the affected index entries.
	count int
	bytes int
}

func (m *mutations) insert(table string, columns []column) {
	m.add(spanner.Insert(table, names(columns), values(columns)), columns)
}

func (m *mutations) put(table string, columns []column) {
	m.add(spanner.InsertOrUpdate(table, names(columns), values(columns)), columns)
}

func (m *mutations) remove(table string, key spanner.KeySet) {
	m.add(spanner.Delete(table, key), nil)
	m.count++
	m.bytes += 64
}

func (m *mutations) add(one *spanner.Mutation, columns []column) {
	m.list = append(m.list, one)
	m.count += len(columns)
	for _, c := range columns {
		m.bytes += 16 + sizeOf(c.value)
	}
}

// prepend adds a mutation before all others.
func (m *mutations) prepend(one *spanner.Mutation, columns []column) {
	m.add(one, columns)
	m.list = slices.Insert(m.list[:len(m.list)-1], 0, one)
}

func (m *mutations) join(other mutations) {
	m.list = append(m.list, other.list...)
	m.count += other.count
	m.bytes += other.bytes
}

// checkLimits returns ErrTooLarge for a commit that Spanner would refuse, before it is sent (I12).
func (m *mutations) checkLimits(most int) error {
	switch {
	case m.count > most:
		return tooLarge("batches", "%d mutations, Spanner's limit for one commit is %d", m.count, most)
	case m.bytes > maxCommitBytes:
		return tooLarge("batches", "%d bytes to store, Spanner's limit for one commit is %d", m.bytes, maxCommitBytes)
	}
	return nil
}

func tooLarge(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrTooLarge, Field: field, Problem: fmt.Sprintf(format, args...)}
}

func names(columns []column) []string {
	all := make([]string, len(columns))
	for i, c := range columns {
		all[i] = c.name
	}
	return all
}

func values(columns []column) []any {
	all := make([]any, len(columns))
	for i, c := range columns {
		all[i] = c.value
	}
	return all
}

// sizeOf estimates the bytes of a value in a request.
func sizeOf(value any) int {
	switch v := value.(type) {
	case []byte:
		return len(v) + len(v)/3 // base64 in the request
	case [][]byte:
		n := 0
		for _, b := range v {
			n += 8 + len(b) + len(b)/3
		}
		return n
	case []time.Time:
		return 32 * len(v)
	case []int64:
		return 12 * len(v)
	default:
		return 16
	}
}
