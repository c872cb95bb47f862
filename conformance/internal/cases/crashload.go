package cases

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// The tasks of the children of the crash cases.

const (
	crashRuns    = 3
	crashWriters = 4
	crashEvents  = 3
	// childTTL is 300 ms, because a case waits for it in real time.
	childTTL = 300 * time.Millisecond
)

func crashRun(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("run-", i%crashRuns)) }

// crashBatch returns a batch whose parts each identify it: every part holds the batch's name, the
// part's number and a checksum of both, so a batch that is stored in part is recognized.
func crashBatch(name string, run runstore.RunID, guard runstore.Guard) runstore.Batch {
	b := runstore.NewBatch(run, guard)
	b.ID = runstore.BatchID(name)
	for k := range crashEvents {
		b.Append("crash", []byte(crashPart(name, k)))
	}
	b.Put(runstore.RecordKey("batch/"+name), []byte(crashPart(name, crashEvents)), runstore.Place{Index: "crash", At: runstore.After(0)})
	b.Put("last", []byte(name))
	return b
}

// crashPart returns part k of the batch called name: both, and a checksum of both.
func crashPart(name string, k int) string {
	text := fmt.Sprintf("%s %d ", name, k)
	return text + fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
}

// exitWithParent ends the child when its parent has ended, which closes in.
func exitWithParent(in *bufio.Scanner) {
	for in.Scan() {
		continue
	}
	os.Exit(3)
}

// childLoad commits batches from several goroutines and reports each acknowledged batch. One
// goroutine holds the lease of its run; the others write unguarded.
func childLoad(ctx context.Context, s runstore.RunStore, round int, in *bufio.Scanner, out *kit.Report) error {
	go exitWithParent(in)
	failed := make(chan error)
	for i := range crashWriters {
		go func() { failed <- childWrite(ctx, s, round, i, out) }()
	}
	return <-failed
}

func childWrite(ctx context.Context, s runstore.RunStore, round, i int, out *kit.Report) error {
	run := crashRun(i)
	guard := runstore.Unguarded("a crash case")
	if i == 0 {
		req := kit.Acquiring(run, runstore.Owner(fmt.Sprint("child-", round)), childTTL)
		req.Preempt = "the last child was killed"
		lease, err := s.AcquireLease(ctx, req)
		if err != nil {
			return err
		}
		if err := out.Line("lease %s %d %s %s", run, lease.Token, lease.Grant, lease.Owner); err != nil {
			return err
		}
		guard = lease.Fence()
	}
	for n := 0; ; n++ {
		name := fmt.Sprintf("%d/%d/%d", round, i, n)
		done, err := s.Commit(ctx, crashBatch(name, run, guard))
		if err != nil {
			return err
		}
		if err := out.Line("ack %s %s %d %d", run, name, done.FirstSeq, done.LastSeq); err != nil {
			return err
		}
	}
}

// childZombie acquires the lease and writes. On its parent's command it writes again, by every kind
// of write, without a look at what has happened since.
func childZombie(ctx context.Context, s runstore.RunStore, _ int, in *bufio.Scanner, out *kit.Report) error {
	lease, err := s.AcquireLease(ctx, kit.Acquiring("run", "zombie", childTTL))
	if err != nil {
		return err
	}
	if _, err := s.Commit(ctx, kit.Appending(lease.Lease, "alive")); err != nil {
		return err
	}
	if err := out.Line("held %d", lease.Token); err != nil {
		return err
	}
	if !in.Scan() {
		return errors.New("the parent has gone")
	}
	b := runstore.NewBatch("run", lease.Fence())
	kit.WriteEverything(&b.Writes, "zombie", 9)
	_, commit := s.Commit(ctx, b)
	_, renewal := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL})
	_, end := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()})
	for what, err := range map[string]error{"commit": commit, "renew": renewal, "release": end} {
		verdict := "refused as fenced"
		if !errors.Is(err, runstore.ErrFenced) {
			verdict = strings.ReplaceAll(fmt.Sprintf("got error %v", err), "\n", " ")
		}
		if err := out.Line("%s %s", what, verdict); err != nil {
			return err
		}
	}
	return out.Line("end")
}
