package tape

// Compaction of a run: CompactRun blanks the bodies of the decisions and effects of a settled run,
// and keeps everything else. It is atomic by a write-ahead intent.
//
// Why it is not simple: a run may hold more records than one commit takes, its effects may still
// change, and the program may end between any two commits. A reader must never learn that a
// compaction was done when it was not, and the counts must be right if another caller finishes it.
//
// Invariants:
//
//  1. The run was settled at the entry UpTo. The commit that begins the compaction is guarded by the
//     next seq and by the status, and every transition that settles or unsettles a run is journaled.
//  2. A compaction has the effect of one commit at UpTo: what is recorded later keeps its bodies.
//  3. Each row is written under a guard of its version, so that a claim, which is not journaled, is
//     never overwritten.
//  4. The record "compaction" holds the counts of the rows that are blank, and changes in the commits
//     that blank rows. So the counts are right after a cut, and for several finishers.
//  5. A run is never granted to a driver in the middle of a compaction: every grant is guarded by the
//     version of the record "compaction", and the caller finishes the compaction first.
//
// Outline: survey reads the run's rows once. Where all rows to blank fit into one commit, that commit
// does everything. Otherwise begin commits the intent, blankRows commits batches of rows, and the last
// commit stamps the record as done, journals, and takes the summary out of the queue of ended runs.
//
// Rejected: the state of the compaction as a part of the summary. Each writer of the summary would
// have to carry it along, and a grant would have to read the summary first. As a record of its own it
// is a guard of the grant, which costs no round trip.

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Compacted is the result of CompactRun.
type Compacted struct {
	// Decisions and Effects are the numbers of rows that had a body and are now blank.
	Decisions, Effects int64
	// Bytes is the total length of the removed bodies, without rationales.
	Bytes int64
	// Already reports that an earlier call compacted the run; the counts are then 0.
	Already bool
}

// compactionKey is the key of the record that holds the state of a run's compaction.
const compactionKey runstore.RecordKey = "compaction"

// compaction is the stored form of the state of a compaction.
type compaction struct {
	// UpTo is the last seq of the run when the compaction began.
	UpTo runstore.Seq `json:"up_to"`
	Done bool         `json:"done,omitempty"`
	// Decisions, Effects and Bytes are the counts so far.
	Decisions int64 `json:"decisions,omitempty"`
	Effects   int64 `json:"effects,omitempty"`
	Bytes     int64 `json:"bytes,omitempty"`

	// version is the version of the record; 0 if there is none.
	version runstore.Version
}

func compactionOf(run runstore.RunID, rec runstore.Record) (compaction, error) {
	c := compaction{version: rec.Version}
	return c, decode(fmt.Sprintf("the compaction of run %q", run), rec.Value, &c)
}

// CompactRun removes the request, response and rationale from the decisions of an ended run, and
// the request, response and error from its effects. Everything else stays, and so does the request of
// an outbox effect that is PENDING: a dispatcher is still to send it. The run must be
// TERMINAL, FAILED, CANCELLED or STUCK, with no obligation PENDING or COMMITTED and no effect
// UNKNOWN. A run is compacted once; a later call writes nothing.
//
// A run of up to 250 rows to blank takes one commit: four round trips, and one for each further
// page of records. A larger run takes a commit per batch. If a call is interrupted between batches,
// the next CompactRun, BeginRun or EndRun of the run finishes the compaction.
//
// A run that has ended has no current grant, so no fence is required in any mode. A fence that is
// presented must be current.
//
// Errors: ErrRefused for a run that is unknown, has not ended or is not settled;
// runstore.ErrFenced.
func (t *Tape) CompactRun(ctx context.Context, run runstore.RunID, f runstore.Fence) (Compacted, error) {
	if err := checkRun(run); err != nil {
		return Compacted{}, err
	}
	if !f.IsZero() {
		if err := t.admit("CompactRun", run, f); err != nil {
			return Compacted{}, err
		}
		if err := t.confirm(ctx, f); err != nil { // before the other checks, so that a zombie gets ErrFenced
			return Compacted{}, err
		}
	}
	var pace pace
	for {
		state, err := t.startCompaction(ctx, run, f)
		switch {
		case err == nil && !state.Done:
			return t.finishCompaction(ctx, run, f)
		case err == nil:
			return state.result(), nil
		case !errors.Is(err, runstore.ErrConflict):
			return Compacted{}, err
		}
		if err := pace.next(ctx, err); err != nil {
			return Compacted{}, err
		}
	}
}

