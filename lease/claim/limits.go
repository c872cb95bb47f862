package claim

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// The limits of this package. Sizes are bytes.
const (
	// MaxName is the longest name of a queue or a capacity.
	MaxName = 128
	// MaxID is the longest id of a message or a reservation.
	MaxID = 256
	// MaxPayload is the largest payload of a message: 256 KiB. Each change of a message writes the
	// payload again, so larger data is better stored elsewhere.
	MaxPayload = 256 << 10
	// MaxReason is how much of a reason is stored. A longer reason is cut, not refused, so that a
	// failure can always be reported.
	MaxReason = 1 << 10
	// MaxShards is the largest number of shards of a queue.
	MaxShards = 64
	// MaxClaim is the largest number of messages that one call claims.
	MaxClaim = 128
	// MinTTL, 1 ms, and MaxTTL, 24 h, are the limits of the time that a claim or a hold lasts.
	MinTTL = delivery.MinTTL
	MaxTTL = delivery.MaxTTL
	// MaxDelay is the longest delay of a message, and the longest time that an id is remembered.
	MaxDelay = 365 * 24 * time.Hour
	// MaxAmount is the largest capacity: 2^53 - 1, the highest integer that JavaScript clients
	// represent exactly.
	MaxAmount = 1<<53 - 1
	// MaxHolds is the largest number of holds of a capacity at a time, expired ones that were not
	// replaced among them. Commitments do not count.
	MaxHolds = 1000
)

func invalid(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// checkSize checks a text or a payload.
func checkSize[T ~string | ~[]byte](field string, text T, least, most int) error {
	switch {
	case len(text) < least:
		return invalid(field, "is empty, the limits are %d and %d bytes", least, most)
	case len(text) > most:
		return &runstore.InputError{Kind: runstore.ErrTooLarge, Field: field, Problem: fmt.Sprintf("%d bytes, the limit is %d", len(text), most)}
	}
	return nil
}

// checkOwner checks the name of an owner, which is stored as a JSON string.
func checkOwner(owner runstore.Owner) error {
	if !utf8.ValidString(string(owner)) {
		return invalid("owner", "is not UTF-8")
	}
	return checkSize("owner", owner, 1, runstore.MaxOwner)
}

func checkDuration(field string, d, least, most time.Duration) error {
	if d < least || d > most {
		return invalid(field, "%v is out of range, the limits are %v and %v", d, least, most)
	}
	return nil
}

func checkNumber(field string, n, least, most int64) error {
	if n < least || n > most {
		return invalid(field, "%d is out of range, the limits are %d and %d", n, least, most)
	}
	return nil
}

// clip returns a reason as it is stored: UTF-8 of at most MaxReason bytes.
func clip(reason string) string {
	return strings.ToValidUTF8(reason[:min(len(reason), MaxReason)], "")
}

// firstOf returns the first error.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
