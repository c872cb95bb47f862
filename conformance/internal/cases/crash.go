package cases

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Crashes returns the cases that prove that acknowledged writes survive the kill of the process
// that made them, and that no write survives in part.
func Crashes() []harness.Case {
	return []harness.Case{
		{Guarantee: "I4", Name: "a-killed-process-leaves-whole-batches-only", Needs: []harness.Need{harness.NeedProcesses}, Run: killedProcess, Doc: `
			A child process commits batches of three events, two records and a queue entry to three runs, and is
			killed between two reports. Every acknowledged batch is there at its seqs, every other batch is there
			whole or not at all, and after a takeover the child's fence is ErrFenced. A store that acknowledges
			before it is durable, or writes in two steps, fails.`},
		{Guarantee: "I10", Name: "the-feed-holds-every-event-of-a-killed-process", Needs: []harness.Need{harness.NeedProcesses}, Run: killedFlood, Doc: `
			A child process appends hundreds of small events to one run and is killed amid further appends. Without
			another write, the feed soon holds every event of the journal once and in order, read by a handle from
			before and by a new one, and no acknowledged event is missing. A store whose writer publishes to the feed
			after the commit loses the last events.`},
		{Guarantee: "I3", Name: "a-stopped-process-is-fenced-when-it-goes-on", Needs: []harness.Need{harness.NeedProcesses, needPause}, Run: stoppedProcess, Doc: `
			A child process holds a lease and is stopped by a signal; the lease expires, and the parent takes over. The
			child is then resumed and commits, renews and releases: all three are ErrFenced, and run and indexes stay
			as they were. A store that trusts a handle's own memory of its lease, or checks the owner only, lets the
			child write.`},
	}
}

// ChildRoles returns the work of the child processes by name.
func ChildRoles() map[string]kit.Role {
	return map[string]kit.Role{"load": childLoad, "flood": childFlood, "zombie": childZombie}
}

var needPause = harness.NewNeed("pause", "a system on which processes can be stopped, and go on", func(*harness.Env) string {
	if kit.CanPause {
		return ""
	}
	return "processes cannot be stopped on this system"
})

// acknowledgement is what a child reported about a batch.
type acknowledgement struct {
	run         runstore.RunID
	first, last runstore.Seq
}

func killedProcess(t harness.T, e *harness.Env) {
	rounds := e.Scaled(t, "killed processes", 2, 4)
	pick := kit.Seeded(t)(0)
	for i := range crashRuns {
		e.Create(t, crashRun(i))
	}
	acknowledged := map[string]acknowledgement{}
	for round := range rounds {
		c := kit.StartChild(t, kit.ChildTask{URL: e.URL, Role: "load", Round: round})
		var lease runstore.Lease
		kill := 1 + pick.IntN(60) // the line after which the child is killed
		lines := 0
		for {
			line, ok := c.Next()
			if !ok {
				break // what the child wrote before the kill was read
			}
			lines++
			var name string
			var a acknowledgement
			if _, err := fmt.Sscanf(line, "ack %s %s %d %d", &a.run, &name, &a.first, &a.last); err == nil {
				acknowledged[name] = a
			} else if _, err := fmt.Sscanf(line, "lease %s %d %s %s", &lease.Run, &lease.Token, &lease.Grant, &lease.Owner); err != nil {
				t.Fatalf("round %d: the child said %q", round, line)
			}
			if lines == kill {
				// The child is between two reports, with other batches in flight.
				if err := c.Cmd.Process.Kill(); err != nil {
					t.Fatalf("kill: %v", err)
				}
			}
		}
		c.Kill()
		if lines < kill {
			t.Fatalf("round %d: the child ended after line %d, before it was killed", round, lines)
		}
		t.Logf("round %d: killed after line %d, %d batches acknowledged so far", round, kill, len(acknowledged))
		for _, s := range []runstore.RunStore{e.Reopen(t), e.Store} {
			checkUndisturbed(t, e, func(t harness.T) { checkAtomicBatches(t, s, acknowledged) })
		}
		if lease.Token != 0 {
			survivor := takeover(t, e, lease)
			_, err := e.Store.Commit(t.Context(), crashBatch("stale", lease.Run, lease.Fence()))
			harness.Refused(t, "a write under the killed child's lease", err, runstore.ErrFenced)
			e.Append(t, e.Store, survivor, "survivor")
		}
	}
}

// checkUndisturbed runs check while no write arrives. A server may still apply a request of a
// killed process after the kill, even during check; check is then run again. A change shows in the
// runs' last seqs, because every batch of a child appends events.
func checkUndisturbed(t harness.T, e *harness.Env, check func(t harness.T)) {
	t.Helper()
	seqs := func() (all [crashRuns]runstore.Seq) {
		for i := range all {
			all[i] = e.Get(t, crashRun(i)).LastSeq
		}
		return all
	}
	var failed bool
	var said []string
	e.Await(t, harness.CaseTimeout, func() bool {
		before := seqs()
		failed, said = harness.RunPlain(t.Context(), t.Name(), check)
		return !failed || seqs() == before
	})
	for _, line := range said {
		t.Logf("%s", line)
	}
	if failed {
		t.FailNow()
	}
}

