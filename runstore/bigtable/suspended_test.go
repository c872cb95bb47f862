package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// suspension suspends the process of a handle once, between the reply to one of its background
// requests and whatever the process does next. The wall clock has moved on by an hour when it wakes.
type suspension struct {
	after, replies int    // suspends behind this reply, counted from 1; 0: never
	meanwhile      func() // happens then
	woken          atomic.Bool
}

func (p *suspension) replied(ctx context.Context) {
	md, _ := metadata.FromOutgoingContext(ctx)
	if p.after == 0 || len(md.Get(bigtable.ByTest)) == 0 {
		return
	}
	if p.replies++; p.replies == p.after {
		p.meanwhile()
		p.woken.Store(true)
	}
}

// watched calls replied when a stream has ended.
type watched struct {
	grpc.ClientStream
	replied func()
}

func (w *watched) RecvMsg(m any) error {
	err := w.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		w.replied()
	}
	return err
}

// options has a handle's process suspended.
func (p *suspension) options(o *bigtable.Options) {
	o.Clock = func() time.Time {
		if p.woken.Load() {
			return time.Now().Add(time.Hour)
		}
		return time.Now()
	}
	o.DialOptions = append(o.DialOptions,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			p.replied(ctx)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, desc, cc, method, opts...)
			return &watched{stream, func() { p.replied(ctx) }}, err
		}))
}

// interrupted is work in the background, and what a failover loses of its history.
type interrupted struct {
	name string
	// survives makes the history that the failover keeps, and loses goes on to the history that the
	// work meets.
	survives, loses func(t testing.TB, table bigtableemulator.TableName)
	// prepares has the handle know what it knows when the work begins, and may change the table. It
	// may be nil.
	prepares func(t testing.TB, s *bigtable.Store)
	works    func(t testing.TB, s *bigtable.Store)
	// keeps is what else has to be there after the failover. It may be nil.
	keeps func(t testing.TB, s *bigtable.Store, tbl *client.Table)
}

var interruptions = []interrupted{
	{
		name: "an idle run loses its mark",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			lease := hold(t, s, "run")
			commit(t, s, appending(lease, "early"))
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			lease := takeOver(t, s, "run")
			if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
				t.Fatal(err)
			}
			if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
				t.Fatal(err)
			}
		},
		works: scanIdle,
		keeps: func(t testing.TB, s *bigtable.Store, tbl *client.Table) {
			if len(keys(t, tbl, "m")) == 0 {
				t.Error("no mark leads to the run")
			}
		},
	},
	{
		// The failover loses the last replacement of the revision only, and the raise makes the same one.
		name: "an idle run whose revision survives",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			lease := hold(t, s, "run")
			commit(t, s, appending(lease, "early"))
			if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
				t.Fatal(err)
			}
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			if err := bigtable.Publish(t.Context(), openBare(t, table), "run"); err != nil {
				t.Fatal(err)
			}
		},
		works: scanIdle,
		keeps: func(t testing.TB, s *bigtable.Store, tbl *client.Table) {
			if len(keys(t, tbl, "m")) == 0 {
				t.Error("no mark leads to the run")
			}
		},
	},
	{
		name: "segments of a run that was purged",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			fill(t, s, hold(t, s, "run"), 1, 200)
			seal(t, s, "run")
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			purge(t, s, takeOver(t, s, "run"))
		},
		works: func(t testing.TB, s *bigtable.Store) { bigtable.OrphanScan(t.Context(), s) },
		keeps: wholeJournal,
	},
	{
		name: "segments that gc finds",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			fill(t, s, hold(t, s, "run"), 1, 200)
			seal(t, s, "run")
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			purge(t, s, takeOver(t, s, "run"))
		},
		works: func(t testing.TB, s *bigtable.Store) { _ = bigtable.CollectGarbage(t.Context(), s) },
		keeps: wholeJournal,
	},
	{
		name: "a creation that was never made",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			lease := hold(t, s, "run")
			commit(t, s, appending(lease, "early"))
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			deleteRows(t, raw(t, table), "r", func(string) bool { return true })
		},
		works: func(t testing.TB, s *bigtable.Store) { _ = bigtable.CollectGarbage(t.Context(), s) },
		keeps: func(t testing.TB, s *bigtable.Store, tbl *client.Table) {
			if len(keys(t, tbl, "m")) == 0 {
				t.Error("no mark leads to the run")
			}
		},
	},
	{
		name:     "a block of the feed's log",
		survives: blockOfLog,
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			purge(t, s, takeOver(t, s, "run"))
		},
		works: func(t testing.TB, s *bigtable.Store) {
			for hash := range 16 {
				_ = bigtable.Compact(t.Context(), s, string([]byte{byte(hash << 4), 0}))
			}
			bigtable.EmptyGarbage(t.Context(), s)
		},
	},
	{
		name: "a segment in a block that was removed",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			hold(t, s, "late")
			blockOfLog(t, table)
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			purge(t, s, takeOver(t, s, "run"))
			compact(t, s)
			deleteRows(t, raw(t, table), "l", func(key string) bool { return key == bigtable.LogKey(2) })
		},
		prepares: func(t testing.TB, s *bigtable.Store) {
			bigtable.SetEnd(s, 2)
			commit(t, s, signal("late", "event"))
			bigtable.PublishPending(t.Context(), s)
		},
		works: func(t testing.TB, s *bigtable.Store) { _ = bigtable.WriteBack(t.Context(), s) },
	},
	{
		name: "a page that is closed",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			inPages(t, bareHandles(t, table, 2), 3)
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			inPages(t, []*bigtable.Store{s}, 2)
		},
		prepares: func(t testing.TB, s *bigtable.Store) {
			inPages(t, []*bigtable.Store{s}, 1)
			if err := bigtable.WriteBack(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		},
		works: func(t testing.TB, s *bigtable.Store) { _ = bigtable.WriteBack(t.Context(), s) },
	},
	{
		name: "an append",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			inPages(t, bareHandles(t, table, 1), 3)
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			inPages(t, []*bigtable.Store{s}, 3)
		},
		works: func(t testing.TB, s *bigtable.Store) { inPages(t, []*bigtable.Store{s}, 3) },
	},
}

