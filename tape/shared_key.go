package tape

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// The run of the key, which has no other record.
const (
	sharedKeyRun    runstore.RunID     = "server/page-key"
	sharedKeyRecord runstore.RecordKey = "key"
)

// SharedKey returns 32 random bytes that all callers of a store share: the first call stores them. One
// read; three calls of the store the first time.
func (t *Tape) SharedKey(ctx context.Context) ([32]byte, error) {
	for tries := 0; ; tries++ {
		key, err := t.readSharedKey(ctx)
		if !errors.Is(err, ErrNoSuchRun) || tries == 2 {
			return key, err
		}
		if err := t.createShared(ctx, sharedKeyRun, runstore.Fence{}); err != nil {
			return key, err
		}
		_, _ = rand.Read(key[:]) // never fails
		b := runstore.NewBatch(sharedKeyRun, runstore.AtVersion(sharedKeyRecord, 0))
		b.Put(sharedKeyRecord, encode(struct{}{}, hex.EncodeToString(key[:])))
		if _, err := t.commit(ctx, b); err == nil {
			return key, nil
		} else if !errors.Is(err, runstore.ErrConflict) { // with another caller's key
			return key, err
		}
	}
}

// readSharedKey returns the stored key; ErrNoSuchRun if there is none.
func (t *Tape) readSharedKey(ctx context.Context) (key [32]byte, err error) {
	rec, found, err := t.readRecord(ctx, sharedKeyRun, sharedKeyRecord)
	if err == nil && !found {
		err = ErrNoSuchRun
	}
	if err != nil {
		return key, err
	}
	var text string
	if err := decode("the key of page tokens", rec.Value, &struct{}{}, &text); err != nil {
		return key, err
	}
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == len(key) {
		return [32]byte(raw), nil
	}
	return key, refuse(ErrFormat, "the key of page tokens is damaged")
}
