package kit

import (
	"bufio"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
)

// TestBoundOfAChild checks that a child lives for as long as no wait for it exceeds its bound, and
// that it is killed then.
func TestBoundOfAChild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out, in := io.Pipe()
		c := &Child{lines: bufio.NewScanner(out), kill: func() { _ = in.Close() }}
		say := func(after time.Duration, text string) {
			go func() {
				time.Sleep(after)
				_, _ = fmt.Fprintln(in, text)
			}()
		}
		for i := range 3 {
			time.Sleep(2 * harness.CaseTimeout) // the parent waits for something else
			say(harness.CaseTimeout-time.Second, fmt.Sprint(i))
			if line, ok := c.Next(); !ok || line != fmt.Sprint(i) {
				t.Fatalf("got %q, %t, want line %d", line, ok, i)
			}
		}
		say(2*harness.CaseTimeout, "silent for long")
		if line, ok := c.Read(); !ok {
			t.Errorf("Read: got %q, %t, want a line", line, ok)
		}
		began := time.Now()
		if line, ok := c.Next(); ok || time.Since(began) != harness.CaseTimeout {
			t.Errorf("a child that hangs: got %q, %t after %v, want none after %v", line, ok, time.Since(began), harness.CaseTimeout)
		}
	})
}
