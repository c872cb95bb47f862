package fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/runstore"
)

const tokenMetadata = "X-Amz-Meta-Fencing-Token"

// fencedObject is an object that the holders of one run replace, in a store that checks no tokens
// but has conditional writes. Each version contains the token under which it was written: in its
// metadata, where a reader finds it, and in its first line, so that no version has the ETag of one
// under another token. Where the store has a generation for each write, as Google Cloud Storage has,
// the metadata are enough.
type fencedObject struct {
	url string
}

// version is a version of the object, as its writer read it.
type version struct {
	etag  string // empty if there is no object
	token runstore.Token
	body  []byte // without the line of the token
}

func (o fencedObject) read(ctx context.Context) (version, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return version{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return version{}, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return version{}, nil
	default:
		return version{}, errors.New(resp.Status)
	}
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return version{}, err
	}
	token, err := strconv.ParseInt(resp.Header.Get(tokenMetadata), 10, 64)
	if err != nil {
		return version{}, fmt.Errorf("an object without a token: %w", err)
	}
	_, body, _ := bytes.Cut(content, []byte("\n"))
	return version{etag: resp.Header.Get("ETag"), token: runstore.Token(token), body: body}, nil
}

// errChanged reports that the object is no longer at the version that the writer read.
var errChanged = errors.New("the object has changed")

// replace writes the successor of a version under a token. It is refused if that version has a
// higher token, and by the store if the object is not at that version any more.
func (o fencedObject) replace(ctx context.Context, over version, token runstore.Token, body []byte) error {
	if over.token > token {
		return &fence.StaleError{Resource: o.url, Presented: token, Current: over.token}
	}
	content := fmt.Appendf(nil, "%d\n%s", token, body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, o.url, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set(tokenMetadata, strconv.FormatInt(int64(token), 10))
	if over.etag == "" {
		req.Header.Set("If-None-Match", "*")
	} else {
		req.Header.Set("If-Match", over.etag)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err // the write may have been applied: read again and compare
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusPreconditionFailed:
		return errChanged
	default:
		return errors.New(resp.Status)
	}
}

// write replaces the object under a token, and reads it again if another write came first.
func (o fencedObject) write(ctx context.Context, token runstore.Token, edit func(body []byte) []byte) error {
	for {
		v, err := o.read(ctx)
		if err != nil {
			return err
		}
		if err := o.replace(ctx, v, token, edit(v.body)); !errors.Is(err, errChanged) {
			return err
		}
	}
}

// announce rewrites the object as it is under the token of a new holder, so that a version which a
// former holder has read is no longer the present one.
func (o fencedObject) announce(ctx context.Context, token runstore.Token) error {
	return o.write(ctx, token, func(body []byte) []byte { return body })
}

// An object store checks no tokens, but its conditional write makes the token a part of the version
// that a write replaces. A former holder that read the object before the takeover is refused by the
// store; when it reads again, it finds the higher token.
func Example_objectStore() {
	ctx := context.Background()
	server := httptest.NewServer(&bucket{})
	defer server.Close()
	report := fencedObject{server.URL + "/report"}

	const tokenA, tokenB = 1, 2
	fmt.Println("agent-a writes:", report.write(ctx, tokenA, func([]byte) []byte { return []byte("draft") }))
	read, err := report.read(ctx)
	fmt.Printf("agent-a reads %q and is paused: %v\n", read.body, err)

	fmt.Println("agent-b takes over and announces:", report.announce(ctx, tokenB))

	fmt.Println("agent-a wakes:", report.replace(ctx, read, tokenA, []byte("draft, late")))
	late := report.write(ctx, tokenA, func([]byte) []byte { return []byte("draft, later") })
	fmt.Println("agent-a tries again, fenced:", errors.Is(late, runstore.ErrFenced))

	last, err := report.read(ctx)
	fmt.Printf("%q under token %v, %v\n", last.body, last.token, err)
	// Output:
	// agent-a writes: <nil>
	// agent-a reads "draft" and is paused: <nil>
	// agent-b takes over and announces: <nil>
	// agent-a wakes: the object has changed
	// agent-a tries again, fenced: true
	// "draft" under token 2, <nil>
}
