package inspector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// An id, a key or an owner may be any bytes. References lead back to them, and nothing that is shown
// has a character that a reader could mistake.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for i, name := range []string{
		string(all), "~", "~~", "~AAAA", "/", "//", "?x=1#y", "%2F", "a b", "..", "é", "\u202eevil", "\u2066", "\ufeff", "\xff\xfe", "\x00",
		"<script>alert(1)</script>", `"><svg onload=x>`, "javascript:alert(1)", strings.Repeat("\u202e", 80), "\u2028",
	} {
		if back, err := fromRef(toRef(name)); err != nil || back != name {
			t.Errorf("%q: the reference %q leads to %q, %v", name, toRef(name), back, err)
		}
		spec := runstore.RunSpec{ID: runstore.RunID(name), Lease: &runstore.LeaseSpec{Owner: "o", TTL: time.Minute}}
		spec.Lease.Reactor = runstore.Reactor(strings.ToValidUTF8(name, ""))[:min(len(strings.ToValidUTF8(name, "")), 60)]
		spec.Writes.Append("kind", []byte(name))
		spec.Writes.Put(runstore.RecordKey(name), []byte(name))
		held := b.create(spec)
		ref := toRef(name)
		run := read[runView](b, "run", "run", ref)
		if run.Run.Ref != ref || run.Run.Lease.Token != int64(held.Token) {
			t.Errorf("%d: got run %q", i, run.Run.Ref)
		}
		for _, path := range []string{"run", "timeline", "records", "terms", "summary"} {
			status, body := b.get(path, "run", ref)
			var decoded any
			if err := json.Unmarshal([]byte(body), &decoded); status != 200 || err != nil {
				t.Errorf("%s of %q: status %d, %v", path, name, status, err)
			}
			if bad := mistakable.FindString(texts(decoded)); bad != "" {
				t.Errorf("%s of %q shows %q", path, name, bad)
			}
		}
		if status, body := b.get("value", "run", ref, "record", ref); status != 200 || body != name {
			t.Errorf("the record of %q: status %d, %q", name, status, body)
		}
	}
	for _, path := range []string{"runs", "feed"} {
		status, body := b.get(path, "limit", "200")
		var decoded any
		if err := json.Unmarshal([]byte(body), &decoded); status != 200 || err != nil || mistakable.MatchString(texts(decoded)) {
			t.Errorf("%s: status %d, %v, %s", path, status, err, body)
		}
	}
}

