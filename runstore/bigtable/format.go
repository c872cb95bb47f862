package bigtable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// format is the newest format that this program reads and writes. A program that stores anything that an
// older one would misread, or drop when it rewrites it, uses a higher number in two places:
//
//   - The head of each run that it writes in that way. Every write decodes the head that it replaces, or
//     has decoded it before and replaces exactly that revision. So a handle of an older program refuses
//     the run after that write, even if the handle was open before.
//   - The epochs' row, before the first such write. A handle of an older program cannot open the store
//     any more. One that is open cannot create runs or acquire leases, because it reads a copy of that
//     row for these.
//
// 0 means 1. A field that this program does not know counts as a newer format.
const format = 5

// formatStamps is the format of runs whose cells have the stamp of an epoch, see failover.go. Cells of
// the first epoch have none.
const formatStamps = 2

// formatGrants is the format of runs whose head or records have what format 2 lacks: the times, the
// bound and the progress of a grant, the tokens of records, results of requests with a grant id, and
// unlisted runs. A program of format 2 would drop or misread these.
const formatGrants = 3

// formatRunnableEntries is the format of runs whose entry in IndexRunnable is later than RunnableAt, or
// may be moved by a scan (runnable.go). A program of format 3 would delete such an entry.
const formatRunnableEntries = 4

// formatCold is the format of runs that have cold records, see cold.go. A program of format 3 would take
// these for absent. It has the number of formatRunnableEntries, because every release knows both or
// neither.
const formatCold = formatRunnableEntries

// formatOpenPages is the format of runs whose events may be in an open page of the feed's log, see
// feedpage.go. A program of format 4 would not find them there, and would publish them again.
const formatOpenPages = 5

// requires raises the format of a run's head.
func (h *head) requires(format int) { h.Format = max(h.Format, format) }

// decode decodes JSON into v. of is the field of v that has the format, and what names the data in an error.
//
// Errors: ErrUnsupported for a newer format, ErrCorrupt if b is not such JSON.
func decode(b []byte, v any, of *int, what string) error {
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	unknown := strict.Decode(v)
	if unknown != nil {
		if err := json.Unmarshal(b, v); err != nil {
			return corrupt(err)
		}
	}
	if *of > format || unknown != nil {
		problem := fmt.Sprintf("%s has format %d, this program knows %d", what, max(*of, format), format)
		if unknown != nil {
			problem += fmt.Sprintf(" (%v)", unknown)
		}
		return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "format", Problem: problem + "; use a newer program"}
	}
	return nil
}

// corrupt returns the error of stored data that cannot be decoded. ofRun adds the run.
func corrupt(cause error) error { return &runstore.CorruptError{Cause: cause} }

var errNoHead = corrupt(errors.New("the row has no head"))

// ofRun adds the run to a CorruptError about its data.
func ofRun(id runstore.RunID, err error) error {
	var damage *runstore.CorruptError
	if errors.As(err, &damage) && damage.Run == "" {
		return &runstore.CorruptError{Run: id, Cause: damage.Cause}
	}
	return err
}

// isUndecodable reports whether err is about stored data, so that a repeat would fail again.
func isUndecodable(err error) bool {
	return errors.Is(err, runstore.ErrCorrupt) || errors.Is(err, runstore.ErrUnsupported)
}

// maxReported bounds the runs that a handle remembers to have logged.
const maxReported = 1024

// unlessSkipped returns err, or nil if the caller skips the run.
func (s *engine) unlessSkipped(id runstore.RunID, err error) error {
	if err == nil || s.skipDamaged(id, err) {
		return nil
	}
	return err
}

// skipDamaged reports whether work on many runs skips this one because its data cannot be decoded. It
// logs that once for each run, or for the store itself if id is empty.
func (s *engine) skipDamaged(id runstore.RunID, err error) bool {
	if !isUndecodable(err) {
		return false
	}
	s.reported.mu.Lock()
	defer s.reported.mu.Unlock()
	if s.reported.runs[id] {
		return true
	}
	if s.reported.runs == nil || len(s.reported.runs) >= maxReported {
		s.reported.runs = map[runstore.RunID]bool{}
	}
	s.reported.runs[id] = true
	s.opts.Logger.Error("bigtable: a run is passed over: its data cannot be decoded", "run", string(id), "error", ofRun(id, err))
	return true
}
