// Package bucket opens object stores as targets of package retain, by URL, through gocloud.dev/blob. It is
// a separate package so that programs that import package retain do not depend on the clients of
// object stores.
//
// It registers the driver of Google Cloud Storage, gs://BUCKET. A program that imports another driver of
// gocloud.dev, such as gocloud.dev/blob/s3blob for s3://BUCKET or gocloud.dev/blob/azureblob for
// azblob://CONTAINER, opens its URLs too. Every scheme takes the parameter prefix=PATH/, below which the
// objects are.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/gcsblob" // gs://
	"gocloud.dev/gcerrors"

	"github.com/tapestore/tapestore/retain"
)

// Bucket is an object store. It implements [retain.Target].
type Bucket struct {
	bucket *blob.Bucket
	shown  string
}

var _ retain.Target = (*Bucket)(nil)

// IsURL reports whether a text has the form SCHEME://…, and so names an object store and no directory.
func IsURL(text string) bool {
	scheme, _, found := strings.Cut(text, "://")
	return found && scheme != ""
}

// Open opens an object store. It reads nothing yet. The caller closes the bucket.
//
// Errors: those of the driver, without the parameters of the URL, which may be secret.
func Open(ctx context.Context, address string) (*Bucket, error) {
	shown := Shown(address)
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%s is no URL", shown)
	}
	if !blob.DefaultURLMux().ValidBucketScheme(u.Scheme) {
		return nil, fmt.Errorf("%s: this program has no driver for the scheme %.32q; it has %s, and takes directories", shown, u.Scheme, strings.Join(schemes(), ", "))
	}
	if u.Query().Has("key") { // gocloud then gives every object this name
		return nil, fmt.Errorf("%s: the parameter key names one object for all archives; use prefix", shown)
	}
	b, err := blob.OpenBucket(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", shown, strings.ReplaceAll(err.Error(), address, shown))
	}
	return &Bucket{b, shown}, nil
}

// object is an object that is read, with the bucket that was opened for it.
type object struct {
	io.ReadCloser
	bucket *Bucket
}

func (o object) Close() error { return errors.Join(o.ReadCloser.Close(), o.bucket.Close()) }

// OpenObject opens one object for reading: the path of the URL is its name in the bucket.
//
// Errors: those of [Open]; fs.ErrNotExist.
func OpenObject(ctx context.Context, address string) (io.ReadCloser, error) {
	u, err := url.Parse(address)
	if err != nil || strings.Trim(u.Path, "/") == "" {
		return nil, fmt.Errorf("%s names no object: write SCHEME://BUCKET/PATH", Shown(address))
	}
	name := strings.TrimPrefix(u.Path, "/")
	u.Path, u.RawPath = "", ""
	b, err := Open(ctx, u.String())
	if err != nil {
		return nil, err
	}
	in, err := b.Open(ctx, name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", Shown(address), err), b.Close())
	}
	return object{in, b}, nil
}

// schemes returns the schemes that there is a driver for.
func schemes() []string { return blob.DefaultURLMux().BucketSchemes() }

// Shown returns a URL without its user and its parameters.
func Shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		scheme, _, _ := strings.Cut(address, "://")
		return scheme + "://…"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// String implements [retain.Target].
func (b *Bucket) String() string { return b.shown }

// Close closes the bucket.
func (b *Bucket) Close() error { return b.bucket.Close() }

// Write implements [retain.Target]. A write that fails is cancelled before its end, so that no object
// appears.
func (b *Bucket) Write(ctx context.Context, name string, write func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := b.bucket.NewWriter(ctx, name, &blob.WriterOptions{ContentType: "application/jsonl"})
	if err != nil {
		return err
	}
	if err := write(w); err != nil {
		cancel()
		_ = w.Close() // it reports that it was cancelled
		return err
	}
	return w.Close()
}

// Open implements [retain.Target].
func (b *Bucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	r, err := b.bucket.NewReader(ctx, name, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, errors.Join(fs.ErrNotExist, err)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}