// mistakable matches control characters but line breaks and tabs, invisible ones and those that change
// the direction of writing.
var mistakable = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{2069}\x{feff}\x{fffd}]`)

// texts returns all texts of a decoded JSON value.
func texts(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		all := ""
		for _, e := range v {
			all += texts(e) + "|"
		}
		return all
	case map[string]any:
		all := ""
		for _, e := range v {
			all += texts(e) + "|"
		}
		return all
	}
	return ""
}

// Previews of every value are short; the whole value is served as bytes that no browser
// interprets.
func TestValues(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	html := []byte("<script>alert(1)</script>" + strings.Repeat("é", 5000))
	spec := runstore.RunSpec{ID: "r"}
	spec.Writes.Append("html", html)
	spec.Writes.Append("binary", append([]byte("text\x00"), make([]byte, 1000)...))
	spec.Writes.Append("odd", []byte(strings.Repeat("x", previewBytes-1)+"é"+"tail"))
	b.create(spec)
	page := read[timelineView](b, "timeline", "run", "r", "order", "oldest")
	if c := page.Items[0].Event.Data; c.Bytes != len(html) || !c.Cut || len(c.Text) > previewBytes || !strings.HasPrefix(c.Text, "<script>") {
		t.Errorf("the text: %+v", c)
	}
	if c := page.Items[1].Event.Data; c.Text != "" || !strings.HasPrefix(c.Binary, "74 65 78 74 00 00") || !c.Cut || c.Bytes != 1005 {
		t.Errorf("the binary value: %+v", c)
	}
	if c := page.Items[2].Event.Data; c.Text != strings.Repeat("x", previewBytes-1) || !c.Cut {
		t.Errorf("a character at the cut: %+v", c)
	}
	w := b.do(request("GET", "/api/value?run=r&seq=1", nil))
	if w.Code != 200 || w.Body.String() != string(html) {
		t.Errorf("status %d, %d bytes", w.Code, w.Body.Len())
	}
	for name, want := range map[string]string{
		"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": policy,
		"Content-Disposition": `attachment; filename="value.bin"`, "Cache-Control": "no-store",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A reader of the inspector gets no fence: records with ids of grants are not shown.
func TestGrantsAreSecret(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	key := tape.RunKey{App: "a", User: "u", Session: "s", Invocation: "i"}
	begun, err := tape.New(b.store, nil).BeginRun(t.Context(), tape.BeginRunRequest{Key: key, Owner: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	b.create(runstore.RunSpec{ID: "r"})
	secretBatch := runstore.NewBatch("r", runstore.Unguarded("test"))
	secretBatch.Put(lease.HandoffKey, []byte(`{"grant":"`+string(begun.Lease.Grant)+`"}`))
	b.commit(secretBatch)
	for _, run := range []string{string(key.ID()), "r"} {
		records := 0
		for _, path := range []string{"run", "timeline", "records", "summary", "terms"} {
			status, body := b.get(path, "run", run)
			if status != 200 || strings.Contains(body, string(begun.Lease.Grant)) {
				t.Errorf("%s of %s: status %d: %s", path, run, status, body)
			}
			records += strings.Count(body, `"hidden":true`)
		}
		if records != 2 { // in the timeline and in the list
			t.Errorf("%s: %d records are hidden", run, records)
		}
	}
	for run, key := range map[string]string{string(key.ID()): "grant", "r": string(lease.HandoffKey)} {
		if status, body := b.get("value", "run", run, "record", key); status != http.StatusForbidden || strings.Contains(body, string(begun.Lease.Grant)) {
			t.Errorf("the value of %s: status %d: %s", key, status, body)
		}
	}
}

// A page of another site reaches nothing, under any name.
func TestForeignRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.create(runstore.RunSpec{ID: "r"})
	for _, c := range []struct {
		name, method, target string
		change               func(*http.Request)
		status               int
	}{
		{"a program", "GET", "/api/runs", func(*http.Request) {}, 200},
		{"the page", "GET", "/api/runs", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, 200},
		{"the address bar", "GET", "/", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, 200},
		{"a link of another site", "GET", "/", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 200},
		{"localhost", "GET", "/api/runs", func(r *http.Request) { r.Host = "localhost:9" }, 200},
		{"IPv6", "GET", "/api/runs", func(r *http.Request) { r.Host = "[::1]:9" }, 200},
		{"no port", "GET", "/api/runs", func(r *http.Request) { r.Host = "127.8.0.1" }, 200},
		{"DNS rebinding", "GET", "/api/runs", func(r *http.Request) { r.Host = "evil.example:8080" }, 421},
		{"DNS rebinding of the page", "GET", "/", func(r *http.Request) { r.Host = "evil.example" }, 421},
		{"a name like localhost", "GET", "/api/runs", func(r *http.Request) { r.Host = "localhost.evil.example" }, 421},
		{"a name like an address", "GET", "/api/runs", func(r *http.Request) { r.Host = "127.0.0.1.evil.example" }, 421},
		{"another address", "GET", "/api/runs", func(r *http.Request) { r.Host = "192.168.1.1" }, 421},
		{"no host", "GET", "/api/runs", func(r *http.Request) { r.Host = "" }, 421},
		{"a script of another site", "GET", "/api/runs", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"a script of another port", "GET", "/api/runs", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		{"a write to a read", "POST", "/api/runs", func(*http.Request) {}, 404},
		{"a write to the page", "POST", "/", func(*http.Request) {}, 405},
		{"a preflight", "OPTIONS", "/api/break", func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, 404},
		{"a file outside", "GET", "/../doc.go", func(*http.Request) {}, 307},
		{"no such file", "GET", "/page/index.html", func(*http.Request) {}, 404},
	} {
		r := request(c.method, c.target, nil)
		c.change(r)
		w := b.do(r)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, w.Code, c.status, w.Body)
		}
		for _, header := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods"} {
			if w.Header().Get(header) != "" {
				t.Errorf("%s: the response has %s", c.name, header)
			}
		}
		if w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s: no policy", c.name)
		}
	}
}

// A lease is broken only by a request that has everything, and then with the name and the reason in
// the journal.
func TestBreak(t *testing.T) {
	t.Parallel()
	access := Access{Permission: Break}
	b := newBench(t, &Options{Authorize: func(*http.Request) (Access, error) { return access, nil }})
	b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}})
	b.create(runstore.RunSpec{ID: "free"})
	const good = `{"run":"r","token":"1","operator":"ada","reason":"it loops"}`
	send := func(body string, change func(*http.Request)) *httptest.ResponseRecorder {
		r := request("POST", "/api/break", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
		r.Header.Set("X-Tapestore-Inspector", "break")
		r.Header.Set("Origin", "http://127.0.0.1:8080")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		if change != nil {
			change(r)
		}
		return b.do(r)
	}
	for _, c := range []struct {
		name, body string
		change     func(*http.Request)
		access     Access
		status     int
		says       string
	}{
		{"no permission", good, nil, Access{Permission: Read}, 403, "does not permit to break"},
		{"another operator", good, nil, Access{Permission: Break, Operator: "bob"}, 400, "you are signed in as bob"},
		{"no header", good, func(r *http.Request) { r.Header.Del("X-Tapestore-Inspector") }, access, 403, "lacks the header"},
		{"a form", good, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, access, 415, "application/json"},
		{"no type", good, func(r *http.Request) { r.Header.Del("Content-Type") }, access, 415, "application/json"},
		{"another site", good, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, access, 403, "another site"},
		{"another port", good, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, access, 403, "another site"},
		{"an old browser on another site", good, func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "http://evil.example")
		}, access, 403, "another site"},
		{"an opaque origin", good, func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "null") }, access, 403, "another site"},
		{"DNS rebinding", good, func(r *http.Request) { r.Host = "evil.example" }, access, 421, "Host"},
		{"GET", good, func(r *http.Request) { r.Method = "GET" }, access, 404, ""},
		{"no token", `{"run":"r","operator":"ada","reason":"x"}`, nil, access, 400, "token: "},
		{"token 0", `{"run":"r","token":"0","operator":"ada","reason":"x"}`, nil, access, 400, "token: "},
		{"a number", `{"run":"r","token":1,"operator":"ada","reason":"x"}`, nil, access, 400, "body: "},
		{"no name", `{"run":"r","token":"1","reason":"x"}`, nil, access, 400, "operator"},
		{"no reason", `{"run":"r","token":"1","operator":"ada"}`, nil, access, 400, "reason"},
		{"a long reason", `{"run":"r","token":"1","operator":"ada","reason":"` + strings.Repeat("x", 257) + `"}`, nil, access, 400, "256"},
		{"whoever", `{"run":"r","token":"1","operator":"ada","reason":"x","whoever":true}`, nil, access, 400, "body: "},
		{"a huge body", `{"run":"` + strings.Repeat("x", maxBreakBody) + `"}`, nil, access, 400, "body: "},
		{"no run", `{"token":"1","operator":"ada","reason":"x"}`, nil, access, 400, "run id"},
		{"another run", `{"run":"other","token":"1","operator":"ada","reason":"x"}`, nil, access, 404, "not found"},
		{"a token to come", `{"run":"r","token":"2","operator":"ada","reason":"x"}`, nil, access, 409, "behind"},
		{"a free lease", `{"run":"free","token":"1","operator":"ada","reason":"x"}`, nil, access, 409, ""},
	} {
		before := access
		access = c.access
		w := send(c.body, c.change)
		access = before
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: status %d, want %d: %s", c.name, w.Code, c.status, w.Body)
		}
	}
	if head, err := b.store.GetRun(t.Context(), "r"); err != nil || head.Token != 1 || head.Holder.Owner != "agent" || head.LastSeq != 0 {
		t.Fatalf("a refused request changed the run: %+v, %v", head, err)
	}

	w := send(good, nil)
	var broken brokenView
	if err := json.Unmarshal(w.Body.Bytes(), &broken); w.Code != 200 || err != nil || broken.From != "agent" || !broken.Live || broken.Token != 2 || broken.Seq != 1 {
		t.Fatalf("status %d: %s, %v", w.Code, w.Body, err)
	}
	events, err := b.store.ReadJournal(t.Context(), "r", 1, 10)
	if err != nil || len(events) != 1 {
		t.Fatal(events, err)
	}
	if entry, ok := lease.ParseBreak(events[0].Data); !ok || entry.Operator != "ada" || entry.Reason != "it loops" || entry.Broken != 1 {
		t.Errorf("the journal has %+v", entry)
	}
	if !strings.Contains(b.log.String(), "a lease was broken") || !strings.Contains(b.log.String(), "operator=ada") {
		t.Errorf("the log: %s", b.log)
	}
	if w := send(good, nil); w.Code != 409 || !strings.Contains(w.Body.String(), `"kind":"moved"`) || !strings.Contains(w.Body.String(), `"token":2`) {
		t.Errorf("again: status %d: %s", w.Code, w.Body)
	}
	if w := send(strings.Replace(good, `"1"`, `"2"`, 1), nil); w.Code != 409 || !strings.Contains(w.Body.String(), `"kind":"free"`) {
		t.Errorf("the free lease: status %d: %s", w.Code, w.Body)
	}
}

// The hook decides about the API, and nothing else; its errors do not reach the client.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	var access Access
	var refusal error
	b := newBench(t, &Options{Authorize: func(*http.Request) (Access, error) { return access, refusal }})
	for _, c := range []struct {
		access Access
		err    error
		status int
		says   string
	}{
		{Access{}, ErrUnauthenticated, 401, "a token is needed"},
		{Access{Permission: Break}, fmt.Errorf("the token has expired: %w", ErrUnauthenticated), 401, "a token is needed"},
		{Access{}, ErrForbidden, 403, "does not permit"},
		{Access{}, nil, 403, "does not permit"},
		{Access{Permission: Break}, ErrTooMany, 429, `"kind":"busy"`},
		{Access{Permission: Break}, errors.New("issuer https://secret.internal: no route"), 503, "cannot be checked now"},
		{Access{Permission: Read}, nil, 200, `"break":false`},
		{Access{Permission: Break, Operator: "ada"}, nil, 200, `"operator":"ada"`},
	} {
		access, refusal = c.access, c.err
		for _, path := range []string{"about", "runs", "value", "break"} {
			w := b.do(request(map[bool]string{true: "POST", false: "GET"}[path == "break"], "/api/"+path, nil))
			if path == "about" && (w.Code != c.status || !strings.Contains(w.Body.String(), c.says)) || c.status >= 400 && w.Code != c.status {
				t.Errorf("%s with %v, %v: status %d: %s", path, c.access, c.err, w.Code, w.Body)
			}
			if strings.Contains(w.Body.String(), "secret") || (w.Code == 401) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
				t.Errorf("%s with %v: %v %s", path, c.err, w.Header(), w.Body)
			}
		}
		if w := b.do(request("GET", "/", nil)); w.Code != 200 {
			t.Errorf("the page with %v: status %d", c.err, w.Code)
		}
	}
	if w := New(b.store, nil); w == nil {
		t.Fatal()
	} else { // without a hook a request may read and not break
		b.handler = w
		if status, body := b.get("about"); status != 200 || !strings.Contains(body, `"break":false`) {
			t.Errorf("without a hook: %d %s", status, body)
		}
	}
}

// failing is a store whose reads fail.
type failing struct {
	runstore.RunStore
	err error
}

func (f failing) Now(context.Context) (time.Time, error) { return time.Time{}, f.err }

// The text of an error of the engine goes to the log, not to the client.
func TestStoreErrors(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for _, c := range []struct {
		err    error
		status int
		says   string
		logged bool
	}{
		{&runstore.OpError{Op: "now", Err: runstore.ErrUnavailable, Cause: errors.New("dial db.internal:5432 password=hunter2")}, 503, "the store cannot be read now", true},
		{errors.New("db.internal"), 503, "the store cannot be read now", true},
		{&runstore.OpError{Op: "now", Err: runstore.ErrUnavailable, Cause: context.DeadlineExceeded}, 504, "did not answer within", true},
		{&runstore.CorruptError{Run: "r\u202e", Cause: errors.New("a byte is missing")}, 500, `r\\u202e`, false},
	} {
		b.log.Reset()
		b.handler = New(failing{b.store, c.err}, &Options{Logger: slog.New(slog.NewTextHandler(b.log, nil))})
		status, body := b.get("queues")
		if status != c.status || !strings.Contains(body, c.says) || strings.Contains(body, "internal") || c.logged != strings.Contains(b.log.String(), "a request failed") {
			t.Errorf("%v: status %d: %s; the log: %s", c.err, status, body, b.log)
		}
	}
}

// damaged is a store in which the records, or the journals, of runs are damaged.
type damaged struct {
	runstore.RunStore
	records, journals bool
}

var errDamaged = &runstore.CorruptError{Run: "r", Cause: errors.New("a byte is missing")}

func (d damaged) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if d.records {
		return nil, errDamaged
	}
	return d.RunStore.ReadRecords(ctx, id, q)
}

func (d damaged) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	if d.journals {
		return nil, errDamaged
	}
	return d.RunStore.ReadJournal(ctx, id, from, limit)
}

// A damaged part of a run does not hide the holder, nor the other parts.
func TestDamage(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	spec := runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}}
	spec.Writes.Append("k", nil)
	b.create(spec)
	b.handler = New(damaged{RunStore: b.store, records: true}, nil)
	if v := read[timelineView](b, "timeline", "run", "r"); len(v.Items) != 1 || !strings.Contains(v.RecordsError, "a byte is missing") {
		t.Errorf("the timeline: %+v", v)
	}
	b.handler = New(damaged{RunStore: b.store, journals: true}, nil)
	if v := read[runView](b, "run", "run", "r"); v.Run.Lease.Owner != "agent" || len(v.Problems) != 1 || v.Problems[0].Level != levelBad || v.Problems[0].What != "journal" {
		t.Errorf("the run: %+v", v)
	}
	if status, body := b.get("timeline", "run", "r"); status != 500 || !strings.Contains(body, "a byte is missing") {
		t.Errorf("the damaged journal: status %d: %s", status, body)
	}
}

// The page is complete, loads nothing from elsewhere and builds no markup of texts.
func TestPageFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	files := map[string]string{}
	err := fs.WalkDir(pageFiles, "page", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		w := b.do(request("GET", strings.TrimPrefix(name, "page"), nil))
		files[name] = w.Body.String()
		if media := types[path.Ext(name)]; media == "" || w.Code != 200 || w.Header().Get("Content-Type") != media {
			t.Errorf("%s: status %d, type %q", name, w.Code, w.Header().Get("Content-Type"))
		}
		again := request("GET", strings.TrimPrefix(name, "page"), nil)
		again.Header.Set("If-None-Match", w.Header().Get("ETag"))
		if w := b.do(again); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s again: status %d, %d bytes", name, w.Code, w.Body.Len())
		}
		return nil
	})
	if err != nil || len(files) < 10 {
		t.Fatal(len(files), err)
	}
	if w := b.do(request("GET", "/", nil)); w.Body.String() != files["page/index.html"] {
		t.Error("/ is not the page")
	}
	elsewhere := regexp.MustCompile(`(?i)(https?:)?//[a-z]`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\b|new Function|setTimeout\(["']|\.srcdoc|\.style\b|javascript:`)
	inline := regexp.MustCompile(`(?i)<script>|<style|\son[a-z]+=|\sstyle=`)
	imports := regexp.MustCompile(`from "\./([^"]+)"`)
	for name, text := range files {
		if strings.HasSuffix(name, ".js") {
			if found := markup.FindString(text); found != "" {
				t.Errorf("%s has %q", name, found)
			}
			for _, m := range imports.FindAllStringSubmatch(text, -1) {
				if files["page/js/"+m[1]] == "" {
					t.Errorf("%s imports %s, which is missing", name, m[1])
				}
			}
		}
		if found := elsewhere.FindString(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "")); found != "" {
			t.Errorf("%s has the address %q", name, found)
		}
		if found := inline.FindString(text); found != "" && !strings.HasSuffix(name, ".js") {
			t.Errorf("%s has %q, which the policy refuses", name, found)
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^#"]+)"`).FindAllStringSubmatch(files["page/index.html"], -1) {
		if files["page/"+m[1]] == "" {
			t.Errorf("the page refers to %s, which is missing", m[1])
		}
	}
	if total := len(strings.Join(slices.Collect(maps.Values(files)), "")); total > 80<<10 {
		t.Errorf("the files of the page have %d bytes", total)
	}
}
