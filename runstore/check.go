package runstore

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// The Check methods refuse malformed and oversized input with an [InputError]. Every adapter calls
// them before it asks its engine, so the limits and their messages are the same everywhere.

// CheckRunID checks a run id.
func CheckRunID(id RunID) error { return checkName("run id", string(id), MaxRunID) }

// Check checks a batch.
func (b Batch) Check() error {
	if err := firstOf(CheckRunID(b.run), checkOptional("batch id", string(b.ID), MaxGrantID)); err != nil {
		return err
	}
	if err := b.guards.check(); err != nil {
		return err
	}
	if b.guards.empty() && b.guards.Unguarded == "" {
		return invalid("guards", "a batch needs at least one guard, or Unguarded with a reason")
	}
	if f := b.guards.Fence; !f.IsZero() {
		if err := f.checkFor(b.run); err != nil {
			return err
		}
	}
	return b.Writes.check()
}

// Check checks a run's specification.
func (s RunSpec) Check() error {
	if err := CheckRunID(s.ID); err != nil {
		return err
	}
	if err := s.Runnable.check("runnable"); err != nil {
		return err
	}
	if s.Lease != nil {
		if err := s.Lease.check(); err != nil {
			return err
		}
	}
	if w := s.Writes; w.Status != nil || !w.Runnable.IsZero() || w.Release || w.Purge {
		return invalid("writes", "the writes of a creation are events and records only; status and runnable are fields of the spec")
	}
	return s.Writes.check()
}

// Check checks a request for a lease.
func (r AcquireRequest) Check() error {
	if err := CheckRunID(r.Run); err != nil {
		return err
	}
	if err := r.LeaseSpec.check(); err != nil {
		return err
	}
	if err := checkOptional("preempt", r.Preempt, MaxOwner); err != nil {
		return err
	}
	g := GuardsOf(r.Guards...)
	if g.Unguarded != "" {
		return invalid("guards", "an acquire request cannot be Unguarded")
	}
	if f := g.Fence; !f.IsZero() {
		if err := f.checkFor(r.Run); err != nil {
			return err
		}
		if r.Preempt != "" {
			return invalid("preempt", "allows no fence, which is the holder's consent")
		}
	}
	if r.Writes.Release || r.Writes.Purge {
		return invalid("writes", "an acquire request cannot release or purge")
	}
	return firstOf(g.check(), r.Writes.check())
}

// Check checks a renewal.
func (r RenewRequest) Check() error {
	if err := firstOf(r.Fence.check(), checkTTL(r.TTL), checkOptional("batch id", string(r.ID), MaxGrantID)); err != nil {
		return err
	}
	if r.Writes.IsZero() {
		if r.ID != "" {
			return invalid("batch id", "requires writes: a renewal without writes can be repeated as it is")
		}
		return nil
	}
	if r.Writes.Release || r.Writes.Purge {
		return invalid("writes", "a renewal cannot release or purge")
	}
	return r.Writes.check()
}

// Check checks a release.
func (r ReleaseRequest) Check() error {
	if err := r.Fence.check(); err != nil {
		return err
	}
	g := GuardsOf(r.Guards...)
	if !g.Fence.IsZero() || g.Unguarded != "" {
		return invalid("guards", "a release takes guards besides its fence, but no other fence and no Unguarded")
	}
	if r.Writes.Purge {
		return invalid("writes", "a release cannot purge")
	}
	return firstOf(g.check(), r.Writes.check())
}

// CheckRead checks the bounds of a page of a journal.
func CheckRead(id RunID, from Seq, limit int) error {
	if err := CheckRunID(id); err != nil {
		return err
	}
	if from < 0 {
		return invalid("from", "%d is negative", from)
	}
	return checkLimit(limit)
}

// CheckScan checks the bounds of a page of [Mover.ScanRuns].
func CheckScan(after RunID, limit int) error {
	return firstOf(checkOptional("after", string(after), MaxRunID), checkLimit(limit))
}

// Check checks a query for a page of the feed.
func (q FeedQuery) Check() error {
	switch {
	case q.After < 0:
		return invalid("after", "%d is negative", q.After)
	case q.After > MaxPosition:
		return invalid("after", "%d is above every position, the limit is %d; a reader whose position is older than that limit must read the feed again from the start", q.After, MaxPosition)
	case q.Newest && q.After != 0:
		return invalid("after", "%d: the newest events cannot be read after a position", q.After)
	}
	return checkLimit(q.Limit)
}

// Check checks a query for records.
func (q RecordQuery) Check(id RunID) error {
	if err := CheckRunID(id); err != nil {
		return err
	}
	if len(q.Keys) == 0 {
		return firstOf(checkOptional("prefix", string(q.Prefix), MaxRecordKey),
			checkOptional("after", string(q.After), MaxRecordKey), checkLimit(q.Limit))
	}
	if q.Prefix != "" || q.After != "" || q.Limit != 0 {
		return invalid("keys", "exact keys cannot be combined with a prefix, after or limit")
	}
	if len(q.Keys) > MaxRecordKeys {
		return tooLarge("keys", "%d keys, the limit is %d", len(q.Keys), MaxRecordKeys)
	}
	for i, k := range q.Keys {
		if err := checkName(fmt.Sprintf("keys[%d]", i), string(k), MaxRecordKey); err != nil {
			return err
		}
	}
	return nil
}

