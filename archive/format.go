package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/runstore"
)

// Format is the version of the format that this package writes. It reads no later one.
const Format = 1

// StatusImporting is the status of a run whose import has not finished. No layer above the store gives
// a run this status.
const StatusImporting runstore.Status = math.MinInt32

// maxLine bounds a line of an archive, 16 MiB: a record's value of the largest size takes 8 MiB if each
// byte is escaped by a second one.
const maxLine = 16 << 20

// line is one line of an archive. Exactly one field is set.
type line struct {
	Header  *header  `json:"header,omitempty"`
	Run     *run     `json:"run,omitempty"`
	Record  *record  `json:"record,omitempty"`
	Event   *event   `json:"event,omitempty"`
	End     *end     `json:"end,omitempty"`
	Discard *discard `json:"discard,omitempty"`
	Close   *closing `json:"close,omitempty"`
}

// header is the first line of each file of an archive.
type header struct {
	Format  int    `json:"format"`
	Archive string `json:"archive"` // a random id, the same in all files
	Part    int    `json:"part"`    // from 1
	// Previous is the sum of the last line of the previous file.
	Previous string `json:"previous,omitempty"`
	Source   string `json:"source,omitempty"`
	// Epoch is the highest epoch of the source, Epochs all of them.
	Epoch  int64   `json:"epoch"`
	Epochs []epoch `json:"epochs,omitempty"`
	Time   int64   `json:"time"` // on the clock of the source
}

type epoch struct {
	Epoch  int64 `json:"epoch"`
	At     int64 `json:"at"`
	Reason text  `json:"reason"`
}

type run struct {
	ID       text  `json:"id"`
	Status   int32 `json:"status"`
	Unlisted bool  `json:"unlisted,omitempty"`
	Created  int64 `json:"created"`
	Runnable int64 `json:"runnable,omitempty"`
	LastSeq  int64 `json:"last_seq"`
	Token    int64 `json:"token"`
	Floor    int64 `json:"floor,omitempty"`
}

type record struct {
	Key     text    `json:"key"`
	Version int64   `json:"version"`
	Created stamp   `json:"created"`
	Updated stamp   `json:"updated"`
	Index   []place `json:"index,omitempty"`
	Value   text    `json:"value"`
}

type stamp struct {
	Seq   int64 `json:"seq"`
	Time  int64 `json:"time"`
	Token int64 `json:"token,omitempty"`
}

type place struct {
	Index text  `json:"index"`
	At    int64 `json:"at"`
}

type event struct {
	Seq   int64 `json:"seq"`
	Kind  text  `json:"kind"`
	Time  int64 `json:"time"`
	Token int64 `json:"token,omitempty"`
	Owner text  `json:"owner,omitempty"`
	Data  text  `json:"data"`
}

type end struct {
	ID      text   `json:"id"`
	Records int64  `json:"records"`
	Events  int64  `json:"events"`
	Digest  string `json:"digest"`
}

type discard struct {
	ID text `json:"id"`
}

// closing is the last line of each file. The counts include those of the files before.
type closing struct {
	Counts
	// After is the last run of which the file has decided, in the order of the source's ScanRuns.
	After text `json:"after"`
	Last  bool `json:"last"`
}

// Counts are the numbers of what an archive has, or of what was compared.
type Counts struct {
	Runs    int64 `json:"runs"`
	Records int64 `json:"records"`
	Events  int64 `json:"events"`
}

// text is a string of any bytes.
type text string

// MarshalJSON implements json.Marshaler: a string, or {"b64":"…"} for bytes that a JSON string cannot
// hold, or only at several times their size.
func (t text) MarshalJSON() ([]byte, error) {
	if !t.plain() {
		return []byte(`{"b64":"` + base64.StdEncoding.EncodeToString([]byte(t)) + `"}`), nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(string(t))
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func (t text) plain() bool {
	if !utf8.ValidString(string(t)) {
		return false
	}
	for i := range len(t) {
		if t[i] < ' ' && t[i] != '\n' && t[i] != '\t' && t[i] != '\r' {
			return false
		}
	}
	return true
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	var encoded struct {
		B64 []byte `json:"b64"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&encoded); err != nil {
		return err
	}
	*t = text(encoded.B64)
	return nil
}

// encode returns a line without its sum: the JSON object up to its last brace.
func (l line) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("}\n")), nil
}

// sumLength is the length of a sum: half of a SHA-256 in hexadecimal digits.
const sumLength = sha256.Size

// sumOf returns the sum of a line whose encoding is body and that follows a line with the sum before.
func sumOf(before string, body []byte) string {
	h := sha256.New()
	h.Write([]byte(before))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil)[:sumLength/2])
}

// The end of a line: sumKey, the sum, sumEnd.
const (
	sumKey = `,"sum":"`
	sumEnd = `"}`
)

func stampLine(s runstore.Stamp) stamp {
	return stamp{int64(s.Seq), runstore.Micros(s.Time), int64(s.Token)}
}

func (s stamp) value() runstore.Stamp {
	return runstore.Stamp{Seq: runstore.Seq(s.Seq), Time: runstore.FromMicros(s.Time), Token: runstore.Token(s.Token)}
}

func recordLine(r runstore.PlacedRecord) *record {
	l := &record{
		Key: text(r.Key), Version: int64(r.Version), Value: text(r.Value), Created: stampLine(r.Created), Updated: stampLine(r.Updated),
	}
	for _, p := range sortedPlaces(r.Index) {
		l.Index = append(l.Index, place{text(p.Index), runstore.Micros(p.At.Resolve(time.Time{}))})
	}
	return l
}

func (r *record) value() runstore.PlacedRecord {
	v := runstore.PlacedRecord{Record: runstore.Record{
		Key: runstore.RecordKey(r.Key), Version: runstore.Version(r.Version), Value: []byte(r.Value), Created: r.Created.value(), Updated: r.Updated.value(),
	}}
	for _, p := range r.Index {
		v.Index = append(v.Index, runstore.Place{Index: runstore.IndexName(p.Index), At: runstore.At(runstore.FromMicros(p.At))})
	}
	return v
}

func eventLine(e runstore.Event) *event {
	return &event{int64(e.Seq), text(e.Kind), runstore.Micros(e.Time), int64(e.Token), text(e.Owner), text(e.Data)}
}

func (e *event) value() runstore.Event {
	return runstore.Event{
		Seq: runstore.Seq(e.Seq), Kind: string(e.Kind), Data: []byte(e.Data), Time: runstore.FromMicros(e.Time),
		Token: runstore.Token(e.Token), Owner: runstore.Owner(e.Owner),
	}
}

// head is the state of a run without its records and its journal.
type head struct {
	runstore.Run
	Floor runstore.Version
}

func runLine(h head) *run {
	return &run{
		text(h.ID), int32(h.Status), h.Unlisted, runstore.Micros(h.CreatedAt), runstore.Micros(h.RunnableAt), int64(h.LastSeq), int64(h.Token), int64(h.Floor),
	}
}

func (r *run) value() head {
	return head{runstore.Run{
		ID: runstore.RunID(r.ID), Status: runstore.Status(r.Status), Unlisted: r.Unlisted, CreatedAt: runstore.FromMicros(r.Created),
		RunnableAt: runstore.FromMicros(r.Runnable), LastSeq: runstore.Seq(r.LastSeq), Token: runstore.Token(r.Token),
	}, runstore.Version(r.Floor)}
}
