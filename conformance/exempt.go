package conformance

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// exempt collects, by reason, the cases of a run that do not apply to a store.
type exempt struct {
	mu       sync.Mutex
	byReason map[string][]string
}

func (x *exempt) add(reason, name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byReason == nil {
		x.byReason = map[string][]string{}
	}
	x.byReason[reason] = append(x.byReason[reason], name)
}

// print lists the exempt cases; it writes nothing if every case applied.
func (x *exempt) print(w io.Writer, test string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, names := range x.byReason {
		n += len(names)
	}
	if n == 0 {
		return
	}
	var b strings.Builder // one write, since other tests print too
	fmt.Fprintf(&b, "%s: cases of the suite that do not apply to this store: %d\n", test, n)
	for _, reason := range slices.Sorted(maps.Keys(x.byReason)) {
		slices.Sort(x.byReason[reason])
		fmt.Fprintf(&b, "  %s: %s\n", reason, strings.Join(x.byReason[reason], ", "))
	}
	_, _ = io.WriteString(w, b.String())
}
