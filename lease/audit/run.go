package audit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// chunkRecords, 8,192, is how many records of a run are compared with one reading of its journal:
// with keys of the longest size they take 9 MiB.
const chunkRecords = 8192

// stamp is one of the two stamps of a record.
type stamp struct {
	key     runstore.RecordKey
	version runstore.Version
	name    string // "created" or "updated"
	runstore.Stamp
}

// examine reads a run: the head, the records, the journal, and the head again. Records are read
// before the journal, so the journal has every event that a stamp can name.
func (c *checker) examine(ctx context.Context, s *partition, r *runState) error {
	err := c.examineRun(ctx, s, r)
	if damaged(err) {
		c.add(r, Finding{Kind: KindDamaged, Problem: problem("the run cannot be read: %v", err)})
		r.end = 0
		return nil
	}
	return err
}

func (c *checker) examineRun(ctx context.Context, s *partition, r *runState) error {
	head, err := c.store.GetRun(ctx, r.id)
	if errors.Is(err, runstore.ErrNotFound) {
		c.checkGone(s, r)
		return nil
	}
	if err != nil {
		return err
	}
	j := &journal{checker: c, run: r, head: head}
	records := recordReader{checker: c, run: r, head: head}
	for first := true; first || !records.done; first = false {
		stamps, err := records.next(ctx)
		if err == nil {
			err = j.read(ctx, stamps, first)
		}
		if errors.Is(err, runstore.ErrNotFound) {
			r.discard()
			return nil
		}
		if err != nil {
			return err
		}
	}
	terms, err := c.readTerms(ctx, r.id)
	if errors.Is(err, runstore.ErrNotFound) {
		r.discard()
		return nil
	}
	if err != nil {
		return err
	}
	after, err := c.store.GetRun(ctx, r.id)
	if errors.Is(err, runstore.ErrNotFound) || err == nil && (!after.CreatedAt.Equal(head.CreatedAt) || !s.sameIncarnation(r, head)) {
		r.discard()
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.checkHeads(ctx, s, r, j, head, after); err != nil {
		return err
	}
	c.checkTerms(r, terms, head, after)
	records.checkSummary(after)
	c.checkFeed(s, r, j)
	if s.suspects {
		return nil
	}
	c.report.Runs++
	if head.Unlisted {
		c.report.Unlisted++
	}
	c.report.Events += int64(j.n)
	c.report.Terms += j.terms
	c.report.Records += records.n
	return nil
}

// discard drops what was found of a run that was purged meanwhile.
func (r *runState) discard() {
	r.findings, r.end, r.latest = nil, 0, time.Time{}
}

// checkGone checks a run that does not exist. In the second reading, it does not exist before and
// after the feed and the indexes were read. What they show then, if they have shown it before, belongs
// to an incarnation of the run that has ended.
func (c *checker) checkGone(s *partition, r *runState) {
	if s.suspects && r.exists {
		r.discard()
		return
	}
	if r.seen > 0 {
		c.add(r, Finding{Kind: KindFeed, Problem: "the feed shows events of a run that does not exist", mark: int64(r.seenAt)})
	}
	if r.listed || r.runnable {
		c.add(r, Finding{Kind: KindIndex, Problem: "an index of runs shows a run that does not exist", mark: runstore.Micros(r.createdAt)})
	}
}

// checkHeads checks the heads that were read before and after the journal.
func (c *checker) checkHeads(ctx context.Context, s *partition, r *runState, j *journal, head, after runstore.Run) error {
	problems := []struct {
		bad  bool
		kind Kind
		text string
	}{
		{head.ID != r.id || after.ID != r.id, KindHead, problem("the head is that of run %q", string(after.ID))},
		{head.LastSeq < 0 || head.Token < 0, KindHead, problem("the last seq is %d and the token %d", head.LastSeq, int64(head.Token))},
		{after.Token < head.Token, KindToken, problem("the last token fell from %v to %v", head.Token, after.Token)},
		{after.LastSeq < head.LastSeq, KindSeq, problem("the last seq fell from %d to %d", head.LastSeq, after.LastSeq)},
		{!j.broken && j.n < head.LastSeq, KindSeq, problem("the journal ends at seq %d, and the head at %d", j.n, head.LastSeq)},
		{!j.broken && j.n > after.LastSeq, KindSeq, problem("the journal ends at seq %d, and the head at %d", j.n, after.LastSeq)},
		{j.top > after.Token, KindToken, problem("an event at seq %d has token %v, and the last token of the run is %v", j.topSeq, j.top, after.Token)},
		{j.topStamp.Token > after.Token, KindRecord, problem("it was %s under token %v, and the last token of the run is %v", j.topStamp.name, j.topStamp.Token, after.Token)},
		{!head.Unlisted && !r.listed, KindIndex, "the run is not in " + string(runstore.IndexRuns)},
	}
	for i, p := range problems {
		if p.bad {
			f := Finding{Kind: p.kind, Problem: p.text, mark: int64(i)}
			switch p.kind {
			case KindIndex:
				f.Index = runstore.IndexRuns
			case KindRecord:
				f.Key, f.Version = j.topStamp.key, j.topStamp.version
			}
			c.add(r, f)
		}
	}
	// The entry may have been made or removed between the scan and now. In the second reading the
	// head before the scan shows whether it was.
	if at := head.RunnableAt; !at.IsZero() && !r.runnable &&
		(!s.suspects || r.before.RunnableAt.Equal(at) && r.before.Token == head.Token && r.before.LastSeq == head.LastSeq) {
		c.add(r, Finding{Kind: KindIndex, Index: runstore.IndexRunnable, Problem: problem("the run is runnable from %v, and is not in the index", at)})
	}
	if latest := max(head.Token, j.top).Epoch(); latest > c.epoch {
		if err := c.readEpoch(ctx); err != nil {
			return err
		}
		if latest > c.epoch {
			c.add(r, Finding{Kind: KindToken, Problem: problem("the run has a token of epoch %d, and the store is in epoch %d", latest, c.epoch)})
		}
	}
	c.checkHolder(r, head)
	return nil
}

// checkHolder checks the current grant of a head.
func (c *checker) checkHolder(r *runState, head runstore.Run) {
	if head.Token != 0 && head.Token.Counter() == 0 {
		c.add(r, Finding{Kind: KindToken, Problem: problem("the last token, %v, is the floor of its epoch", head.Token)})
	}
	h := head.Holder
	if h.Token == 0 {
		if h != (runstore.Holder{}) {
			c.add(r, Finding{Kind: KindHead, Problem: problem("the lease is held by %q without a token", string(h.Owner))})
		}
		return
	}
	for i, p := range []struct {
		bad  bool
		kind Kind
		text string
	}{
		{h.Token != head.Token, KindToken, problem("the lease is held under token %v, and the last token is %v", h.Token, head.Token)},
		{h.Owner == "", KindOwner, problem("the lease is held under token %v without an owner", h.Token)},
		{!h.ExpiresAt.Equal(head.ExpiresAt), KindHead, problem("the lease expires at %v and at %v", h.ExpiresAt, head.ExpiresAt)},
		{h.Former != runstore.EndPreempted && h.Preempted != (runstore.Preempted{}), KindHead, problem("the grant preempted %q, and the former grant was %v", string(h.Preempted.From), h.Former)},
		{h.RenewedAt.Before(h.GrantedAt), KindClock, problem("the lease was renewed at %v, before the grant at %v", h.RenewedAt, h.GrantedAt)},
		{h.ProgressedAt.Before(h.GrantedAt), KindClock, problem("the last progress was at %v, before the grant at %v", h.ProgressedAt, h.GrantedAt)},
	} {
		if p.bad {
			c.add(r, Finding{Kind: p.kind, Problem: p.text, mark: int64(100 + i)})
		}
	}
}

// checkFeed compares the journal with what the feed has shown before it was read, and notes what
// the rest of the feed has to show.
func (c *checker) checkFeed(s *partition, r *runState, j *journal) {
	r.latest = j.latest
	if s.noFeed || r.incomparable || j.broken {
		return
	}
	if r.seen > j.n {
		c.add(r, Finding{Kind: KindFeed, Problem: problem("the feed has events up to seq %d, and the journal ends at %d", r.seen, j.n)})
		return
	}
	c.compare(r, j.chainAtSeen, j.differs)
	if j.n > r.seen {
		r.end, r.endChain = j.n, j.chain
	}
}

// recordReader reads the records of a run in chunks.
type recordReader struct {
	*checker
	run     *runState
	head    runstore.Run
	after   runstore.RecordKey
	done    bool
	n       int64
	summary runstore.Record
}

// next reads the next chunk, and returns the stamps of its records in the order of their seqs.
func (p *recordReader) next(ctx context.Context) (stamps []stamp, err error) {
	for len(stamps) < 2*chunkRecords && !p.done {
		page, err := p.store.ReadRecords(ctx, p.run.id, runstore.RecordQuery{After: p.after, Limit: runstore.MaxPage})
		if err != nil {
			return nil, err
		}
		p.done = len(page) == 0
		for _, rec := range page {
			if rec.Key <= p.after {
				p.add(p.run, Finding{Kind: KindRecord, Key: rec.Key, Problem: problem("the key follows the key %q", string(p.after))})
				p.done = true // the next page may be this one again
				break
			}
			p.after = rec.Key
			p.n++
			p.check(rec)
			if rec.Key == runstore.SummaryKey {
				p.summary = rec
			}
			stamps = append(stamps,
				stamp{rec.Key, rec.Version, "created", rec.Created}, stamp{rec.Key, rec.Version, "updated", rec.Updated})
		}
	}
	slices.SortFunc(stamps, func(a, b stamp) int { return cmp.Compare(a.Seq, b.Seq) })
	return stamps, nil
}

// check checks a record by itself.
func (p *recordReader) check(rec runstore.Record) {
	f := Finding{Kind: KindRecord, Key: rec.Key, Version: rec.Version}
	created, updated := rec.Created, rec.Updated
	switch {
	case rec.Version < 1:
		f.Problem = "the version is not positive"
	case created.Seq < 0 || created.Seq > updated.Seq:
		f.Problem = problem("it was created at seq %d and updated at seq %d", created.Seq, updated.Seq)
	case created.Token < 0 || updated.Token != 0 && created.Token > updated.Token:
		f.Problem = problem("it was created under token %v and updated under token %v", created.Token, updated.Token)
	case rec.Version == 1 && !sameStamp(created, updated):
		f.Problem = "it is at version 1, and was updated after its creation"
	case updated.Time.Before(created.Time):
		f.Kind, f.Problem = KindClock, problem("the record was created at %v and updated at %v", created.Time, updated.Time)
	default:
		return
	}
	p.add(p.run, f)
}

// checkSummary compares the summary of the heads with the record that was read in between, if the
// heads show the same one.
func (p *recordReader) checkSummary(after runstore.Run) {
	if p.head.Summary.Version != after.Summary.Version || p.head.Summary.Version == 0 && p.summary.Version == 0 {
		return
	}
	if !equal(p.head.Summary, p.summary) {
		p.add(p.run, Finding{Kind: KindRecord, Key: runstore.SummaryKey, Version: p.head.Summary.Version, Problem: "the head shows another summary than the records"})
	}
}
