package tape

import (
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// storedWhen is the stored form of a runstore.When. Only the store knows the time of a commit. So a
// row that is due some time after the commit that writes it stores the duration, and readers add it
// to the time of the record's last change.
type storedWhen struct {
	At    int64  `json:"at_us,omitempty"`
	After *int64 `json:"after_us,omitempty"`
}

func storeWhen(w runstore.When) storedWhen {
	if d, relative := w.Offset(); relative {
		after := d.Microseconds()
		return storedWhen{After: &after}
	}
	return storedWhen{At: runstore.Micros(w.Resolve(time.Time{}))}
}

// time returns the stored time; zero for none. updated is the time of the record's last change.
func (w storedWhen) time(updated time.Time) time.Time {
	if w.After != nil {
		return updated.Add(time.Duration(*w.After) * time.Microsecond)
	}
	return runstore.FromMicros(w.At)
}

// whenAt returns runstore.At(at), or the zero When for the zero time.
func whenAt(at time.Time) runstore.When {
	if at.IsZero() {
		return runstore.When{}
	}
	return runstore.At(at)
}

// checkTime returns an error for a time that no store accepts.
func checkTime(name string, at time.Time) error {
	if at.After(time.Unix(0, 0)) && !at.After(runstore.EndOfTime) {
		return nil
	}
	return &runstore.InputError{
		Kind: runstore.ErrInvalid, Field: name,
		Problem: at.UTC().Format(time.RFC3339) + " is out of range, the limits are 1970 and " + runstore.EndOfTime.Format(time.RFC3339),
	}
}
