package leasecases

import (
	"bufio"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Cases returns the cases of the lease runtime.
func Cases() []harness.Case {
	processes := []harness.Need{harness.NeedProcesses}
	cheapProcesses := []harness.Need{harness.NeedCheap, harness.NeedProcesses}
	return []harness.Case{
		{Guarantee: "I1", Name: "workers-share-the-runs-of-dead-holders", Needs: processes, Run: workersShare, Doc: `
			Three processes with a takeover worker each find runs whose holders are dead, and one of them is killed
			while it drives. Every run is driven to its end, under rising tokens, and no run shows two writers of one
			token. A store whose index of runnable runs hides an expired lease, or shows it for ever, leaves work
			undone.`},
		{Guarantee: "I1", Name: "members-of-a-group-share-its-shards", Needs: cheapProcesses, Run: groupOfWorkers, Doc: `
			Three processes join a group and share its shards, and one of them is killed. The others own and write every
			shard again, the membership of the dead one ends with one event that says so, and along the journal of each
			shard the tokens never fall. A store that leaves a dead member in the index, or accepts the writes of two
			owners, fails.`},
		{Guarantee: "I1", Name: "no-lease-that-is-renewed-changes-hands-after-an-outage", Needs: []harness.Need{harness.NeedCheap, harness.NeedNetwork}, Run: cutOff, Doc: `
			The network between the store and all its handles is away for two TTLs, while leases are held with a grace
			and contenders wait for each. Every live holder renews, keeps its token and commits; the lease of a dead
			holder is taken over. A store that refuses a renewal after the expiry, although nobody took over, costs
			every run its driver.`},
		{Guarantee: "I1", Name: "no-lease-that-is-renewed-changes-hands-after-a-silence", Needs: []harness.Need{harness.NeedNetwork}, Run: silent, Doc: `
			The network between the store and all its handles passes nothing for longer than the TTL, with the
			connections open, while holders with a grace write and contenders wait for each lease. Afterwards every live
			holder renews and keeps its token, the lease of a dead holder is taken over, and along the journal of each run
			the tokens never fall. An adapter that delivers an acquire of before the silence after it takes the lease from
			a live holder.`},
		{Guarantee: "I1", Name: "no-lease-that-is-renewed-changes-hands-while-the-server-is-frozen", Needs: []harness.Need{harness.NeedServer}, Run: frozen, Doc: `
			The server is stopped for longer than the TTL, with its connections open, while holders with a grace write and
			contenders wait for each lease. When it goes on it performs what was sent to it meanwhile. Every live holder
			renews and keeps its token, the lease of a dead holder is taken over, and along the journal of each run the
			tokens never fall. A contender that asks for a lease before it has seen its expiry takes it from a live holder.`},
		{Guarantee: "I1", Name: "no-lease-that-is-renewed-changes-hands-while-the-server-is-down", Needs: []harness.Need{harness.NeedServer}, Run: down, Doc: `
			The server is killed, and started again after two TTLs, while holders with a grace write and contenders wait
			for each lease. Every live holder renews and keeps its token, the lease of a dead holder is taken over, and
			along the journal of each run the tokens never fall. A store that takes its restart for a new incarnation, or
			forgets its leases with the server, costs every run its driver.`},
		{Guarantee: "I3", Name: "the-effects-of-coordinators-follow-their-terms", Needs: cheapProcesses, Run: coordinators, Doc: `
			Three processes elect a coordinator. The first active one is killed, the second is stopped and goes on
			after the third took over. The journal has the writes of each term before those of the next, and the late
			write of the stopped process is ErrFenced. A store that lets it through mixes the effects of two
			coordinators.`},
		{Guarantee: "I3", Name: "a-process-hands-its-lease-off-with-a-gap", Needs: processes, Run: handoffWithGap, Doc: `
			A successor asks a driving process for its lease, with a gap. The driver's work ends, then the successor
			has the next token, the former grant ended as handed off, and every write of the driver precedes the
			successor's. A store that makes the grant without the holder's fence lets a contender in between.`},
		{Guarantee: "I3", Name: "a-process-hands-its-lease-off-with-an-overlap", Needs: processes, Run: handoffWithOverlap, Doc: `
			A successor asks a driving process for its lease, with an overlap. The successor has the next token while
			the driver still writes, and the driver's next write is ErrFenced. A store that accepts it under the
			former fence runs two drivers.`},
		{Guarantee: "I13", Name: "a-stalled-process-is-replaced", Needs: cheapProcesses, Run: stalled, Doc: `
			A process holds a lease with a bound on stalls and renews it without any progress, while a contender
			waits. Its keeper ends the work with ErrNoProgress, the contender has the next token, and the late write
			of the process is ErrFenced. A store that takes heartbeats for progress leaves the run to a driver that
			hangs.`},
	}
}

// Roles returns the work of the child processes by name.
func Roles() map[string]kit.Role {
	return map[string]kit.Role{
		"worker": worker, "coordinator": coordinator, "member": member, "gap": gapHolder, "overlap": overlapHolder, "stall": staller,
	}
}

// ttl is the TTL of the leases: long enough for renewals on a busy machine, and short enough for a
// case that waits for expiries.
const ttl = 4 * time.Second

// quiet discards the messages of the runtime.
var quiet = slog.New(slog.DiscardHandler)

// awaitEnd ends stop when the parent closes the child's input, or is gone.
func awaitEnd(in *bufio.Scanner, stop func()) {
	for in.Scan() { // lines are not expected
	}
	stop()
}

// refusal describes an error as a word for the parent.
func refusal(err error) string {
	switch {
	case err == nil:
		return "applied"
	case errors.Is(err, runstore.ErrFenced):
		return "fenced"
	default:
		return "failed: " + err.Error()
	}
}

// openURL opens a handle as the child processes do, and uses it in the case: the harness's own handles
// may have a clock that the case can move, and which other processes do not share.
func openURL(t harness.T, e *harness.Env) {
	t.Helper()
	e.Store = harness.MustOpen(t, func() (runstore.RunStore, error) { return runstore.Open(t.Context(), e.URL) })
}

// children are processes whose lines are read as they come.
type children struct {
	t     harness.T
	url   string
	lines chan line
	all   []*kit.Child
	ends  map[term]string // how the terms of coordinators ended
	dead  map[int]bool    // the children that kill has killed
}

// line is what a child said.
type line struct {
	child int
	text  string
}

func newChildren(t harness.T, e *harness.Env) *children {
	return &children{t: t, url: e.URL, lines: make(chan line, 1000), ends: map[term]string{}, dead: map[int]bool{}}
}

// start starts a child with a role.
func (c *children) start(role string) int {
	c.t.Helper()
	i := len(c.all)
	child := kit.StartChild(c.t, kit.ChildTask{URL: c.url, Role: role, Round: i})
	c.all = append(c.all, child)
	go func() {
		for text, ok := child.Read(); ok; text, ok = child.Read() {
			c.lines <- line{i, text}
		}
		c.lines <- line{i, "gone"}
	}()
	return i
}

// next returns the next line of any child.
func (c *children) next(what string) line {
	c.t.Helper()
	bound := time.NewTimer(harness.CaseTimeout)
	defer bound.Stop()
	select {
	case l := <-c.lines:
		if strings.HasPrefix(l.text, "error ") {
			c.t.Fatalf("child %d: %s", l.child, l.text)
		}
		return l
	case <-bound.C:
		c.t.Fatalf("no child said anything while the case waited for %s", what)
	}
	return line{}
}

// said returns the lines that the children have printed since the last call.
func (c *children) said() (all []line) {
	for {
		select {
		case l := <-c.lines:
			all = append(all, l)
		default:
			return all
		}
	}
}

// kill kills a child.
func (c *children) kill(i int) {
	c.t.Helper()
	c.dead[i] = true
	if err := c.all[i].Cmd.Process.Kill(); err != nil {
		c.t.Fatalf("kill: %v", err)
	}
}

// end closes the inputs of the children that are alive.
func (c *children) end() {
	for _, child := range c.all {
		_ = child.In.Close() // a killed child has none
	}
}