// blockOfLog fills more than a block of the feed's log with segments of one event each.
func blockOfLog(t testing.TB, table bigtableemulator.TableName) {
	t.Helper()
	s := openBare(t, table)
	hold(t, s, "run")
	for range 70 {
		commit(t, s, signal("run", "event"))
		if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
	}
}

func wholeJournal(t testing.TB, s *bigtable.Store, _ *client.Table) {
	t.Helper()
	n := 0
	for e, err := range runstore.Journal(t.Context(), s, "run", 1) {
		if n++; err != nil || int(e.Seq) != n {
			t.Fatalf("event %d of the journal is %d, %v", n, e.Seq, err)
		}
	}
	if n != 200 {
		t.Errorf("the journal has %d events, want 200", n)
	}
}

// A process is suspended behind each of the replies that its work in the background gets. A failover
// loses the history that the work is for, and raises the epoch. When the process wakes, nothing is
// missing of the history that survived: each of its events is in the feed once, and marks lead to its
// runs.
func TestSuspendedOverAFailover(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(interruptions, deletions) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			tbl := raw(t, table)
			c.survives(t, table)
			survived := snapshot(t, tbl)
			events := map[string]int{}
			for k := range survived {
				if strings.HasPrefix(k.row, "r") && strings.HasPrefix(k.column, "h:head") {
					run, err := openBare(t, table).GetRun(t.Context(), bigtable.RunOf(k.row))
					if err != nil {
						t.Fatal(err)
					}
					events[k.row] = int(run.LastSeq)
				}
			}
			want := 0
			for _, n := range events {
				want += n
			}
			c.loses(t, table)
			lost := snapshot(t, tbl)
			for after := 1; ; after++ {
				lost.rollBack(t, tbl)
				p := &suspension{}
				s := openBare(t, table, p.options)
				if c.prepares != nil {
					c.prepares(t, s)
				}
				var heir *bigtable.Store
				p.meanwhile = func() {
					survived.rollBack(t, tbl)
					heir = openBare(t, table)
					if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
						t.Error(err)
					}
				}
				p.after = after
				c.works(t, s)
				if heir == nil {
					if after == 1 {
						t.Fatal("the work makes no request")
					}
					t.Logf("%d requests", after-1)
					return
				}
				if c.keeps != nil {
					c.keeps(t, heir, tbl)
				}
				bigtable.OrphanScan(t.Context(), heir)
				own := 0 // of what the process itself commits after it woke
				if c.name == "an append" {
					run, err := heir.GetRun(t.Context(), "run 0")
					if err != nil {
						t.Fatal(err)
					}
					own = int(run.LastSeq) - want
					bigtable.OrphanScan(t.Context(), heir)
				}
				if n := len(whole(t, openBare(t, table), 0, runstore.MaxPage, nil)); n != want+own {
					t.Errorf("suspended behind reply %d: the feed has %d events, want %d", after, n, want+own)
				}
				if t.Failed() {
					t.Fatal(fmt.Sprint("suspended behind reply ", after))
				}
			}
		})
	}
}

