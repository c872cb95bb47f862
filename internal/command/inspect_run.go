package command

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// heads calls take with the head of every run after --from, newest first, until a page is full. It
// notes where the next page begins. It reports whether it came to the last run.
func (in *inspection) heads(ctx context.Context, what string, take func(runstore.Run) (taken bool)) (end bool, err error) {
	q := runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime, Newest: true, After: runstore.Cursor(in.from)}
	taken := 0
	var last runstore.Cursor // the next page begins after it
	for entry, err := range runstore.Entries(ctx, in.store, q) {
		if err != nil {
			return false, err
		}
		if taken == in.limit { // more runs follow, perhaps not of the wanted kind
			in.more(what, string(last))
			return false, nil
		}
		if take(entry.Head) {
			taken++
		}
		last = entry.Cursor
	}
	return true, nil
}

// key returns a run's key in Tape's terms; empty for a run that is not one of Tape's.
func key(head runstore.Run) tape.RunKey {
	run, err := tape.RunOf(head)
	if err != nil {
		return tape.RunKey{}
	}
	return run.RunKey
}

func (in *inspection) runs(ctx context.Context, _ []string) error {
	var rows [][]any
	_, err := in.heads(ctx, "runs", func(head runstore.Run) bool {
		k := key(head)
		rows = append(rows, []any{
			string(head.ID), tape.RunStatus(head.Status).String(), int64(head.LastSeq), int64(head.Token), in.lease(head),
			head.CreatedAt, k.App, k.User, k.Session, k.Invocation,
		})
		return true
	})
	if err != nil {
		return err
	}
	return in.show([]string{"RUN", "STATUS", "SEQ", "TOKEN", "LEASE", "STARTED", "APP", "USER", "SESSION", "INVOCATION"}, rows)
}

// lease describes which owner holds a run, by the store clock.
func (in *inspection) lease(head runstore.Run) string {
	if head.Holder.Token == 0 {
		return "free"
	}
	return in.holds(string(head.Holder.Owner), head.ExpiresAt)
}

// holds describes that an owner holds something until a time of the store clock.
func (in *inspection) holds(owner string, until time.Time) string {
	left := until.Sub(in.now).Round(time.Millisecond)
	if left > 0 {
		return fmt.Sprintf("%s for %v", owner, left)
	}
	return fmt.Sprintf("%s, expired %v ago", owner, -left)
}

// fromUnlisted begins the --from of a page of unlisted runs, before the id of the last run of the page
// before. No cursor of a store has a colon.
const fromUnlisted = "unlisted:"

// leases shows the listed runs that have a lease, and then the unlisted ones, which are in no index: shards
// of reactions, elections, groups and locks.
func (in *inspection) leases(ctx context.Context, _ []string) error {
	var rows [][]any
	listed := map[uint64]struct{}{} // hashes of 8 bytes, so that a million runs need 40 MiB
	seed := maphash.MakeSeed()
	take := func(head runstore.Run) bool {
		h := head.Holder
		if h.Token == 0 {
			return false
		}
		state := "expired"
		if head.Live(in.now) {
			state = "live"
		}
		preempted := ""
		if h.Preempted.Reason != "" {
			preempted = fmt.Sprintf("from %s: %s", h.Preempted.From, h.Preempted.Reason)
		}
		rows = append(rows, []any{
			string(head.ID), state, string(h.Owner), string(h.Reactor), int64(h.Token), h.ExpiresAt,
			h.ExpiresAt.Sub(in.now).Round(time.Millisecond).String(), h.Strict, preempted,
		})
		return true
	}
	after, end := strings.CutPrefix(in.from, fromUnlisted)
	if !end {
		after = ""
		var err error
		if end, err = in.heads(ctx, leasesOrNot, func(head runstore.Run) bool {
			listed[maphash.String(seed, string(head.ID))] = struct{}{}
			return take(head)
		}); err != nil {
			return err
		}
	}
	if end {
		isListed := func(id runstore.RunID) bool {
			_, yes := listed[maphash.String(seed, string(id))]
			return yes
		}
		if err := in.unlistedHeads(ctx, runstore.RunID(after), in.limit-len(rows), isListed, take); err != nil {
			return err
		}
	}
	return in.show([]string{"RUN", "LEASE", "OWNER", "REACTOR", "TOKEN", "EXPIRES", "LEFT", "STRICT", "PREEMPTED"}, rows)
}

// leasesOrNot is what the next page has: the store finds runs, not leases.
const leasesOrNot = "runs, held or not"

