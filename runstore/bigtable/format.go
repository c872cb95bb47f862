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

// decode decodes JSON into v. of is the field of v that has the format.
//
// Errors: ErrUnsupported for a newer format, ErrCorrupt if b is not such JSON.
func decode(b []byte, v any, of *int) error {
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	unknown := strict.Decode(v)
	if unknown != nil {
		if err := json.Unmarshal(b, v); err != nil {
			return corrupt(err)
		}
	}
	if *of > format || unknown != nil {
		return errFormat{max(*of, format), unknown}
	}
	return nil
}

// errFormat is the error of stored data in a format that this program does not know.
type errFormat struct {
	found   int
	unknown error // the decoder's error about an unknown field, or nil
}

func (e errFormat) Error() string { return e.of("it").Error() }
func (e errFormat) Unwrap() error { return e.of("it") }

// of returns the error with a name of the data.
func (e errFormat) of(what string) *runstore.InputError {
	problem := fmt.Sprintf("%s has format %d, this program knows %d", what, e.found, format)
	if e.unknown != nil {
		problem += fmt.Sprintf(" (%v)", e.unknown)
	}
	return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "format", Problem: problem + "; use a newer program"}
}

// decode decodes the epochs' row, which carries the format of the store.
func (x *epochs) decode(b []byte) error {
	err := decode(b, x, &x.Format)
	var newer errFormat
	if errors.As(err, &newer) {
		return newer.of("the store")
	}
	return err
}

// corrupt returns the error of stored data that cannot be decoded. ofRun adds the run.
func corrupt(cause error) error { return &runstore.CorruptError{Cause: cause} }

var errNoHead = corrupt(errors.New("the row has no head"))

// ofRun adds the run to an error about its data.
func ofRun(id runstore.RunID, err error) error {
	var damage *runstore.CorruptError
	if errors.As(err, &damage) && damage.Run == "" {
		return &runstore.CorruptError{Run: id, Cause: damage.Cause}
	}
	var newer errFormat
	if errors.As(err, &newer) {
		return newer.of(fmt.Sprintf("run %q", id))
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
