package inspector

import (
	"encoding/base64"
	"encoding/json"
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

const (
	defaultRows = 50
	// maxRows, 200, is the largest page of rows: about 200 KiB of JSON.
	maxRows = 200
	// maxWait, 30 s, is the longest wait for a change. It is shorter than the idle time after which
	// proxies close a connection.
	maxWait = 30 * time.Second
)

// params are the parameters of a request.
type params struct{ url.Values }

// limit returns the length of the page.
func (p params) limit() (int, error) {
	if !p.Has("limit") {
		return defaultRows, nil
	}
	n, err := strconv.Atoi(p.Get("limit"))
	if err != nil || n < 1 || n > maxRows {
		return 0, badRequest("limit", "%.40q is not a number from 1 to %d", p.Get("limit"), maxRows)
	}
	return n, nil
}

// wait returns how long the request waits for a change.
func (p params) wait() (time.Duration, error) {
	if !p.Has("wait") {
		return 0, nil
	}
	n, err := strconv.Atoi(p.Get("wait"))
	if err != nil || n < 0 || time.Duration(n)*time.Second > maxWait {
		return 0, badRequest("wait", "%.40q is not a number of seconds from 0 to %d", p.Get("wait"), int(maxWait.Seconds()))
	}
	return time.Duration(n) * time.Second, nil
}

// number returns a parameter that is a number of at least 0, or other if it is missing.
func (p params) number(name string, other int64) (int64, error) {
	if !p.Has(name) {
		return other, nil
	}
	n, err := strconv.ParseInt(p.Get(name), 10, 64)
	if err != nil || n < 0 {
		return 0, badRequest(name, "%.40q is not a number from 0 on", p.Get(name))
	}
	return n, nil
}

// time returns a parameter that is a time; zero if it is missing.
func (p params) time(name string) (time.Time, error) {
	if p.Get(name) == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, p.Get(name))
	if err != nil || t.Before(time.UnixMicro(1)) || t.After(runstore.EndOfTime) {
		return time.Time{}, badRequest(name, "%.40q is not a time like 2006-01-02T15:04:05Z", p.Get(name))
	}
	return t, nil
}

// one returns a parameter that is one of some words; other if it is missing.
func (p params) one(name, other string, words ...string) (string, error) {
	word := p.Get(name)
	switch {
	case word == "":
		return other, nil
	case !slices.Contains(words, word):
		return "", badRequest(name, "%.40q is none of %s", word, strings.Join(words, ", "))
	}
	return word, nil
}

// run returns the run that the parameter run refers to.
func (p params) run() (runstore.RunID, error) {
	id, err := fromRef(p.Get("run"))
	if err != nil {
		return "", badRequest("run", "%v", err)
	}
	if err := runstore.CheckRunID(runstore.RunID(id)); err != nil {
		return "", err
	}
	return runstore.RunID(id), nil
}

// listCursor is a cursor of this API: the end of a page, bound to the list that the page is from. A
// cursor of another list would select other rows than the reader expects, so it is refused.
type listCursor struct {
	List uint64 `json:"l"`
	At   []byte `json:"a"` // a cursor of a store may be any bytes
}

// pageParams are the parameters that select a page, and not the list that it is of.
var pageParams = []string{"cursor", "limit", "wait"}

// list returns the identity of the list that the parameters select.
func (p params) list(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash returns no error
	rest := url.Values{}
	for key, values := range p.Values {
		if !slices.Contains(pageParams, key) && strings.Join(values, "") != "" {
			rest[key] = values
		}
	}
	_, _ = h.Write([]byte("?" + rest.Encode()))
	return h.Sum64()
}

// cursor returns the end of the page before, "" for the first page.
func (p params) cursor(name string) (string, error) {
	text := p.Get("cursor")
	if text == "" {
		return "", nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	var c listCursor
	if err != nil || json.Unmarshal(data, &c) != nil || len(c.At) == 0 {
		return "", badRequest("cursor", "is not one that a page ended with")
	}
	if c.List != p.list(name) {
		return "", badRequest("cursor", "belongs to another list, or to the list with another filter")
	}
	return string(c.At), nil
}

// next returns the cursor of the page after one that ends at at.
func (p params) next(name, at string) string {
	data, err := json.Marshal(listCursor{p.list(name), []byte(at)})
	if err != nil {
		return "" // a number and a text always marshal
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// seqCursor returns the seq of a cursor; other if there is no cursor.
func (p params) seqCursor(name string, other runstore.Seq) (runstore.Seq, error) {
	at, err := p.cursor(name)
	if err != nil || at == "" {
		return other, err
	}
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || n < 1 {
		return 0, badRequest("cursor", "is not one that a page ended with")
	}
	return runstore.Seq(n), nil
}
