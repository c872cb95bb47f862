package inspector

import (
	"context"
	"net/http"
	"strconv"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// value serves the whole of a value, as bytes that no browser interprets: the data of an event (seq),
// the value of a record (record), or a body of the row in it (part).
func (in *inspector) value(w http.ResponseWriter, r *http.Request) {
	release, err := take(in.requests)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		in.refuse(w, r, err)
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), in.opts.Timeout)
	defer cancel()
	data, err := in.readValue(ctx, params{Values: r.URL.Query()})
	if err != nil {
		in.refuse(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="value.bin"`)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // the client may be gone
}

func (in *inspector) readValue(ctx context.Context, p params) ([]byte, error) {
	id, err := p.run()
	if err != nil {
		return nil, err
	}
	missing := &apiError{Status: http.StatusNotFound, Kind: "not found", Message: "the run has no such event or record, or not any longer"}
	switch {
	case p.Has("seq") == p.Has("record"):
		return nil, badRequest("seq, record", "name one of them")
	case p.Has("seq"):
		seq, err := p.number("seq", 0)
		if err != nil {
			return nil, err
		}
		events, err := in.store.ReadJournal(ctx, id, runstore.Seq(seq), 1)
		if err != nil {
			return nil, err
		}
		if len(events) == 0 || events[0].Seq != runstore.Seq(seq) {
			return nil, missing
		}
		return events[0].Data, nil
	}
	key, err := fromRef(p.Get("record"))
	if err != nil {
		return nil, badRequest("record", "%v", err)
	}
	if secret(runstore.RecordKey(key)) {
		return nil, &apiError{Status: http.StatusForbidden, Kind: "secret", Message: "the record has the id of a grant, which is shown to no reader"}
	}
	records, err := in.store.ReadRecords(ctx, id, runstore.RecordQuery{Keys: []runstore.RecordKey{runstore.RecordKey(key)}})
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, missing
	}
	if !p.Has("part") {
		return records[0].Value, nil
	}
	row, err := tape.RowOf(id, records[0])
	if err != nil {
		return nil, &apiError{Status: http.StatusConflict, Kind: "format", Message: "the record is not in Tape's format"}
	}
	if text, ok := bodyOf(row, p.Get("part")); ok {
		return []byte(text), nil
	}
	return nil, badRequest("part", "%.40q is none of the record's", p.Get("part"))
}

// bodyOf returns a text that a row stores verbatim.
func bodyOf(row any, part string) (text string, ok bool) {
	var bodies map[string]string
	switch r := row.(type) {
	case tape.Decision:
		bodies = map[string]string{"request": r.Request, "response": r.Response, "rationale": r.Rationale}
	case tape.Effect:
		bodies = map[string]string{"request": r.Request, "response": r.Response, "error": r.Error}
	case tape.Obligation:
		bodies = map[string]string{"payload": r.Payload, "result": r.Result}
	case tape.Gate:
		bodies = map[string]string{"context": r.Context, "resolution": r.Resolution}
	case tape.Timer:
		bodies = map[string]string{"payload": r.Payload}
	case tape.Session:
		bodies = map[string]string{"state": r.State}
	}
	text, ok = bodies[part]
	return text, ok
}