// Check checks a scan.
func (q IndexQuery) Check() error {
	if err := checkName("index", string(q.Index), MaxIndexName); err != nil {
		return err
	}
	if !q.Until.IsZero() {
		if err := At(q.Until).check("until"); err != nil {
			return err
		}
	}
	if !q.From.IsZero() {
		if err := At(q.From).check("from"); err != nil {
			return err
		}
	}
	return checkLimit(q.Limit)
}

func (f Fence) check() error {
	if f.IsZero() {
		return invalid("fence", "is missing; take it from a lease")
	}
	if f.token <= 0 {
		return invalid("fence", "token %d is not positive", f.token)
	}
	return firstOf(CheckRunID(f.run), checkName("fence owner", string(f.owner), MaxOwner),
		checkName("fence grant", string(f.grant), MaxGrantID))
}

// checkFor checks a fence that guards a request for run.
func (f Fence) checkFor(run RunID) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.run != run {
		return invalid("fence", "is for another run")
	}
	return nil
}

func (l LeaseSpec) check() error {
	return firstOf(checkName("owner", string(l.Owner), MaxOwner),
		checkOptional("reactor", string(l.Reactor), MaxOwner),
		checkOptional("grant", string(l.Grant), MaxGrantID), checkTTL(l.TTL), checkStall(l.MaxStall))
}

func checkStall(d time.Duration) error {
	if d != 0 && (d < MinTTL || d > MaxMaxStall) {
		return invalid("max stall", "%v is out of range, the limits are %v and %v, or 0 for none", d, MinTTL, MaxMaxStall)
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return invalid("ttl", "%v is out of range, the limits are %v and %v", ttl, MinTTL, MaxTTL)
	}
	return nil
}

func (g Guards) empty() bool {
	return g.Fence.IsZero() && g.Token == nil && len(g.Versions) == 0 && g.NextSeq == 0 && len(g.Statuses) == 0
}

func (g Guards) check() error {
	if g.Unguarded != "" && !g.empty() {
		return invalid("guards", "Unguarded cannot be combined with a guard")
	}
	if g.twice != "" {
		return invalid("guards: "+g.twice, "is guarded twice, by guards that differ")
	}
	if err := checkOptional("unguarded", g.Unguarded, MaxOwner); err != nil {
		return err
	}
	if n := len(g.Versions) + len(g.Statuses); n > MaxGuards {
		return tooLarge("guards", "%d guards, the limit is %d", n, MaxGuards)
	}
	if g.Token != nil && *g.Token < 0 {
		return invalid("guards: token", "%d is negative", int64(*g.Token))
	}
	if g.NextSeq < 0 {
		return invalid("guards: seq", "%d is negative", g.NextSeq)
	}
	if len(g.Versions) == 0 {
		return nil
	}
	seen := make(map[RecordKey]bool, len(g.Versions))
	for i, v := range g.Versions {
		field := fmt.Sprintf("guards: versions[%d]", i)
		if err := checkName(field, string(v.Key), MaxRecordKey); err != nil {
			return err
		}
		if v.Version < 0 {
			return invalid(field, "version %d is negative", v.Version)
		}
		if seen[v.Key] {
			return invalid(field, "key %q is guarded twice", clip(string(v.Key)))
		}
		seen[v.Key] = true
	}
	return nil
}

func (w Writes) check() error {
	if w.history != nil {
		return invalid("writes", "are those of an Import, which no other request carries")
	}
	if w.Purge && (len(w.Events) > 0 || len(w.Records) > 0 || w.Status != nil || !w.Runnable.IsZero()) {
		return invalid("purge", "allows no other write")
	}
	if err := w.Runnable.check("runnable"); err != nil {
		return err
	}
	size := 0
	if len(w.Events) > MaxEvents {
		return tooLarge("events", "%d events, the limit is %d", len(w.Events), MaxEvents)
	}
	for i, e := range w.Events {
		if e.Kind == "" || len(e.Kind) > MaxKind { // the field's name is built only for an error
			return checkName(fmt.Sprintf("events[%d].kind", i), e.Kind, MaxKind)
		}
		if len(e.Data) > MaxEventData {
			return tooLarge(fmt.Sprintf("events[%d].data", i), "%d bytes, the limit is %d", len(e.Data), MaxEventData)
		}
		size += len(e.Kind) + len(e.Data)
	}
	n, err := w.checkRecords()
	if err != nil {
		return err
	}
	if size += n; size > MaxBatchBytes {
		return tooLarge("batch", "%d bytes, the limit is %d", size, MaxBatchBytes)
	}
	return nil
}

