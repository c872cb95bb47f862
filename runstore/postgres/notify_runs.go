package postgres

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/wakeup"
)

// The payload of a notification names the runs that were written to: by hashes, since ids may be
// any bytes, with a mark where the lease may have been freed. Two runs of one name are woken together. An empty payload stands for all runs, and
// programs from before payloads send no other. The server takes up to 8,000 bytes:
// https://www.postgresql.org/docs/15/sql-notify.html
const maxNames = 500

// thisProcess stands before the names: who sent a notification has woken its own process already.
var thisProcess = rand.Text()

func nameOf(id runstore.RunID) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it never fails
	return base64.RawStdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, h.Sum64()))
}

// released marks the names of runs whose lease a write may have freed.
const released = "!"

// payload takes the names of the runs that were written to since.
func (n *notifier) payload() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	runs := n.runs
	n.runs = map[string]runstore.WakeOn{}
	if len(runs) > maxNames {
		return ""
	}
	var b strings.Builder
	b.WriteString(n.process)
	for name, on := range runs {
		b.WriteString(" " + name)
		if on == runstore.OnRelease {
			b.WriteString(released)
		}
	}
	return b.String()
}

// wakeRuns wakes those who wait for the runs that a payload names.
func (n *notifier) wakeRuns(payload string) {
	runs := map[string]runstore.WakeOn{}
	process, names, _ := strings.Cut(payload, " ")
	if process == n.process { // whose waiters were woken at once
		return
	}
	for _, name := range strings.Fields(names) {
		if name, is := strings.CutSuffix(name, released); is {
			runs[name] = runstore.OnRelease
		} else {
			runs[name] = runstore.OnWrite
		}
	}
	n.waiters.WakeEach(func(id runstore.RunID, wants runstore.WakeOn) bool {
		on, named := runs[nameOf(id)]
		return payload == "" || named && (wants == runstore.OnWrite || wants == on)
	})
}

// kind returns what of a run a write may change.
func (r *request) kind() runstore.WakeOn {
	if w := r.write; w != nil && (w.release || w.purge) {
		return runstore.OnRelease
	}
	return runstore.OnWrite
}

// hubOf returns where those wait that this process's handles of the store wake.
func hubOf(s *Store) wakeup.Hub {
	to := s.pool.Config().ConnConfig
	return wakeup.Of(fmt.Sprintf("postgres:%s:%d/%s/%s", to.Host, to.Port, to.Database, s.opts.Schema))
}

// RunWakeups implements runstore.RunNotifier. Writes of other processes wake by LISTEN and NOTIFY,
// and not at all where a proxy stands in the way (see [Options.Pooled]).
func (s *Store) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (ch <-chan struct{}, err error) {
	err = s.op(ctx, "run wakeups", id, runstore.CheckRunID(id), func() error {
		if s.opts.Pooled {
			ch = s.notifier.waiters.Add(ctx, id, on)
			return nil
		}
		return s.notifier.await(ctx, func() { ch = s.notifier.waiters.Add(ctx, id, on) })
	})
	return ch, err
}
