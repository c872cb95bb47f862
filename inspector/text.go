package inspector

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// briefBytes, 300, is the length to which a name or an error message is cut.
	briefBytes = 300
	// previewBytes, 600, is the length to which a value is cut: eight lines on a wide screen.
	previewBytes = 600
	// previewBinary, 96, is how many bytes of a binary value are shown.
	previewBinary = 96
)

// shown returns a text of a store as it may be shown: what is not printable is escaped, among it
// control characters, invisible ones, and those that change the direction of writing.
func shown(s string) string {
	if isPlain(s, "") {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// brief returns shown, cut to briefBytes.
func brief(s string) string {
	if len(s) > briefBytes {
		return shown(cutText(s, briefBytes)) + "…"
	}
	return shown(s)
}

// isPlain reports whether s is valid UTF-8 and printable, but for the characters in other.
func isPlain(s, other string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) && !strings.ContainsRune(other, r) {
			return false
		}
	}
	return true
}

// cutText returns at most n bytes of s, without a part of a character at the end.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n
	for back := range utf8.UTFMax {
		if utf8.RuneStart(s[n-back]) {
			cut = n - back
			break
		}
	}
	return s[:cut]
}

// refMark begins a reference that is encoded.
const refMark = "~"

// toRef returns a reference to an id, a key or the name of an index, which may contain any bytes: the
// text itself where it is printable, so that addresses can be read, and else base64 after refMark.
func toRef(s string) string {
	if isPlain(s, "") && !strings.HasPrefix(s, refMark) {
		return s
	}
	return refMark + base64.RawURLEncoding.EncodeToString([]byte(s))
}

// fromRef is the inverse of toRef.
func fromRef(ref string) (string, error) {
	encoded, ok := strings.CutPrefix(ref, refMark)
	if !ok {
		return ref, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return "", errors.New("the part after " + refMark + " is not base64")
	}
	return string(data), nil
}

// content is the beginning of a value.
type content struct {
	Bytes int `json:"bytes"`
	// Text is the value as text, or Binary its first bytes in hexadecimal.
	Text   string `json:"text,omitempty"`
	Binary string `json:"binary,omitempty"`
	// Cut reports that the value is longer.
	Cut bool `json:"cut,omitempty"`
	// Hidden reports that the value is secret.
	Hidden bool `json:"hidden,omitempty"`
}

// preview returns the beginning of a value.
func preview(data string) content {
	c := content{Bytes: len(data), Cut: len(data) > previewBytes}
	if text := cutText(data, previewBytes); utf8.ValidString(text) && !strings.Contains(text, "\x00") {
		c.Text = lines(text)
		return c
	}
	head := data[:min(len(data), previewBinary)]
	c.Cut = len(head) < len(data)
	var b strings.Builder
	for i := range len(head) {
		if i > 0 {
			b.WriteByte(' ')
		}
		const digits = "0123456789abcdef"
		b.WriteByte(digits[head[i]>>4])
		b.WriteByte(digits[head[i]&15])
	}
	c.Binary = b.String()
	return c
}

// lines returns a text as shown, with its line breaks and tabs kept.
func lines(s string) string {
	if isPlain(s, "\n\t") {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
