package tape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// format is the version of the stored form that this package writes, and the highest that it reads.
const format = 1

// envelope is the first line of a stored value: its format, its small fields, and the lengths of
// the bodies that follow the line. Bodies (requests, responses) are stored verbatim after the line,
// because they are JSON texts: as JSON strings they would grow by half.
type envelope struct {
	Format int             `json:"v"`
	Bodies []int           `json:"b,omitempty"`
	Head   json.RawMessage `json:"h"`
}

// encode returns the stored form of head and bodies. head must marshal.
func encode(head any, bodies ...string) []byte {
	e := envelope{Format: format, Head: compactJSON(head)}
	for _, b := range bodies {
		e.Bodies = append(e.Bodies, len(b))
	}
	value := append(compactJSON(e), '\n')
	for _, b := range bodies {
		value = append(value, b...)
	}
	return value
}

// decode is the inverse of encode. Errors match ErrFormat and name the value by what.
func decode(what string, value []byte, head any, bodies ...*string) error {
	line, rest, _ := bytes.Cut(value, []byte{'\n'})
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil {
		return refuse(ErrFormat, "%s is damaged: %v", what, err)
	}
	if e.Format > format {
		return refuse(ErrFormat, "%s is of format %d, this version reads up to %d: upgrade it", what, e.Format, format)
	}
	if e.Format < 1 || len(e.Bodies) != len(bodies) {
		return refuse(ErrFormat, "%s is damaged: format %d with %d bodies", what, e.Format, len(e.Bodies))
	}
	if err := json.Unmarshal(e.Head, head); err != nil {
		return refuse(ErrFormat, "%s is damaged: %v", what, err)
	}
	for i, n := range e.Bodies {
		if n < 0 || n > len(rest) {
			return refuse(ErrFormat, "%s is damaged: body %d is cut short", what, i)
		}
		if !utf8.Valid(rest[:n]) { // it was when it was stored, see checkText
			return refuse(ErrFormat, "%s is damaged: body %d is not UTF-8", what, i)
		}
		*bodies[i], rest = string(rest[:n]), rest[n:]
	}
	if len(rest) > 0 {
		return refuse(ErrFormat, "%s is damaged: %d bytes too many", what, len(rest))
	}
	return nil
}

// compactJSON returns the JSON of v without spaces and without the escapes that only HTML needs.
// Map keys are in alphabetical order.
func compactJSON(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("tape: %T does not marshal: %v", v, err)) // our own types only
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
}
