package inspector

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed page
var pageFiles embed.FS

// types are the types of the files of the page.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// asset is a file of the page.
type asset struct {
	data      []byte
	mediaType string
	etag      string
}

// pageHandler serves the files of the page, which contain nothing of the store. A browser asks each
// time whether a file has changed, so that a new version of the program is seen at once.
func pageHandler() http.Handler {
	assets := map[string]asset{}
	err := fs.WalkDir(pageFiles, "page", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := pageFiles.ReadFile(name)
		sum := sha256.Sum256(data)
		assets[strings.TrimPrefix(name, "page")] = asset{data, types[path.Ext(name)], `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
		return err
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	assets["/"] = assets["/index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := assets[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page can be read only", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", a.etag)
		h.Set("Content-Type", a.mediaType)
		if r.Header.Get("If-None-Match") == a.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(a.data) // the client may be gone
	})
}
