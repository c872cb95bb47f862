package host

import (
	"bytes"
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"sync"
)

// Output collects the output of an engine that says where it listens.
type Output struct {
	Found   chan struct{} // closed when there is an address
	Address string        // may be read once Found is closed

	pattern *regexp.Regexp
	mu      sync.Mutex
	text    bytes.Buffer
}

// NewOutput returns an Output that finds the address by the first group of a pattern.
func NewOutput(pattern *regexp.Regexp) *Output {
	return &Output{Found: make(chan struct{}), pattern: pattern}
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const most = 4096
	o.text.Write(p[:min(len(p), max(0, most-o.text.Len()))])
	if o.Address == "" {
		if m := o.pattern.FindSubmatch(o.text.Bytes()); m != nil {
			o.Address = string(m[1])
			close(o.Found)
		}
	}
	return len(p), nil
}

// String returns the beginning of the output, at most 4 KiB.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// OutputOf returns the error output of a program that failed, or else the error, in one line.
func OutputOf(err error) string {
	if e, ok := errors.AsType[*exec.ExitError](err); ok && len(e.Stderr) > 0 {
		return strings.Join(strings.Fields(string(e.Stderr)), " ")
	}
	return err.Error()
}
