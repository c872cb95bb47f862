package fence_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// With the token in the metadata alone, an announcement does not change the ETag, and the write of a
// former holder passes. That is why the example has the token in the content, too.
func TestMetadataAloneDoNotFence(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&bucket{})
	t.Cleanup(server.Close)
	put := func(token, content, match string) (status int, etag string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/report", strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(tokenMetadata, token)
		if match != "" {
			req.Header.Set("If-Match", match)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("ETag")
	}
	_, read := put("1", "draft", "")
	if status, _ := put("2", "draft", read); status != http.StatusOK {
		t.Fatalf("announcement: status %d", status)
	}
	if status, _ := put("1", "late", read); status != http.StatusOK {
		t.Errorf("status %d: the ETag depends on the metadata, unlike that of S3", status)
	}
}

// Holders that write at the same time lose no update, and tokens never decrease.
func TestObjectStoreRaces(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&bucket{})
	t.Cleanup(server.Close)
	o := fencedObject{server.URL + "/log"}
	var mu sync.Mutex
	written := map[runstore.Token]bool{}
	var wg sync.WaitGroup
	for token := range runstore.Token(6) {
		wg.Go(func() {
			err := o.write(t.Context(), token+1, func(body []byte) []byte { return fmt.Appendf(body, "%d", token+1) })
			mu.Lock()
			defer mu.Unlock()
			written[token+1] = err == nil
		})
	}
	wg.Wait()
	last, err := o.read(t.Context())
	if err != nil || last.token != 6 || !slices.IsSorted(last.body) {
		t.Errorf("got %+v, %v; want growing tokens up to 6", last, err)
	}
	for token, ok := range written {
		if got := strings.Count(string(last.body), fmt.Sprint(int64(token))); ok != (got == 1) {
			t.Errorf("token %v: written %v, and %d times in %q", token, ok, got, last.body)
		}
	}
}
