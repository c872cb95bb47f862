package tape

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ValueKey identifies a value that all runs share.
type ValueKey struct{ Namespace, Key string }

// Value is one version of a shared value.
type Value struct {
	ValueKey
	// JSON is the text that was written; empty if the value is deleted.
	JSON string
	// Version is 1 for the first write and grows by 1 with each write and deletion. It never
	// restarts.
	Version runstore.Version
	// Updated is when this version was committed.
	Updated time.Time
	// Writer is the last writer. A deletion does not change it.
	Writer string
	// Deleted marks a tombstone.
	Deleted bool
}

// MaxValueNames is the largest sum of a value's namespace, key and writer, in bytes. A value itself
// is limited by its journal entry, which is a JSON text of at most runstore.MaxEventData bytes.
const MaxValueNames = 16 << 10

// A value is a run of its own, which no list of runs shows. Its record "value" has the current
// version. Its journal has one entry for each version; the entry's seq is Tape's version. The
// record's version may be higher: it starts above those of the marks that steps over two runs put
// and deleted.
const (
	valueKey  runstore.RecordKey = "value"
	kindValue string             = "value"
)

// Run returns the id of the value's run, which differs from the id of every run of Tape's.
func (k ValueKey) Run() runstore.RunID { return runstore.RunID("value/" + hashOf(k.Namespace, k.Key)) }

// Check returns an error, which names the field and the limit, if no value can have that key.
func (k ValueKey) Check() error { return k.check("") }

func (k ValueKey) check(writer string) error {
	fields := []field{{"namespace", k.Namespace}, {"key", k.Key}, {"writer", writer}}
	if err := checkText(fields...); err != nil {
		return err
	}
	return checkSize("the names of a value", len(k.Namespace)+len(k.Key)+len(writer), MaxValueNames, fields...)
}

// valueHead is the stored form of a value without its text, which is a body.
type valueHead struct {
	Namespace string `json:"namespace,omitempty"`
	Key       string `json:"key,omitempty"`
	Writer    string `json:"writer,omitempty"`
	Deleted   bool   `json:"deleted,omitempty"`
}

var values = ledger[Value]{decode: valueOf, encode: Value.encode}

func (v Value) encode() ([]byte, []runstore.Place) {
	return encode(valueHead{Namespace: v.Namespace, Key: v.Key, Writer: v.Writer, Deleted: v.Deleted}, v.JSON), nil
}

func valueOf(run runstore.RunID, rec runstore.Record) (Value, error) {
	var head valueHead
	var v Value
	if err := decode(fmt.Sprintf("value %q", run), rec.Value, &head, &v.JSON); err != nil {
		return Value{}, err
	}
	v.ValueKey, v.Writer, v.Deleted = ValueKey{head.Namespace, head.Key}, head.Writer, head.Deleted
	v.Version, v.Updated = runstore.Version(rec.Updated.Seq), rec.Updated.Time
	return v, nil
}

// valueEntry is the payload of a value's journal entry, with its members in alphabetical order.
type valueEntry struct {
	Deleted   bool            `json:"deleted,omitempty"`
	Key       string          `json:"key"`
	Namespace string          `json:"namespace"`
	Value     *valueEntryBody `json:"value,omitempty"` // nil for a deletion
	Version   int64           `json:"version"`
	Writer    string          `json:"writer"`
}

type valueEntryBody struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace"`
	JSON      string `json:"value_json"`
	Version   int64  `json:"version"`
}

// event returns the journal entry of a version.
//
// Errors: runstore.ErrTooLarge if the entry does not fit into an event.
func (v Value) event() (runstore.NewEvent, error) {
	entry := valueEntry{Deleted: v.Deleted, Key: v.Key, Namespace: v.Namespace, Version: int64(v.Version), Writer: v.Writer}
	if !v.Deleted {
		entry.Value = &valueEntryBody{v.Key, v.Namespace, v.JSON, int64(v.Version)}
	}
	data := compactJSON(entry)
	err := checkSize("the journal entry of a value", len(data), runstore.MaxEventData, field{"value_json", v.JSON})
	return runstore.NewEvent{Kind: kindValue, Data: data}, err
}

// ValueOf returns the version of a value that an event of its journal contains.
//
// Errors: ErrFormat for an event of another kind.
func ValueOf(e runstore.Event) (Value, error) {
	var entry valueEntry
	if err := json.Unmarshal(e.Data, &entry); err != nil || e.Kind != kindValue {
		return Value{}, refuse(ErrFormat, "entry %d of a value's journal, of kind %q, is damaged: %v", e.Seq, clip(e.Kind, 32), err)
	}
	v := Value{
		ValueKey: ValueKey{entry.Namespace, entry.Key}, Version: runstore.Version(entry.Version), Updated: e.Time,
		Writer: entry.Writer, Deleted: entry.Deleted,
	}
	if entry.Value != nil {
		v.JSON = entry.Value.JSON
	}
	return v, nil
}
