package postgres

import (
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

type operation int16

const (
	opCommit operation = iota
	opCreate
	opAcquire
	opRelease
	opRenew
)

// write holds the arguments of tapestore.write in the database's types. nil means NULL.
type write struct {
	op operation

	fence  runstore.Fence
	token  *int64 // the token of the run's last grant, as a guard
	seq    *int64
	status []int32
	guards []runstore.VersionGuard

	lease   *runstore.LeaseSpec
	preempt string
	renewal time.Duration // the TTL of a renewal

	kinds, payloads, keys, values [][]byte
	explained                     []int32 // for each record, the number of the event that explains its change

	entryRecord  []int32 // for each index entry, the number of its record, from 1
	entryIndexes [][]byte
	entryTimes   []*time.Time
	entryOffsets []*int64

	newStatus      *runstore.Status
	runnable       runstore.When
	release, purge bool
	unlisted       bool
	sharedTime     bool // all writes of the transaction have one commit time
}

// newWrite translates the writes of an operation.
func newWrite(op operation, w runstore.Writes) *write {
	c := &write{op: op, newStatus: w.Status, runnable: w.Runnable, release: w.Release, purge: w.Purge}
	for _, e := range w.Events {
		c.kinds, c.payloads = append(c.kinds, []byte(e.Kind)), append(c.payloads, data(e.Data))
	}
	for i, r := range w.Records {
		value := data(r.Value)
		if r.Delete {
			value = nil
		}
		c.keys, c.values, c.explained = append(c.keys, []byte(r.Key)), append(c.values, value), append(c.explained, int32(r.Event))
		for _, p := range r.Index {
			at, after := timeArgs(p.At)
			c.entryRecord, c.entryIndexes = append(c.entryRecord, int32(i+1)), append(c.entryIndexes, []byte(p.Index))
			c.entryTimes, c.entryOffsets = append(c.entryTimes, at), append(c.entryOffsets, after)
		}
	}
	return c
}

// guard sets the guards of the write.
func (c *write) guard(g runstore.Guards) {
	c.fence, c.guards = g.Fence, g.Versions
	if g.Token != nil {
		token := int64(*g.Token)
		c.token = &token
	}
	if g.NextSeq != 0 {
		seq := int64(g.NextSeq)
		c.seq = &seq
	}
	for _, s := range g.Statuses {
		c.status = append(c.status, int32(s))
	}
}

// writeArgs returns the arguments of sql/write.sql. lowest is the first position of this run within the
// slot of the transaction (feed.go).
func (r *request) writeArgs(lowest int64) []any {
	c := r.write
	var (
		token, ttl, runnableAfter          *int64
		grant, owner                       []byte
		leaseOwner, leaseReactor, newGrant []byte
		preempt                            []byte
		strict                             bool
		stall                              int64
		wantKeys                           [][]byte
		wantVersions                       []int64
		runnableAt                         *time.Time
		status                             *int32
	)
	if !c.fence.IsZero() {
		t := int64(c.fence.Token())
		token, grant, owner = &t, []byte(c.fence.Grant()), []byte(c.fence.Owner())
	}
	for _, g := range c.guards {
		wantKeys, wantVersions = append(wantKeys, []byte(g.Key)), append(wantVersions, int64(g.Version))
	}
	if l := c.lease; l != nil {
		us := l.TTL.Microseconds()
		ttl, strict, stall, newGrant = &us, l.Strict, l.MaxStall.Microseconds(), []byte(l.Grant)
		leaseOwner, leaseReactor = data([]byte(l.Owner)), data([]byte(l.Reactor))
	}
	if c.op == opRenew {
		us := c.renewal.Microseconds()
		ttl = &us
	}
	if c.preempt != "" {
		preempt = []byte(c.preempt)
	}
	if c.newStatus != nil {
		s := int32(*c.newStatus)
		status = &s
	}
	if !c.runnable.IsZero() {
		runnableAt, runnableAfter = timeArgs(c.runnable)
	}
	return []any{
		int16(c.op), []byte(r.run), r.nonce, r.resultKey,
		token, grant, owner, c.token, c.seq, c.status, wantKeys, wantVersions,
		leaseOwner, leaseReactor, ttl, strict, stall, newGrant, preempt,
		lowest, c.kinds, c.payloads, c.keys, c.values, c.explained,
		c.entryRecord, c.entryIndexes, c.entryTimes, c.entryOffsets,
		status, !c.runnable.IsZero(), runnableAt, runnableAfter, c.release, c.purge, c.unlisted, c.sharedTime,
	}
}

// timeArgs returns a time either as an absolute one or as microseconds after the commit. Both are
// nil for Never.
func timeArgs(w runstore.When) (at *time.Time, after *int64) {
	if d, relative := w.Offset(); relative {
		us := d.Microseconds()
		return nil, &us
	}
	if t := w.Resolve(time.Time{}); !t.IsZero() {
		return &t, nil
	}
	return nil, nil
}

// data returns b, or an empty slice for nil, which would be NULL.
func data(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// explain returns the error for the guard that refused a write, computed from the run as the
// refusal returned it.
func (a *writeResult) explain(g runstore.Guards) error {
	if a.status == statusNoSuchRun {
		return runstore.ErrNotFound
	}
	versions := a.versions
	err := a.head.Guards(g, a.now, func(key runstore.RecordKey) (runstore.Version, error) {
		if len(versions) == 0 {
			return 0, errDisagree
		}
		v := versions[0]
		versions = versions[1:]
		return v, nil
	})
	if err == nil { // the refusal's cause is gone, such as a strict lease that was being renewed
		err = outcome.Unavailable(errDisagree)
	}
	return err
}
