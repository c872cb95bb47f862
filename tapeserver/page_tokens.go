package tapeserver

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"sync/atomic"

	"github.com/tapestore/tapestore/tape"
)

// pageTokens seals bookmarks of lists. A bookmark contains ids of runs of other tenants: the entry at
// which a page ends is often not the client's. So a token is encrypted and authenticated (AES-256-GCM), and
// its length hides that of the ids. All servers of a store share the key, which is in the store, so a token
// is good for each of them and after a restart.
type pageTokens struct {
	tape *tape.Tape
	key  atomic.Pointer[cipher.AEAD] // nil before the first token
}

// padding is 2 KiB: a bookmark is filled up to a multiple of it. Bookmarks of two queues take about 600
// bytes.
const padding = 2 << 10

// load returns the key. It reads the key until it has it.
func (p *pageTokens) load(ctx context.Context) (cipher.AEAD, error) {
	if key := p.key.Load(); key != nil {
		return *key, nil
	}
	key, err := p.tape.SharedKey(ctx)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	p.key.Store(&aead)
	return aead, nil
}

// seal returns the token of a bookmark of a list; "" for "".
func seal(key cipher.AEAD, list, bookmark string) string {
	if bookmark == "" {
		return ""
	}
	text := binary.BigEndian.AppendUint32(nil, uint32(len(bookmark)))
	text = append(text, bookmark...)
	text = append(text, make([]byte, padding-1-(len(text)-1)%padding)...)
	return base64.RawURLEncoding.EncodeToString(key.Seal(nil, nil, text, []byte(list)))
}

// open returns the bookmark of a token that seal has returned for the same list; "" for "".
func open(key cipher.AEAD, list, token string) (string, error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		raw, err = key.Open(nil, nil, raw, []byte(list))
	}
	if err != nil || len(raw) < 4 || uint64(binary.BigEndian.Uint32(raw)) > uint64(len(raw)-4) {
		return "", malformed("page_token", "is no next_page_token of this list")
	}
	return string(raw[4:][:binary.BigEndian.Uint32(raw)]), nil
}

// listed returns a list: the whole, or for a principal that is limited to tenants the part that the
// request's token names, and the token of the next part. list names the queues that the list reads.
func listed[E any](ctx context.Context, s *service, token, list string, whole func() ([]E, error), part func(tape.Part) ([]E, string, error)) (rows []E, next string, err error) {
	p, ok := limited(ctx)
	if !ok {
		if token != "" {
			return nil, "", malformed("page_token", "is given, and only principals that are limited to tenants get lists in pages")
		}
		rows, err = whole()
		return rows, "", err
	}
	// The key comes first: a list of due timers fires them.
	key, err := s.pages.load(ctx)
	if err != nil {
		return nil, "", err
	}
	after, err := open(key, list, token)
	if err != nil {
		return nil, "", err
	}
	rows, next, err = part(s.tape.Part(p.Admits, after))
	return rows, seal(key, list, next), err
}
