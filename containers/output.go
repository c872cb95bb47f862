package containers

import (
	"io"
	"strings"
	"sync"

	"github.com/moby/moby/api/pkg/stdcopy"
)

// output keeps the last part of a container's output.
type output struct {
	mu   sync.Mutex
	last []byte
	done chan struct{} // closed when the container has ended
}

func newOutput() *output { return &output{done: make(chan struct{})} }

// read consumes the container's output stream until its end.
func (o *output) read(stream io.Reader) {
	defer close(o.done)
	_, _ = stdcopy.StdCopy(o, o, stream) // a broken stream ends the recording
}

func (o *output) Write(p []byte) (int, error) {
	const most = 4096
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = append(o.last, p...)
	if extra := len(o.last) - most; extra > 0 {
		o.last = append(o.last[:0], o.last[extra:]...)
	}
	return len(p), nil
}

// String returns the last part of the output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(string(o.last))
}
