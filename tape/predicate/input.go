package predicate

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"weak"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"

	"github.com/tapestore/tapestore/tape"
)

// Input is an entry in the form that predicates evaluate.
type Input struct {
	// Entry is the entry. It must not change.
	Entry tape.Entry

	mu     sync.Mutex // held while the payload is parsed, so that it is parsed once
	parsed weak.Pointer[payload]
}

// payload is the parsed payload of an entry.
type payload struct{ value ref.Val }

// NewInput returns the input of an entry.
func NewInput(e tape.Entry) *Input { return &Input{Entry: e} }

// ResolveName implements CEL's activation.
func (in *Input) ResolveName(name string) (any, bool) {
	e := &in.Entry
	switch name {
	case "global_seq":
		return types.Int(e.Position), true
	case "seq":
		return types.Int(e.Seq), true
	case "ts_ms":
		return types.Int(e.Time.UnixMilli()), true
	case "schema_version":
		return types.Int(1), true
	case "run_id":
		return types.String(e.Run), true
	case "kind":
		return types.String(e.Kind), true
	case "subject":
		return types.String(e.Subject), true
	case "trace_id":
		return types.String(""), true
	case "payload":
		return in.payload().value, true
	default:
		return nil, false
	}
}

// Parent implements CEL's activation.
func (in *Input) Parent() interpreter.Activation { return nil }

// payload returns the parsed payload.
func (in *Input) payload() *payload {
	in.mu.Lock()
	defer in.mu.Unlock()
	if p := in.parsed.Value(); p != nil {
		return p
	}
	p := &payload{parse(in.Entry.Payload)}
	in.parsed = weak.Make(p)
	return p
}

// parse returns the value of a text of JSON, and null for any other text.
func parse(text string) ref.Val {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var v any
	if decoder.Decode(&v) != nil {
		return types.NullValue
	}
	if _, err := decoder.Token(); err != io.EOF {
		return types.NullValue
	}
	return valueOf(v)
}

func valueOf(v any) ref.Val {
	switch v := v.(type) {
	case bool:
		return types.Bool(v)
	case string:
		return types.String(v)
	case json.Number:
		return number(v.String())
	case []any:
		all := make([]ref.Val, len(v))
		for i, e := range v {
			all[i] = valueOf(e)
		}
		return types.NewRefValList(types.DefaultTypeAdapter, all)
	case map[string]any:
		for k, e := range v {
			v[k] = valueOf(e)
		}
		keys := slices.Sorted(maps.Keys(v))
		return object{types.NewStringInterfaceMap(types.DefaultTypeAdapter, v), types.NewStringList(types.DefaultTypeAdapter, keys)}
	default:
		return types.NullValue
	}
}

// object is a map with an order of its keys: the sorted order for a JSON object, and the order of the
// text for a map in an expression. The iterators of CEL's own maps have a random order, and each of them
// copies all keys, however few are used.
type object struct {
	traits.Mapper
	keys traits.Lister
}

// Iterator implements traits.Iterable.
func (o object) Iterator() traits.Iterator { return o.keys.Iterator() }

// number returns the value of a number. An integer that does not fit into 64 bits is a double.
func number(text string) ref.Val {
	if !strings.ContainsAny(text, ".eE") {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return types.Int(n)
		}
	}
	f, _ := strconv.ParseFloat(text, 64) // infinite beyond the range of a double
	return types.Double(f)
}
