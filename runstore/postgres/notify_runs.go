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
)

// maxNames is how many runs a payload names: 500 names of 13 bytes fit into the 8,000 bytes that
// the server accepts (https://www.postgresql.org/docs/15/sql-notify.html).
//
// A payload names the runs that were written to by hashes of their ids, since ids may be any bytes,
// and marks those whose lease may have been freed. Runs with the same hash are woken together. An
// empty payload stands for all runs; older programs, which have no payloads, send no other.
const maxNames = 500

// thisProcess precedes the names in a payload, with a hash of the sender's hub (see senderOf). A handle
// ignores notifications that its hub has sent, because the write itself has woken the callers of that hub.
// Two handles in one process have different hubs if their addresses spell the server differently.
var thisProcess = rand.Text()

// runHash returns the name of a run in payloads.
func runHash(id runstore.RunID) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it never fails
	return base64.RawStdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, h.Sum64()))
}

// releasedMark marks the names of runs whose lease a write may have freed.
const releasedMark = "!"

// payload returns the payload for the writes since the last call.
func (n *notifier) payload() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	runs := n.runs
	n.runs = map[string]runstore.WakeOn{}
	all := n.all || len(runs) > maxNames
	n.all = false
	if all {
		return ""
	}
	var b strings.Builder
	b.WriteString(n.sender)
	for name, on := range runs {
		b.WriteString(" " + name)
		if on == runstore.OnRelease {
			b.WriteString(releasedMark)
		}
	}
	return b.String()
}

// wakeRuns wakes the callers that wait for the runs in a payload, and those of Wakeups.
func (n *notifier) wakeRuns(payload string) {
	runs := map[string]runstore.WakeOn{}
	sender, names, _ := strings.Cut(payload, " ")
	if sender == n.sender { // the callers were woken at once
		return
	}
	for _, name := range strings.Fields(names) {
		if name, is := strings.CutSuffix(name, releasedMark); is {
			runs[name] = runstore.OnRelease
		} else {
			runs[name] = runstore.OnWrite
		}
	}
	n.waiters.WakeEach(func(id runstore.RunID, wants runstore.WakeOn) bool {
		on, named := runs[runHash(id)]
		return payload == "" || id == anyRun || named && (wants == runstore.OnWrite || wants == on)
	})
}

// wakes returns which waiting callers a write may concern: OnRelease if it may free the lease.
func (r *request) wakes() runstore.WakeOn {
	if w := r.write; w != nil && (w.release || w.purge) {
		return runstore.OnRelease
	}
	return runstore.OnWrite
}

// hubKey returns the key of the hub that all handles of the store in this process share.
func hubKey(e *engine) string {
	to := e.pool.Config().ConnConfig
	return fmt.Sprintf("postgres:%s:%d/%s/%s", to.Host, to.Port, to.Database, e.opts.Schema)
}

// senderOf returns the name of a hub of this process in payloads.
func senderOf(hub string) string { return thisProcess + runHash(runstore.RunID(hub)) }

// RunWakeups implements runstore.RunNotifier. Writes of other processes wake by LISTEN and NOTIFY;
// behind a transaction-pooling proxy they do not wake (see [Options.Pooled]).
func (e *engine) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (ch <-chan struct{}, err error) {
	if e.opts.Pooled {
		return e.notifier.waiters.Add(ctx, id, on), nil
	}
	err = e.notifier.await(ctx, func() { ch = e.notifier.waiters.Add(ctx, id, on) })
	return ch, err
}