// takeover waits until a lease has expired in real time and acquires the run's lease.
func takeover(t harness.T, e *harness.Env, from runstore.Lease) (lease runstore.Lease) {
	t.Helper()
	req := kit.Acquiring(from.Run, "survivor", harness.TTL)
	e.Await(t, harness.CaseTimeout, func() bool {
		granted, err := e.Store.AcquireLease(t.Context(), req)
		lease = granted.Lease
		if err != nil && runstore.KindOf(err) != runstore.ErrLeaseHeld {
			t.Fatalf("takeover: %v", err)
		}
		return err == nil
	})
	if lease.Token <= from.Token {
		t.Errorf("the takeover got token %v, the one before had %v", lease.Token, from.Token)
	}
	return lease
}

// checkAtomicBatches fails the case unless all acknowledged batches are stored at the acknowledged
// seqs, and every stored batch is stored whole.
func checkAtomicBatches(t harness.T, s runstore.RunStore, acknowledged map[string]acknowledgement) {
	t.Helper()
	found := map[string]acknowledgement{}
	indexed := map[string]string{}
	for _, entry := range kit.Queue(t, s, "crash") {
		name := strings.TrimPrefix(string(entry.Record.Key), "batch/")
		if _, twice := indexed[name]; twice {
			t.Errorf("batch %s is in the index twice", name)
		}
		indexed[name] = string(entry.Record.Value)
	}
	var records []string
	for i := range crashRuns {
		run := crashRun(i)
		events := kit.Journal(t, s, run)
		dense(t, events)
		last := ""
		for n := 0; n < len(events); {
			if events[n].Kind != "crash" { // an event of a survivor
				n++
				continue
			}
			name, _, _ := strings.Cut(string(events[n].Data), " ")
			for k := range crashEvents {
				if n+k >= len(events) || string(events[n+k].Data) != crashPart(name, k) {
					t.Fatalf("run %q holds batch %s in part: event %d of it is missing or damaged at seq %d", run, name, k, n+k+1)
				}
			}
			found[name] = acknowledgement{run, events[n].Seq, events[n].Seq + crashEvents - 1}
			n += crashEvents
			last = name
		}
		for _, r := range kit.MustCollect(t, "records", runstore.Records(t.Context(), s, run, "batch/")) {
			name := strings.TrimPrefix(string(r.Key), "batch/")
			records = append(records, name)
			if at, ok := found[name]; !ok || at.run != run || r.Version != 1 || r.Created.Seq != at.first || string(r.Value) != crashPart(name, crashEvents) {
				t.Errorf("record of batch %s at version %d, created by seq %d, stands beside a journal that has the batch: %t, at %+v", name, r.Version, r.Created.Seq, ok, at)
			}
			if indexed[name] != string(r.Value) {
				t.Errorf("record of batch %s is not in the index, or with another value", name)
			}
		}
		if got := string(kit.Record(t, s, run, "last").Value); got != last {
			t.Errorf("run %q: the last batch is %q by the journal and %q by the record", run, last, got)
		}
	}
	kit.CheckOrder(t, "batches by their records, beside those in the journals", slices.Sorted(slices.Values(records)), slices.Sorted(maps.Keys(found)))
	kit.CheckOrder(t, "batches by their index entries, beside those in the journals", slices.Sorted(maps.Keys(indexed)), slices.Sorted(maps.Keys(found)))
	for name, want := range acknowledged {
		if got, ok := found[name]; !ok || got != want {
			t.Errorf("batch %s was acknowledged at %+v and is found: %t, at %+v", name, want, ok, got)
		}
	}
}

func stoppedProcess(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	c := kit.StartChild(t, kit.ChildTask{URL: e.URL, Role: "zombie"})
	line, _ := c.Next()
	held := runstore.Lease{Run: "run"}
	if _, err := fmt.Sscanf(line, "held %d", &held.Token); err != nil {
		t.Fatalf("the child said %q", line)
	}
	if err := kit.PauseProcess(c.Cmd.Process); err != nil {
		t.Fatalf("stop the child: %v", err)
	}
	lease := takeover(t, e, held)
	e.Append(t, e.Store, lease, "taken over")
	before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
	if err := kit.ResumeProcess(c.Cmd.Process); err != nil {
		t.Fatalf("let the child go on: %v", err)
	}
	if _, err := fmt.Fprintln(c.In, "go on"); err != nil {
		t.Fatalf("tell the child to go on: %v", err)
	}
	refusals := 0
	for line, ok := c.Next(); ok && line != "end"; line, ok = c.Next() {
		refusals++
		if !strings.HasSuffix(line, "refused as fenced") {
			t.Errorf("the stopped process, when it went on: %s", line)
		}
	}
	kit.Equal(t, "writes that the stopped process tried", refusals, 3)
	kit.CheckUnchanged(t, "the stopped process", before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
	e.Append(t, e.Store, lease, "the new holder goes on")
}