// unlistedHeads calls take with the head of every unlisted run after an id, until it has taken limit of
// them. It reads the head of each run that listed does not report, and notes where the next page begins.
func (in *inspection) unlistedHeads(ctx context.Context, after runstore.RunID, limit int, listed func(runstore.RunID) bool, take func(runstore.Run) (taken bool)) error {
	mover, ok := runstore.As[runstore.Mover](in.store)
	if !ok {
		fmt.Fprintln(in.notes, "leases of unlisted runs are not shown: the adapter of the store does not implement runstore.Mover")
		return nil
	}
	for {
		page, err := mover.ScanRuns(ctx, after, runstore.MaxPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, id := range page {
			if !listed(id) {
				if limit == 0 {
					in.more(leasesOrNot, fromUnlisted+string(after))
					return nil
				}
				head, err := in.store.GetRun(ctx, id)
				if err != nil && !errors.Is(err, runstore.ErrNotFound) { // purged meanwhile
					return err
				}
				if err == nil && head.Unlisted && take(head) {
					limit--
				}
			}
			after = id
		}
	}
}

func (in *inspection) journal(ctx context.Context, args []string) error {
	from := runstore.Seq(1)
	if in.from != "" {
		n, err := strconv.ParseInt(in.from, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("--from is %q; it is a seq, and the least is 1", in.from)
		}
		from = runstore.Seq(n)
	}
	var rows [][]any
	for e, err := range runstore.Journal(ctx, in.store, runstore.RunID(args[0]), from) {
		if err != nil {
			return err
		}
		if len(rows) == in.limit {
			in.more("events", fmt.Sprint(e.Seq))
			break
		}
		rows = append(rows, []any{int64(e.Seq), e.Time, int64(e.Token), string(e.Owner), e.Kind, int64(e.Position), string(e.Data)})
	}
	return in.show([]string{"SEQ", "TIME", "TOKEN", "OWNER", "KIND", "POSITION", "DATA"}, rows)
}

// runView is the JSON output of inspect run.
type runView struct {
	Run        string    `json:"run"`
	Status     string    `json:"status"`
	App        string    `json:"app"`
	User       string    `json:"user"`
	Session    string    `json:"session"`
	Invocation string    `json:"invocation"`
	Seq        int64     `json:"seq"`
	Token      int64     `json:"token"`
	Lease      string    `json:"lease"`
	Reactor    string    `json:"reactor,omitempty"`
	Preempted  string    `json:"preempted,omitempty"`
	Started    time.Time `json:"started"`
	Ended      time.Time `json:"ended,omitzero"`
	WaitingOn  string    `json:"waiting_on,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	ledgers
	Records []recordView `json:"records"`
}

type recordView struct {
	Key     string    `json:"key"`
	Version int64     `json:"version"`
	Bytes   int       `json:"bytes"`
	Created int64     `json:"created_seq"`
	Updated int64     `json:"updated_seq"`
	Changed time.Time `json:"changed"`
}

func (in *inspection) run(ctx context.Context, args []string) error {
	id := runstore.RunID(args[0])
	head, err := in.store.GetRun(ctx, id)
	if err != nil {
		return err
	}
	view := runView{
		Run: string(head.ID), Status: tape.RunStatus(head.Status).String(), Seq: int64(head.LastSeq), Token: int64(head.Token),
		Lease: in.lease(head), Reactor: string(head.Holder.Reactor), Started: head.CreatedAt, ledgers: ledgers{Effects: []effectView{}}, Records: []recordView{},
	}
	if p := head.Holder.Preempted; p.Reason != "" {
		view.Preempted = fmt.Sprintf("from %s: %s", p.From, p.Reason)
	}
	if run, err := tape.RunOf(head); err == nil {
		view.App, view.User, view.Session, view.Invocation = run.App, run.User, run.Session, run.Invocation
		view.Ended, view.WaitingOn, view.Detail = run.EndedAt, run.WaitingOn, run.Detail
		if err := in.addSessionOf(ctx, &view.ledgers, run); err != nil {
			return err
		}
	} else if !errors.Is(err, tape.ErrNoSuchRun) { // the run may not be one of Tape's
		return err
	}
	for r, err := range runstore.Records(ctx, in.store, id, "") {
		if err != nil {
			return err
		}
		if string(r.Key) < in.from {
			continue
		}
		if len(view.Records) == in.limit {
			in.more("records", string(r.Key))
			break
		}
		view.add(in.now, in.readRow(id, r))
		view.Records = append(view.Records, recordView{
			string(r.Key), int64(r.Version), len(r.Value), int64(r.Created.Seq), int64(r.Updated.Seq), r.Updated.Time,
		})
	}
	if in.format == "json" {
		return in.json(view)
	}
	return in.showRun(view)
}

func (in *inspection) showRun(v runView) error {
	facts := [][]any{
		{"run", v.Run}, {"status", v.Status}, {"app", v.App}, {"user", v.User}, {"session", v.Session}, {"invocation", v.Invocation},
		{"last seq", v.Seq}, {"token", v.Token}, {"lease", v.Lease}, {"reactor", v.Reactor}, {"preempted", v.Preempted},
		{"started", v.Started}, {"ended", v.Ended}, {"waiting on", v.WaitingOn}, {"detail", v.Detail},
	}
	if err := in.show([]string{"FACT", "VALUE"}, facts); err != nil {
		return err
	}
	var records [][]any
	for _, r := range v.Records {
		records = append(records, []any{r.Key, r.Version, r.Bytes, r.Created, r.Updated, r.Changed})
	}
	if err := in.showLedgers(v.ledgers); err != nil {
		return err
	}
	fmt.Fprintln(in.out)
	return in.show([]string{"RECORD", "VERSION", "BYTES", "CREATED SEQ", "UPDATED SEQ", "CHANGED"}, records)
}
