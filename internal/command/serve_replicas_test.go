//go:build unix

package command

import (
	"syscall"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
)

// Of several processes on one database each entry is handled once, while one is killed and one is stopped. The
// database is Postgres': on a SQLite file a process that is stopped within a commit keeps the lock that all wait for.
func TestServeReplicas(t *testing.T) {
	t.Parallel()
	once, ok := protocol.Find("T7/matchers-killed-and-paused")
	if !ok {
		t.Fatal("there is no such case")
	}
	store := newStoreURL(t)
	serve := func() *process { return start(t, "--store", store, "--healthz-listen", "", "--matcher-lease", "3s") }
	first := serve()
	protocol.RunCases(t, protocol.Target{Address: first.grpc, Replicas: func(ct conformance.T, n int) []protocol.Replica {
		all := make([]protocol.Replica, n)
		for i := range all {
			p := serve()
			send := func(s syscall.Signal) func() {
				return func() {
					if err := p.Process.Signal(s); err != nil {
						ct.Errorf("%v: %v", s, err)
					}
				}
			}
			all[i] = protocol.Replica{Address: p.grpc, Kill: send(syscall.SIGKILL), Pause: send(syscall.SIGSTOP), Resume: send(syscall.SIGCONT)}
		}
		return all
	}}, once)
}
