package tape

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// HandlerKind is how a reaction handles the entries that it matches. Numbers without a name here
// are stored unchanged and do nothing.
type HandlerKind int32

const (
	// HandlerUnspecified: matches have no effect.
	HandlerUnspecified HandlerKind = 0
	// HandlerAgent: each match begins a run.
	HandlerAgent HandlerKind = 1
	// HandlerTask and HandlerPublish: each match creates a task; for HandlerPublish a bridge to a
	// broker works on it.
	HandlerTask    HandlerKind = 2
	HandlerPublish HandlerKind = 3
)

// makesTasks reports whether matches of the kind create tasks.
func (k HandlerKind) makesTasks() bool { return k == HandlerTask || k == HandlerPublish }

// Reaction selects entries of the feed of all runs and defines how each is handled. Its shards
// divide the entries by their runs, so that several matchers can work on one reaction.
type Reaction struct {
	ID, Name string
	// Pattern selects entries by their subjects, and Predicate, a CEL expression, by their content.
	// A malformed text is stored, and matches nothing.
	Pattern, Predicate string
	Handler            HandlerKind
	// AgentApp is the application of the runs that HandlerAgent begins. PublishTarget is a text for
	// the bridge of HandlerPublish.
	AgentApp, PublishTarget string
	// MaxConcurrency, RateLimit and RetryMax are for clients. If MaxConcurrency or RetryMax is 0 or
	// less, it becomes 1 or 5; RateLimit is stored unchanged.
	MaxConcurrency, RateLimit, RetryMax int32
	// DebounceMS, if positive, lets a match replace the content of a PENDING task of the same
	// subject that is younger than that many milliseconds.
	DebounceMS int32
	// RetryBackoffMS is the pause after the first failed attempt at a task, in milliseconds; it
	// doubles with each further attempt; 0 or less means 1000. DLQAfter is the number of attempts;
	// 0 or less means 5.
	RetryBackoffMS, DLQAfter int32
	// Shards is the number of shards, fixed at the first registration; 0 or less means 1.
	Shards int32
	// CreatedAtMS is when the reaction was first registered, in milliseconds since 1970, or the
	// value that the first registration gave.
	CreatedAtMS int64
	// Start is the position from which each shard reads the feed, fixed at the first registration.
	Start runstore.Position
	// Version is the version of the definition. It changes with each registration that changes the
	// reaction.
	Version runstore.Version
}

// The limits of a reaction; those of texts are in bytes.
const (
	// MaxReactionID is the longest id.
	MaxReactionID = runstore.MaxRecordKey
	// MaxReactionNames is the largest sum of a reaction's id, name, application and target.
	MaxReactionNames = 16 << 10
	// MaxPredicate is the longest predicate.
	MaxPredicate = 4 << 10
	// MaxShards is the largest number of shards.
	MaxShards = 256
)

// IndexReactions is the queue of the reactions that are registered, by their creation.
const IndexReactions runstore.IndexName = "reaction.live"

// A shard of a reaction is a run of its own, which no list of runs shows. Its record "cursor" is
// the position up to which it has handled the feed. The run of shard 0 also has the definition.
const (
	reactionKey runstore.RecordKey = "reaction"
	cursorKey   runstore.RecordKey = "cursor"
)

// shardPrefix returns the prefix of the ids of the runs of a reaction's shards.
func shardPrefix(reaction string) string { return "reaction/" + hashOf(reaction) + "/" }

func shardRun(reaction string, shard int32) runstore.RunID {
	return runstore.RunID(shardPrefix(reaction) + strconv.Itoa(int(shard)))
}

// ShardOf returns the shard that handles the entries of a run.
func (r Reaction) ShardOf(run runstore.RunID) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(run)) // it never fails
	return int32(h.Sum32() % uint32(max(r.Shards, 1)))
}

func (r Reaction) withDefaults() Reaction {
	orElse := func(n *int32, value int32) {
		if *n <= 0 {
			*n = value
		}
	}
	orElse(&r.MaxConcurrency, 1)
	orElse(&r.RetryMax, defaultMaxAttempts)
	orElse(&r.RetryBackoffMS, defaultBackoffMS)
	orElse(&r.DLQAfter, defaultMaxAttempts)
	orElse(&r.Shards, 1)
	return r
}

// check returns an error, which names the field and the limit, if the reaction cannot be
// registered.
func (r Reaction) check() error {
	names := []field{{"reaction_id", r.ID}, {"name", r.Name}, {"agent_app", r.AgentApp}, {"publish_target", r.PublishTarget}}
	if err := checkText(append(names, field{"predicate_cel", r.Predicate})...); err != nil {
		return err
	}
	if err := checkReactionID(r.ID); err != nil {
		return err
	}
	size := len(r.ID) + len(r.Name) + len(r.AgentApp) + len(r.PublishTarget)
	if err := checkSize("the names of a reaction", size, MaxReactionNames, names...); err != nil {
		return err
	}
	if _, err := ParsePattern(r.Pattern); err != nil {
		return err
	}
	if err := checkLength("predicate_cel", r.Predicate, MaxPredicate); err != nil {
		return err
	}
	if r.CreatedAtMS > 0 {
		if err := checkTime("created_at_ms", time.UnixMilli(r.CreatedAtMS)); err != nil {
			return err
		}
	}
	if r.Shards > MaxShards {
		return &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "num_shards",
			Problem: fmt.Sprintf("is %d, the limits are 1 and %d (0 or less means 1)", r.Shards, MaxShards),
		}
	}
	return nil
}

