package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// A business key names an effect over all runs, together with its connector. The pair has a run of
// its own, which no list of runs shows, with one record: which effect is registered. The effect and
// its registration are one commit over both runs, so at no time is there one without the other.

const registeredKey runstore.RecordKey = "effect"

// registration is the stored form of the record.
type registration struct {
	Run runstore.RunID `json:"run"`
	Key string         `json:"key"`
}

func businessRun(connector, key string) runstore.RunID {
	return runstore.RunID("business/" + hashOf(connector, key))
}

// errRegistered: the pair has an effect already.
var errRegistered = errors.New("the business key has an effect")

// commitRegistered commits b, which begins an effect, together with the registration of the effect's
// business key. If the pair has an effect already, it returns that one and errRegistered. Two round
// trips for a new pair.
func (t *Tape) commitRegistered(ctx context.Context, b runstore.Batch, begun Effect) (runstore.Committed, Effect, error) {
	multi, ok := t.store.(runstore.MultiCommitter)
	if !ok {
		return runstore.Committed{}, Effect{}, errNoBusinessKeys
	}
	registry := businessRun(begun.Connector, begun.BusinessKey)
	if _, err := retry(ctx, func() (runstore.Created, error) {
		return t.store.CreateRun(ctx, runstore.RunSpec{ID: registry, Unlisted: true})
	}); err != nil {
		return runstore.Committed{}, Effect{}, err
	}
	var known runstore.Version
	var lost error
	for range maxAttempts {
		register := runstore.NewBatch(registry, runstore.AtVersion(registeredKey, known))
		register.Put(registeredKey, encode(registration{Run: begun.Run, Key: begun.Key}))
		b.ID, register.ID = runstore.NewBatchID(), runstore.NewBatchID()
		// The effect's batch is judged first, its fence before its versions: a zombie learns that it
		// is one, registered effect or not.
		done, err := retry(ctx, func() ([]runstore.Committed, error) {
			return multi.CommitMulti(ctx, []runstore.Batch{b, register})
		})
		if err == nil {
			return done[0], Effect{}, nil
		}
		var conflict *runstore.ConflictError
		switch {
		case errors.Is(err, runstore.ErrUnsupported):
			return runstore.Committed{}, Effect{}, errNoBusinessKeys
		case !errors.As(err, &conflict) || conflict.Key != registeredKey:
			return runstore.Committed{}, Effect{}, noSuchRun(err)
		}
		lost = err
		rec, found, err := t.readRecord(ctx, registry, registeredKey)
		if err != nil {
			return runstore.Committed{}, Effect{}, err
		}
		if known = rec.Version; !found {
			continue
		}
		var first registration
		if err := decode("the registration of a business key", rec.Value, &first); err != nil {
			return runstore.Committed{}, Effect{}, err
		}
		e, found, err := t.GetEffect(ctx, first.Run, first.Key)
		if err != nil {
			return runstore.Committed{}, Effect{}, err
		}
		if found {
			return runstore.Committed{}, e, errRegistered
		}
		// The run with the effect was purged: the pair is free again.
	}
	return runstore.Committed{}, Effect{}, lost
}

var errNoBusinessKeys = refuse(runstore.ErrUnsupported,
	"begin_effect: business_key: this engine does not commit to two runs at once, and deduplication over runs is not supported on it yet")
