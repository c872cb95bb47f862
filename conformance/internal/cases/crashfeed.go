package cases

import (
	"bufio"
	"context"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// killedFlood writes nothing to the run after the kill: another handle must bring the events of the
// killed process into the feed without the help of a later write.
func killedFlood(t harness.T, e *harness.Env) {
	least := runstore.Seq(e.Scaled(t, "events before a kill", 300, 1500))
	e.Create(t, "run")
	other := e.Reopen(t)
	c := kit.StartChild(t, kit.ChildTask{URL: e.URL, Role: "flood"})
	acknowledged := map[runstore.Seq]string{}
	killed := false
	for {
		line, ok := c.Next()
		if !ok {
			break // what the child wrote before the kill was read
		}
		var name string
		var first, last runstore.Seq
		if _, err := fmt.Sscanf(line, "ack %s %d %d", &name, &first, &last); err != nil {
			t.Fatalf("the child said %q", line)
		}
		for seq := first; seq <= last; seq++ {
			acknowledged[seq] = floodPart(name, int(seq-first))
		}
		if !killed && runstore.Seq(len(acknowledged)) >= least {
			killed = true
			if err := c.Cmd.Process.Kill(); err != nil {
				t.Fatalf("kill: %v", err)
			}
		}
	}
	c.Kill()
	if !killed {
		t.Fatalf("the child ended after %d events, before it was killed", len(acknowledged))
	}

	var feed []runstore.FeedEvent
	var last runstore.Seq
	say := func() string {
		return fmt.Sprintf("the feed holds %d events, the journal %d: %s", len(feed), last, kit.SeqsOf(feed))
	}
	var events []runstore.Event
	feeds := map[string][]runstore.FeedEvent{}
	for { // a server may still apply a request of the killed process; then all is read again
		e.AwaitState(t, harness.CaseTimeout, func() bool {
			after := runstore.Position(0)
			if len(feed) > 0 {
				after = feed[len(feed)-1].Position
			}
			feed = append(feed, kit.MustCollect(t, "feed", kit.FeedAfter(t.Context(), other, after, runstore.MaxPage))...)
			last = e.Get(t, "run").LastSeq
			return runstore.Seq(len(feed)) >= last
		}, say)
		late := e.Reopen(t)
		events = kit.Journal(t, e.Store, "run")
		for who, s := range map[string]runstore.RunStore{"a handle opened before": other, "a handle opened afterwards": late} {
			feeds[who] = kit.MustCollect(t, "feed", kit.FeedAfter(t.Context(), s, 0, 100))
		}
		if e.Get(t, "run").LastSeq == runstore.Seq(len(events)) {
			break
		}
	}
	dense(t, events)
	for _, event := range events {
		if want, ok := acknowledged[event.Seq]; ok && want != string(event.Data) {
			t.Errorf("the journal's seq %d holds %q, want %q, which was acknowledged there", event.Seq, event.Data, want)
		}
		delete(acknowledged, event.Seq)
	}
	if len(acknowledged) > 0 {
		t.Errorf("the journal ends at seq %d and lacks %d events that were acknowledged", len(events), len(acknowledged))
	}
	name := func(seq runstore.Seq, data []byte) string { return fmt.Sprintf("seq %d with %q", seq, data) }
	var want []string
	for _, event := range events {
		want = append(want, name(event.Seq, event.Data))
	}
	for who, shown := range feeds {
		var got []string
		for _, event := range shown {
			got = append(got, name(event.Seq, event.Data))
		}
		kit.CheckOrder(t, "the feed, read from "+who, got, want)
	}
}

// floodWriters is the number of goroutines of the child that append.
const floodWriters = 2

func floodPart(name string, k int) string { return fmt.Sprintf("%s/%d", name, k) }

// childFlood appends batches of 1 to 39 small events until it is killed, and reports each
// acknowledged batch.
func childFlood(ctx context.Context, s runstore.RunStore, _ int, in *bufio.Scanner, out *kit.Report) error {
	go exitWithParent(in)
	failed := make(chan error)
	for i := range floodWriters {
		go func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("%d/%d", i, n)
				b := runstore.NewBatch("run", runstore.Unguarded("a crash case"))
				for k := range 1 + n*7%39 {
					b.Append("flood", []byte(floodPart(name, k)))
				}
				done, err := s.Commit(ctx, b)
				if err == nil {
					err = out.Line("ack %s %d %d", name, done.FirstSeq, done.LastSeq)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}