func (c compaction) result() Compacted {
	if c.Done && c.version > 0 { // read from the store: an earlier call finished
		return Compacted{Already: true}
	}
	return Compacted{Decisions: c.Decisions, Effects: c.Effects, Bytes: c.Bytes}
}

// startCompaction compacts the run at once if one commit suffices. Otherwise it commits the intent,
// or finds the intent of an earlier call. The state has version 0 if this call did everything.
func (t *Tape) startCompaction(ctx context.Context, id runstore.RunID, f runstore.Fence) (compaction, error) {
	head, err := t.store.GetRun(ctx, id)
	if errors.Is(err, runstore.ErrNotFound) || err == nil && head.Summary.Version == 0 {
		return compaction{}, refuse(ErrRefused, "compact_run: run_id %s not found", id)
	}
	if err != nil {
		return compaction{}, err
	}
	run, err := runOf(head)
	if err != nil {
		return compaction{}, err
	}
	found, err := t.surveyRun(ctx, run)
	if err != nil || found.state.version > 0 {
		return found.state, err
	}
	if !run.Status.ended() || run.EndedAt.IsZero() {
		return compaction{}, refuse(ErrRefused, "compact_run: run %s is not terminal (status=%d, ended_at_ms=%d); refuse to zero live state",
			id, run.Status, millis(run.EndedAt))
	}
	if found.open > 0 {
		return compaction{}, refuse(ErrRefused, "compact_run: run %s has %d open obligation(s); not settled", id, found.open)
	}
	if found.unknown > 0 {
		return compaction{}, refuse(ErrRefused, "compact_run: run %s has %d UNKNOWN effect(s); not settled", id, found.unknown)
	}
	b := guards(id, f, runstore.AtVersion(compactionKey, 0))
	b.Require(runstore.AtSeq(head.LastSeq+1), runstore.InStatus(head.Status))
	if !found.fits {
		return t.stampCompaction(ctx, b, compaction{UpTo: head.LastSeq})
	}
	return t.closeCompaction(ctx, b, run, head.Summary.Version, compaction{UpTo: head.LastSeq}, found.rows)
}

// stampCompaction adds the next state to a batch, which is guarded by the version of the previous
// state, and commits the batch.
func (t *Tape) stampCompaction(ctx context.Context, b runstore.Batch, next compaction) (compaction, error) {
	b.Put(compactionKey, encode(next))
	done, err := t.commit(ctx, b)
	if err != nil {
		return compaction{}, err
	}
	next.version = done.Versions[len(done.Versions)-1]
	return next, nil
}

// closeCompaction makes the last commit of a compaction: it blanks the last rows, journals the
// counts and removes the run from the queue of ended runs.
func (t *Tape) closeCompaction(ctx context.Context, b runstore.Batch, run Run, summary runstore.Version, c compaction, rows []blankRow) (compaction, error) {
	// The payload contains the time, so the store clock is read first. The time of the entry itself
	// is the commit's, about a round trip later.
	now, err := t.store.Now(ctx)
	if err != nil {
		return compaction{}, err
	}
	c = c.blank(&b, rows)
	c.Done = true
	b.Append(kindRun, compactJSON(map[string]any{
		"run_id": run.ID, "compacted_at_ms": now.UnixMilli(),
		"decisions_zeroed": c.Decisions, "effects_zeroed": c.Effects, "bytes_saved": c.Bytes,
	}))
	b.Require(runstore.AtVersion(runstore.SummaryKey, summary))
	putSummary(&b.Writes, run.encode(false), run.places()...)
	if _, err := t.stampCompaction(ctx, b, c); err != nil {
		return compaction{}, err
	}
	c.version = 0 // this call did it
	return c, nil
}

// blank adds the blanked rows to a batch and returns the state with their counts added.
func (c compaction) blank(b *runstore.Batch, rows []blankRow) compaction {
	for _, r := range rows {
		b.Require(runstore.AtVersion(r.key, r.version))
		b.Put(r.key, r.value, r.places...)
		b.Records[len(b.Records)-1].Reserve = r.reserve
		c.Bytes += r.saved
		if strings.HasPrefix(string(r.key), effectPrefix) {
			c.Effects++
		} else {
			c.Decisions++
		}
	}
	return c
}
