package claim

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// Message is a message of a queue.
type Message struct {
	// ID is the id that the producer chose.
	ID string
	// Payload must not be modified: a nack writes it again.
	Payload []byte
	// Attempts is the number of claims since the message was put or redriven, without those that
	// were released.
	Attempts int
	// Reason is that of the last failure: of a nack, or of a claim that expired as the last one.
	Reason string
	// PutAt is when the message was put, on the store clock.
	PutAt time.Time
}

// Receipt is a claimed message with the proof of the claim: the version of the message's record. It
// remains valid when the claim is extended, and can be copied.
type Receipt struct {
	Message
	Owner runstore.Owner
	// Expires is when the claim ends, on the store clock. Until then the message is invisible to
	// others. It is no deadline for an ack: that of an expired claim counts while no other caller
	// has claimed the message.
	Expires time.Time

	// claim is the version with which the claim began; version is the present one, unless an
	// extension whose reply was lost has raised it.
	claim, version runstore.Version
	due            time.Time
}

// Version returns the version of the message's record with which the claim began. It grows from
// claim to claim of a message, also if the message is put again, so a service that remembers the
// highest version per message can refuse the calls of former claims (package fence).
func (r Receipt) Version() runstore.Version { return r.claim }

// DeadLetter is a message that is delivered no more.
type DeadLetter struct {
	Message
	// DiedAt is when the message became a dead letter, on the store clock.
	DiedAt time.Time
}

// A message is one record of its shard's run. A live message, ready or claimed, is in the queue's
// index, at the time from which it can be claimed. A dead letter, and the id of a message that was
// acknowledged, are under other keys and in no index: a store that limits the records in indexes has
// room for any number of them.
const (
	livePrefix = "msg/"
	deadPrefix = "dead/"
	donePrefix = "done/"
)

func liveKey(id string) runstore.RecordKey { return runstore.RecordKey(livePrefix + id) }
func deadKey(id string) runstore.RecordKey { return runstore.RecordKey(deadPrefix + id) }

// doneKey contains a hash, so that a read from a random key on selects ids at random.
func doneKey(id string) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("%s%016x/%s", donePrefix, hashOf(id), id))
}

// state is the stored form of a delivery.Phase.
type state int

const (
	ready   state = 1 // delivery.Waiting
	claimed state = 2
	dead    state = 3
	done    state = 4 // acknowledged or discarded: only the id remains
)

var states = [...]state{delivery.Waiting: ready, delivery.Claimed: claimed, delivery.Dead: dead, delivery.Done: done}

// format is the version of the stored form that this package writes, and the only one it reads.
const format = 1

// stored is the stored form of a message: one line of JSON, followed by the payload.
type stored struct {
	Format   int            `json:"v"`
	State    state          `json:"s"`
	Attempts int            `json:"a,omitempty"`
	Owner    runstore.Owner `json:"o,omitempty"`
	// TTL is the time that the claim lasts from the record's last change on, in microseconds.
	TTL int64 `json:"ttl,omitempty"`
	// Claim is the version with which the claim began, once an extension has raised the version;
	// or that of the claim that was acknowledged.
	Claim  runstore.Version `json:"c,omitempty"`
	Reason string           `json:"r,omitempty"`
	// PutAt is set once the message has moved to another key, in microseconds; before, it is the
	// time of the record's creation.
	PutAt int64 `json:"p,omitempty"`
	// Remember is how long the id of a done message is remembered, from the record's last change on,
	// in microseconds.
	Remember int64 `json:"m,omitempty"`

	id      string
	payload []byte
	version runstore.Version
	updated time.Time
	due     time.Time // of the entry in the queue's index, if the message was found there
}

func (m stored) encode() []byte {
	m.Format = format
	head, err := json.Marshal(m)
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	return append(append(head, '\n'), m.payload...)
}

// decode is the inverse of encode.
func decode(id string, rec runstore.Record) (stored, error) {
	m := stored{id: id, version: rec.Version, updated: rec.Updated.Time}
	head, payload, _ := bytes.Cut(rec.Value, []byte{'\n'})
	if err := json.Unmarshal(head, &m); err != nil {
		return m, &runstore.CorruptError{Cause: fmt.Errorf("message %.64q: %w", id, err)}
	}
	if m.Format != format {
		return m, &runstore.CorruptError{Cause: fmt.Errorf("message %.64q is of format %d, this version reads %d", id, m.Format, format)}
	}
	m.payload = payload
	if m.PutAt == 0 {
		m.PutAt = runstore.Micros(rec.Created.Time)
	}
	return m, nil
}

// delivery returns the state of a message. Only the queue's index has the time from which a message
// can be claimed, which was then judged by the store.
func (m stored) delivery() delivery.State {
	s := delivery.State{
		Phase: delivery.Phase(slices.Index(states[:], m.State)), Due: runstore.At(m.due), Ends: runstore.At(m.due),
		Holder: string(m.Owner), Claim: int64(m.Claim), Attempts: m.Attempts,
	}
	if s.Claim == 0 {
		s.Claim = int64(m.version) // the claim was not extended
	}
	return s
}

func (m stored) message() Message {
	return Message{ID: m.id, Payload: m.payload, Attempts: m.Attempts, Reason: m.Reason, PutAt: runstore.FromMicros(m.PutAt)}
}

// in returns a message in a state.
func (m Message) in(s delivery.State) stored {
	next := stored{
		State: states[s.Phase], Attempts: s.Attempts, Owner: runstore.Owner(s.Holder), Reason: m.Reason, PutAt: runstore.Micros(m.PutAt),
		id: m.ID, payload: m.Payload,
	}
	if s.Phase == delivery.Claimed {
		ttl, _ := s.Ends.Offset()
		next.TTL, next.Claim = ttl.Microseconds(), runstore.Version(s.Claim)
	}
	return next
}

// largest stands for the largest value of a record. Only its length matters.
var largest = make([]byte, MaxPayload+16<<10)

// move adds the writes that put a live message, or a new one, into a state. A live message reserves
// room for the largest later form, so that a store that limits the records in indexes never refuses
// the claim or the end of a message that it took.
func (q *Queue) move(w *runstore.Writes, m Message, s delivery.State) {
	key := liveKey(m.ID)
	switch s.Phase {
	case delivery.Done:
		w.Delete(key)
		q.remember(w, m.ID, runstore.Version(s.Claim))
	case delivery.Dead:
		w.Delete(key)
		w.Put(deadKey(m.ID), m.in(s).encode())
	default:
		places := []runstore.Place{{Index: q.due, At: s.Available()}}
		w.Records = append(w.Records, runstore.RecordWrite{
			Key: key, Value: m.in(s).encode(), Index: places,
			Reserve: []runstore.RecordWrite{{Key: key, Value: largest, Index: places}},
		})
	}
}

// remember adds the write of a done message's id; claim is the one that was acknowledged, or 0.
func (q *Queue) remember(w *runstore.Writes, id string, claim runstore.Version) {
	if q.opts.Remember > 0 {
		w.Put(doneKey(id), stored{State: done, Claim: claim, Remember: q.opts.Remember.Microseconds()}.encode())
	}
}

// batchID returns the id of the batch that ends a claim, so that every repeat has the same.
func batchID(op, id string, claim runstore.Version) runstore.BatchID {
	sum := sha256.Sum256([]byte(id))
	return runstore.BatchID(fmt.Sprintf("%s/%x/%s", op, int64(claim), base64.RawURLEncoding.EncodeToString(sum[:16])))
}