func checkReactionID(id string) error {
	if err := checkText(field{"reaction_id", id}); err != nil {
		return err
	}
	return checkLength("reaction_id", id, MaxReactionID)
}

// size returns an upper bound of the bytes that the reaction takes in an answer.
func (r Reaction) size() int {
	const numbers = 256 // numbers, and the tags and lengths of all fields: under 200 bytes
	return numbers + len(r.ID) + len(r.Name) + len(r.Pattern) + len(r.Predicate) + len(r.AgentApp) + len(r.PublishTarget)
}

// reactionHead is the stored form of a reaction.
type reactionHead struct {
	ID             string            `json:"id"`
	Name           string            `json:"name,omitempty"`
	Pattern        string            `json:"pattern,omitempty"`
	Predicate      string            `json:"predicate,omitempty"`
	Handler        HandlerKind       `json:"handler,omitempty"`
	AgentApp       string            `json:"agent_app,omitempty"`
	PublishTarget  string            `json:"publish_target,omitempty"`
	MaxConcurrency int32             `json:"max_concurrency,omitempty"`
	RateLimit      int32             `json:"rate_limit,omitempty"`
	RetryMax       int32             `json:"retry_max,omitempty"`
	DebounceMS     int32             `json:"debounce_ms,omitempty"`
	RetryBackoffMS int32             `json:"retry_backoff_ms,omitempty"`
	DLQAfter       int32             `json:"dlq_after,omitempty"`
	Shards         int32             `json:"shards"`
	CreatedMS      int64             `json:"created_ms,omitempty"` // 0: when the record was created
	Start          runstore.Position `json:"start,omitempty"`
	Deleted        bool              `json:"deleted,omitempty"`
}

// storedReaction is a reaction with the times that are needed to write it.
type storedReaction struct {
	Reaction
	deleted bool
	// createdMS is the CreatedAtMS of the first registration; 0 or less if it gave none.
	createdMS int64
	// created is when the record was created; zero before.
	created time.Time
}

var reactions = ledger[storedReaction]{decode: reactionOf, encode: storedReaction.encode}

func (r storedReaction) encode() ([]byte, []runstore.Place) {
	value := encode(reactionHead{
		ID: r.ID, Name: r.Name, Pattern: r.Pattern, Predicate: r.Predicate, Handler: r.Handler,
		AgentApp: r.AgentApp, PublishTarget: r.PublishTarget, MaxConcurrency: r.MaxConcurrency, RateLimit: r.RateLimit,
		RetryMax: r.RetryMax, DebounceMS: r.DebounceMS, RetryBackoffMS: r.RetryBackoffMS, DLQAfter: r.DLQAfter,
		Shards: r.Shards, CreatedMS: max(r.createdMS, 0), Start: r.Start, Deleted: r.deleted,
	})
	if r.deleted {
		return value, nil
	}
	at := createdWhen(r.created)
	if r.createdMS > 0 {
		at = runstore.At(time.UnixMilli(r.createdMS))
	}
	return value, []runstore.Place{{Index: IndexReactions, At: at}}
}

// createdWhen returns the time of a record's creation; for the zero time, the time of the commit.
func createdWhen(created time.Time) runstore.When {
	if created.IsZero() {
		return runstore.After(0)
	}
	return runstore.At(created)
}

func reactionOf(run runstore.RunID, rec runstore.Record) (storedReaction, error) {
	var head reactionHead
	if err := decode(fmt.Sprintf("reaction of run %q", run), rec.Value, &head); err != nil {
		return storedReaction{}, err
	}
	r := storedReaction{deleted: head.Deleted, createdMS: head.CreatedMS, created: rec.Created.Time, Reaction: Reaction{
		ID: head.ID, Name: head.Name, Pattern: head.Pattern, Predicate: head.Predicate, Handler: head.Handler,
		AgentApp: head.AgentApp, PublishTarget: head.PublishTarget, MaxConcurrency: head.MaxConcurrency, RateLimit: head.RateLimit,
		RetryMax: head.RetryMax, DebounceMS: head.DebounceMS, RetryBackoffMS: head.RetryBackoffMS, DLQAfter: head.DLQAfter,
		Shards: head.Shards, CreatedAtMS: head.CreatedMS, Start: head.Start, Version: rec.Version,
	}}
	if r.CreatedAtMS == 0 {
		r.CreatedAtMS = rec.Created.Time.UnixMilli()
	}
	return r, nil
}