func (w Writes) checkRecords() (size int, err error) {
	if len(w.Records) > MaxRecordWrites {
		return 0, tooLarge("records", "%d records, the limit is %d", len(w.Records), MaxRecordWrites)
	}
	if len(w.Records) == 0 {
		return 0, nil
	}
	seen := make(map[RecordKey]bool, len(w.Records))
	for i, r := range w.Records {
		field := fmt.Sprintf("records[%d]", i)
		if err := checkName(field+".key", string(r.Key), MaxRecordKey); err != nil {
			return 0, err
		}
		switch {
		case seen[r.Key]:
			return 0, invalid(field+".key", "%q is written twice", clip(string(r.Key)))
		case len(r.Value) > MaxRecordValue:
			return 0, tooLarge(field+".value", "%d bytes, the limit is %d", len(r.Value), MaxRecordValue)
		case r.Delete && (len(r.Value) > 0 || len(r.Index) > 0 || len(r.Reserve) > 0):
			return 0, invalid(field, "a deleted record takes no value, no index and no reserve")
		case r.Event < 0 || r.Event > 0 && r.Event >= len(w.Events):
			return 0, invalid(field+".event", "%d is not the index of an event of the batch", r.Event)
		case len(r.Index) > MaxPlaces:
			return 0, tooLarge(field+".index", "%d places, the limit is %d", len(r.Index), MaxPlaces)
		}
		seen[r.Key] = true
		if err := checkPlaces(field, r.Index); err != nil {
			return 0, err
		}
		if err := checkReserve(field+".reserve", r.Reserve); err != nil {
			return 0, err
		}
		size += len(r.Key) + len(r.Value)
	}
	return size, nil
}

// checkReserve checks the records of [RecordWrite.Reserve], which a later batch will put.
func checkReserve(field string, later []RecordWrite) error {
	w := Writes{Records: slices.Clone(later)}
	for i := range w.Records {
		w.Records[i].Event = 0 // refers to an event of the later batch, which is not known here
	}
	_, err := w.checkRecords()
	var limit *InputError
	if errors.As(err, &limit) {
		limit.Field = field + "." + limit.Field
	}
	return err
}

func checkPlaces(field string, places []Place) error {
	for j, p := range places {
		field := fmt.Sprintf("%s.index[%d]", field, j)
		if err := checkName(field, string(p.Index), MaxIndexName); err != nil {
			return err
		}
		if p.Index == IndexRuns || p.Index == IndexRunnable {
			return invalid(field, "%q is kept by the store", p.Index)
		}
		for _, q := range places[:j] {
			if q.Index == p.Index {
				return invalid(field, "%q is named twice", clip(string(p.Index)))
			}
		}
		if p.At.IsZero() || p.At.kind == whenNever {
			return invalid(field+".at", "is missing")
		}
		if err := p.At.check(field + ".at"); err != nil {
			return err
		}
	}
	return nil
}

func (w When) check(field string) error {
	if w.kind == whenAt && (!w.at.After(time.Unix(0, 0)) || w.at.After(EndOfTime)) {
		return invalid(field, "%v is out of range, the limits are 1970 and %v", w.at, EndOfTime)
	}
	const century = 100 * 365 * 24 * time.Hour
	if w.kind == whenAfter && (w.after < 0 || w.after > century) {
		return invalid(field, "%v is out of range, the limits are 0 and %v", w.after, century)
	}
	return nil
}

func checkLimit(limit int) error {
	if limit < 1 || limit > MaxPage {
		return invalid("limit", "%d is out of range, the limits are 1 and %d", limit, MaxPage)
	}
	return nil
}

func checkName(field, s string, limit int) error {
	if s == "" {
		return invalid(field, "is empty, the limits are 1 and %d bytes", limit)
	}
	return checkOptional(field, s, limit)
}

func checkOptional(field, s string, limit int) error {
	if len(s) > limit {
		return tooLarge(field, "%d bytes, the limit is %d", len(s), limit)
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return &InputError{Kind: ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}

func tooLarge(field, format string, args ...any) error {
	return &InputError{Kind: ErrTooLarge, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// firstOf returns the first error, so that a message is one line. The caller sees the next problem
// once the first is fixed.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckReason checks the reason for a new epoch.
func CheckReason(reason string) error { return checkName("reason", reason, MaxOwner) }

// CheckEpoch checks the epoch that is to begin.
func CheckEpoch(e Epoch) error {
	if e > MaxEpoch {
		return tooLarge("epoch", "%d, the limit is %d", e, MaxEpoch)
	}
	return nil
}

// CheckMulti checks the batches of one CommitMulti.
func CheckMulti(batches []Batch) error {
	if len(batches) == 0 {
		return invalid("batches", "there are none, the limits are 1 and %d", MaxMultiBatches)
	}
	if len(batches) > MaxMultiBatches {
		return tooLarge("batches", "%d batches, the limit is %d", len(batches), MaxMultiBatches)
	}
	seen := make(map[RunID]bool, len(batches))
	for i, b := range batches {
		if err := b.Check(); err != nil {
			return fmt.Errorf("batches[%d]: %w", i, err)
		}
		if seen[b.run] {
			return invalid(fmt.Sprintf("batches[%d]", i), "run %q is named twice", clip(string(b.run)))
		}
		seen[b.run] = true
	}
	return nil
}
