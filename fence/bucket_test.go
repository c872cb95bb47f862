package fence_test

import (
	"crypto/md5"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"sync"
)

// bucket is an object store in memory with the conditional requests of Amazon S3: GET returns the
// ETag and the metadata of an object; PUT with If-Match replaces the object that has this ETag, and
// with If-None-Match: * creates an object that is absent; else the status is 412. As in S3 the ETag
// is the MD5 of the content, so it does not depend on the metadata.
//
// It stands for a real store: the libraries that run one in process would bring their dependencies
// into this module.
type bucket struct {
	mu      sync.Mutex
	objects map[string]object
}

type object struct {
	content  []byte
	metadata http.Header
}

func (o object) etag() string {
	sum := md5.Sum(o.content)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// ServeHTTP implements http.Handler.
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	stored, exists := b.objects[r.URL.Path]
	switch r.Method {
	case http.MethodGet:
		if !exists {
			http.NotFound(w, r)
			return
		}
		for name, values := range stored.metadata {
			w.Header()[name] = values
		}
		w.Header().Set("ETag", stored.etag())
		_, _ = w.Write(stored.content)
	case http.MethodPut:
		match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
		if match != "" && (!exists || match != stored.etag()) || none == "*" && exists {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		put := object{content: content, metadata: http.Header{}}
		for name, values := range r.Header {
			if strings.HasPrefix(name, "X-Amz-Meta-") {
				put.metadata[name] = values
			}
		}
		if b.objects == nil {
			b.objects = make(map[string]object)
		}
		b.objects[r.URL.Path] = put
		w.Header().Set("ETag", put.etag())
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}
