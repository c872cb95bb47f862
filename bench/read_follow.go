package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
)

// follow measures how long it takes until a waiting follower receives an event.
type follow struct {
	writer runstore.RunStore
	run    *filledJournal
	from   func(ctx context.Context, seq runstore.Seq, deliver func(runstore.Event) bool) error
	least  int // minimum number of commits in a round
}

// readAsFollower compares the ways in which a process follows a journal.
func (s *Session) readAsFollower(ctx context.Context, store Store, handle runstore.RunStore) error {
	other, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer other.Close()
	following := tail.New(handle, &tail.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	defer following.Close(context.Background())
	byTail := func(id runstore.RunID) func(context.Context, runstore.Seq, func(runstore.Event) bool) error {
		return func(ctx context.Context, seq runstore.Seq, deliver func(runstore.Event) bool) error {
			for page, err := range following.Follow(ctx, id, seq) {
				if err != nil {
					return err
				}
				for _, e := range page {
					if !deliver(e) {
						return nil
					}
				}
			}
			return errors.New("the follower ended")
		}
	}
	byFeed := func(id runstore.RunID) func(context.Context, runstore.Seq, func(runstore.Event) bool) error {
		return func(ctx context.Context, seq runstore.Seq, deliver func(runstore.Event) bool) error {
			return fromFeed(ctx, following, handle, id, seq, deliver)
		}
	}
	type way struct {
		name   string
		writer runstore.RunStore
		from   func(runstore.RunID) func(context.Context, runstore.Seq, func(runstore.Event) bool) error
	}
	ways := []way{
		{"tail, the writer's own", following.Store(), byTail},
		{"tail, of another handle", other, byTail},
		{"feed, the writer's own", following.Store(), byFeed},
		{"feed, of another handle", other, byFeed},
	}
	if notifier, ok := runstore.As[runstore.RunNotifier](handle); ok {
		ways = append(ways, way{"wake-ups of the run", other, func(id runstore.RunID) func(context.Context, runstore.Seq, func(runstore.Event) bool) error {
			return func(ctx context.Context, seq runstore.Seq, deliver func(runstore.Event) bool) error {
				return byWakeups(ctx, handle, notifier, id, seq, deliver)
			}
		}})
	}
	var sides []Side
	for i, way := range ways {
		j, err := fillJournal(ctx, s.fillers(), handle, journalID(store, i), 1, 1, s.Scale.Payloads[0], time.Hour)
		if err != nil {
			return err
		}
		f := &follow{writer: way.writer, run: j, from: way.from(j.lease.Run), least: max(1, s.Scale.Handovers)}
		sides = append(sides, Side{
			Group: "follower's delay", System: s.Target.System.Name, Side: way.name, Round: f.round,
			Verify: func(ctx context.Context) (string, error) {
				r := &replay{store: handle, journal: f.run}
				return fmt.Sprintf("%d events, each delivered once and in order", len(f.run.numbers)), r.whole(ctx, nil)
			},
		})
	}
	return s.Compare(ctx, sides...)
}

// fromFeed follows a run by the feed of all runs.
func fromFeed(ctx context.Context, t *tail.Tail, s runstore.RunStore, id runstore.RunID, seq runstore.Seq, deliver func(runstore.Event) bool) error {
	after := runstore.Position(-1)
	for after < 0 { // the feed may lag behind the journal
		last, err := s.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: runstore.MaxPage})
		if err != nil {
			return err
		}
		for _, e := range last {
			if e.Run == id && e.Seq == seq {
				after = e.Position - 1
			}
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	for page, err := range t.Feed(ctx, after) {
		if err != nil {
			return err
		}
		for _, e := range page {
			if e.Err != nil {
				return e.Err
			}
			if e.Run == id && !deliver(e.Event) {
				return nil
			}
		}
	}
	return errors.New("the feed ended")
}

// byWakeups reads a journal whenever the store reports a write to its run. Because hints may be
// lost, it also reads once a second.
func byWakeups(ctx context.Context, s runstore.RunStore, notifier runstore.RunNotifier, id runstore.RunID, seq runstore.Seq, deliver func(runstore.Event) bool) error {
	wakeups, err := notifier.RunWakeups(ctx, id, runstore.OnWrite)
	if err != nil {
		return err
	}
	for {
		page, err := s.ReadJournal(ctx, id, seq, runstore.MaxPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			seq = e.Seq + 1
			if !deliver(e) {
				return nil
			}
		}
		if len(page) > 0 {
			continue
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-wakeups:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		timer.Stop()
	}
}

// round starts a follower at the journal's last event, and commits events to it one by one.
func (f *follow) round(ctx context.Context, d time.Duration, m *Measured) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type delivery struct {
		seq runstore.Seq
		at  time.Time
		err error
	}
	delivered := make(chan delivery, 1)
	ended := make(chan struct{})
	next := runstore.Seq(len(f.run.numbers))
	go func() {
		defer close(ended)
		want := next
		err := f.from(ctx, want, func(e runstore.Event) bool {
			got := delivery{seq: e.Seq, at: time.Now()}
			if e.Seq != want || len(e.Data) != f.run.size {
				got.err = fmt.Errorf("seq %d was delivered where %d belongs", e.Seq, want)
			}
			want++
			select {
			case delivered <- got:
				return got.err == nil
			case <-ctx.Done():
				return false
			}
		})
		if err != nil && ctx.Err() == nil {
			delivered <- delivery{err: err}
		}
	}()
	defer func() { cancel(); <-ended }()
	receive := func() (delivery, error) {
		lost := time.NewTimer(feedTimeout)
		defer lost.Stop()
		select {
		case got := <-delivered:
			return got, got.err
		case <-lost.C:
			return delivery{}, fmt.Errorf("seq %d was not delivered in %v", len(f.run.numbers), feedTimeout)
		case <-ctx.Done():
			return delivery{}, ctx.Err()
		}
	}
	if _, err := receive(); err != nil { // the existing event: now the follower waits
		return err
	}
	var delays []time.Duration
	for began := time.Now(); len(delays) < f.least || time.Since(began) < d; {
		if err := sleep(ctx, rand.N(20*time.Millisecond)); err != nil {
			return err
		}
		number := len(f.run.numbers)
		batch := runstore.NewBatch(f.run.lease.Run, f.run.lease.Fence())
		batch.Append("event", numbered(number, f.run.size))
		done, err := f.writer.Commit(ctx, batch)
		acknowledged := time.Now()
		if err != nil {
			return err
		}
		f.run.numbers = append(f.run.numbers, number)
		if int(done.LastSeq) != len(f.run.numbers) {
			return fmt.Errorf("a commit was acknowledged at seq %d, behind %d", done.LastSeq, number)
		}
		got, err := receive()
		if err != nil {
			return err
		}
		// A follower may receive an event before the writer receives its reply.
		delays = append(delays, max(0, got.at.Sub(acknowledged)))
	}
	m.Quantiles("delay", delays)
	return nil
}