// A handle that nobody stopped commits after a failover that lost the last events of its run. The events
// of the new history come into the feed though the handle remembers that it has had events of these
// numbers.
func TestFeedAfterAFailoverThatWasSlept(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	old := bareHandles(t, table, 1)
	inPagesOfTheirOwn := func(rounds int) {
		t.Helper()
		inPages(t, old, rounds)
		for range 2 { // the second call finds that nothing was appended, and closes the page
			if err := bigtable.WriteBack(t.Context(), old[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	inPagesOfTheirOwn(3)
	survived := snapshot(t, tbl)
	inPagesOfTheirOwn(2)
	survived.rollBack(t, tbl)
	if _, err := openBare(t, table).RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		commit(t, old[0], signal("run 0", "next"))
	}
	bigtable.PublishPending(t.Context(), old[0])
	if n := len(whole(t, openBare(t, table), 0, 10, nil)); n != 7 {
		t.Errorf("the feed has %d events, want 7", n)
	}
}

// A handle that was suspended over a failover remembers pages that were lost, and creates the next one in
// the gap between the logs of two epochs, where no reader looks. Its periodic review finds that the log
// goes on elsewhere, and the handle publishes again what survived.
func TestPageInTheGapBetweenTwoEpochs(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	old := bareHandles(t, table, 1)
	inPagesOfTheirOwn := func(rounds int) {
		t.Helper()
		for range rounds {
			inPages(t, old, 1)
			for range 2 { // the second call closes the page
				if err := bigtable.WriteBack(t.Context(), old[0]); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	inPagesOfTheirOwn(3)
	commit(t, old[0], signal("run 0", "kept"))
	survived := snapshot(t, tbl)
	inPagesOfTheirOwn(3)
	commit(t, old[0], signal("run 0", "lost"))
	survived.rollBack(t, tbl)
	heir := openBare(t, table)
	if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	bigtable.PublishPending(t.Context(), old[0])
	if err := bigtable.WriteBack(t.Context(), old[0]); err != nil {
		t.Fatal(err)
	}
	bigtable.PublishAgain(t.Context(), old[0], "run 0")
	all := whole(t, openBare(t, table), 0, 10, nil)
	if len(all) != 4 || string(all[3].Data) != "kept" {
		t.Errorf("the feed has the events %+v, want four of which the last is kept", all)
	}
}

// The orphan scan of a handle that was suspended over a failover publishes what another handle has
// committed since and left behind, though the log that the handle remembers had events of these numbers.
func TestOrphanScanAfterAFailoverThatWasSlept(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	handles := bareHandles(t, table, 1)
	inPages(t, handles, 3)
	survived := snapshot(t, tbl)
	inPages(t, handles, 2)
	survived.rollBack(t, tbl)
	heir := openBare(t, table)
	if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	commit(t, heir, signal("run 0", "next"))
	bigtable.OrphanScan(t.Context(), handles[0])
	if n := len(whole(t, openBare(t, table), 0, 10, nil)); n != 4 {
		t.Errorf("the feed has %d events, want 4", n)
	}
}
