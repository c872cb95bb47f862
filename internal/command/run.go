package command

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/tape"
)

// runs is the state of the subcommands of run.
type runs struct {
	inspection
	asJSON, preempt, yes      bool
	ifToken, operator, reason string
}

func newRunCommand() *cobra.Command {
	var r runs
	cmd := &cobra.Command{
		Use:     "run",
		Short:   "Purge a run",
		Example: `  tapestore run purge RUN_ID --operator ada --reason 'a request to delete personal data' --store sqlite:./tape.db`,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return errors.New("say what to do: purge RUN_ID") },
	}
	purge := &cobra.Command{
		Use: "purge RUN_ID", Short: "Delete a run's journal and records", Args: cobra.ExactArgs(1),
		Long: `Delete a run's journal, records and places in queues. It cannot be undone. The run's token
stays, so that a run that is created again under this id continues above it and no earlier
driver can write to it. A store cannot forget the token: besides fencing, its row keeps
record versions and grant ids from being given out again.

A run with a live lease is refused unless --preempt is given, which ends the grant of its
holder. The command shows the run's status, the number of its events and the work that is left
in it, and asks for the run's id, unless --yes is given. If an event arrives after the question,
or the work that is left changes before the purge begins, nothing is purged; repeat the command
then. With --yes there is no question, and what arrives is purged too. Work that cannot be read
is shown as not known, and is not compared. Without --if-token the token is read first; if
another driver acquires the lease meanwhile, nothing is purged.

The journal of the run "` + string(admin.OperationsRun) + `" gets an event with the operator's name and
the reason before the purge, and one after it: tapestore inspect journal ` + string(admin.OperationsRun) + `
shows them. An operation whose last stage is "intended" may have been done.

What the run has refers to elsewhere stays: messages and values of other runs, sessions,
and what readers of the feed have copied.

The exit status is 0 when the run was purged, 2 when it was not because its lease is live, its
token has moved, an event has arrived or the work that is left has changed, and 1 otherwise. The
message says whether nothing was purged or whether that is unknown.`,
		RunE: func(cmd *cobra.Command, args []string) error { return r.purge(cmd, args[0]) },
	}
	f := purge.Flags()
	f.StringVar(&r.url, "store", "", "store URL ["+storeVariable+"]")
	f.BoolVar(&r.asJSON, "json", false, "print JSON")
	f.BoolVar(&r.preempt, "preempt", false, "purge the run even if its lease is live")
	f.BoolVar(&r.yes, "yes", false, "do not ask")
	f.StringVar(&r.ifToken, "if-token", "", "purge only if this is the run's last token, as tapestore lease show prints it")
	f.StringVar(&r.operator, "operator", "", "name of the person who decides, stored with the operation")
	f.StringVar(&r.reason, "reason", "", "reason for the operation, stored with it")
	cmd.AddCommand(purge)
	return cmd
}

// purgedView is the JSON output of run purge.
type purgedView struct {
	Run       string `json:"run"`
	Token     int64  `json:"token"`
	TokenText string `json:"token_text"`
	Events    int64  `json:"events"`
	Preempted string `json:"preempted,omitempty"`
	Recorded  bool   `json:"recorded"`
	Operator  string `json:"operator"`
	Reason    string `json:"reason"`
}

func (r *runs) purge(cmd *cobra.Command, run string) (err error) {
	ctx, stop := interruptible(cmd)
	defer stop()
	req := admin.PurgeRequest{Run: runstore.RunID(run), Preempt: r.preempt, Operator: runstore.Owner(r.operator), Reason: r.reason}
	address, err := givenStore(r.url, os.LookupEnv)
	switch {
	case err != nil:
		return err
	case r.operator == "":
		return errors.New("say who decides with --operator NAME")
	case r.reason == "":
		return errors.New("say why with --reason TEXT")
	case r.ifToken != "":
		if req.Token, err = parseToken(r.ifToken); err != nil {
			return fmt.Errorf("--if-token %w", err)
		}
	}
	if r.store, err = runstore.Open(ctx, existing(address)); err != nil {
		return err
	}
	done := false
	defer func() {
		if err = errors.Join(err, r.store.Close()); err != nil && done {
			err = fmt.Errorf("the run was purged, but the command failed afterwards: %w", err)
		}
	}()
	head, err := r.store.GetRun(ctx, req.Run)
	if err != nil {
		return err
	}
	if r.ifToken == "" {
		req.Token = head.Token
	}
	if !r.yes {
		shown, err := r.confirm(ctx, head, bufio.NewReader(cmd.InOrStdin()), cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if shown != nil { // records change without an event, too: a timer is set
			switch left, err := unsettled(ctx, r.store, req.Run); {
			case err != nil:
				return fmt.Errorf("the run was not purged: the work that is left in it cannot be read again: %w", err)
			case !maps.Equal(left.versions, shown.versions):
				return &exitError{fmt.Errorf("the run was not purged, because the work that is left in it has changed since the question: it is now %s; repeat the command", left.text), exitRefused}
			}
		}
		req.Next = head.LastSeq + 1
	}
	purged, err := admin.Purge(ctx, r.store, req)
	var conflict *runstore.ConflictError
	switch {
	case errors.Is(err, runstore.ErrLeaseHeld):
		return &exitError{fmt.Errorf("the run was not purged, because its lease is live; stop its driver, or give --preempt: %w", err), exitRefused}
	case errors.As(err, &conflict) && conflict.Guard == "token":
		return &exitError{fmt.Errorf("the run was not purged, because the token has moved; see tapestore lease show: %w", err), exitRefused}
	case errors.As(err, &conflict) && conflict.Guard == "seq":
		return &exitError{fmt.Errorf("the run was not purged, because an event arrived after the question, which had shown %d events; see tapestore inspect journal, and repeat the command: %w",
			head.LastSeq, err), exitRefused}
	case err != nil && runstore.OutcomeOf(err) == runstore.NotApplied:
		return fmt.Errorf("the run was not purged: %w", err)
	case err != nil:
		return fmt.Errorf("it is unknown whether the run was purged; see tapestore inspect run, and repeat the command: %w", err)
	}
	done = true
	v := purgedView{
		Run: run, Token: int64(purged.Token), TokenText: purged.Token.String(), Events: int64(head.LastSeq),
		Preempted: string(purged.Former.Owner), Recorded: purged.Recorded, Operator: r.operator, Reason: r.reason,
	}
	r.out = cmd.OutOrStdout()
	if r.asJSON {
		return r.json(v)
	}
	if !v.Recorded {
		fmt.Fprintf(cmd.ErrOrStderr(), "the end of the purge could not be recorded in %q, which has its intent\n", string(admin.OperationsRun))
	}
	_, err = fmt.Fprintf(r.out, "run %s was purged with %d events; its last token is %s and stays\n", plain(run), v.Events, tokenWord(purged.Token))
	return err
}

// confirm shows the run and asks for its id. Questions go to asks. It returns the work that is left as it was
// shown, or nil if that cannot be read, for example because a record is corrupt.
func (r *runs) confirm(ctx context.Context, head runstore.Run, answers *bufio.Reader, asks io.Writer) (shown *work, err error) {
	var left string
	if shown, err = unsettled(ctx, r.store, head.ID); err == nil {
		left = shown.text
	} else {
		if ctx.Err() != nil {
			return nil, err
		}
		left = "not known: " + plain(err.Error())
	}
	holder := "nobody"
	if head.Holder.Token != 0 {
		holder = plain(string(head.Holder.Owner))
	}
	fmt.Fprintf(asks, "run %s has the status %s and %d events, created %s; its lease is with %s.\nWork that is left in it: %s.\nA purge cannot be undone.\n",
		plain(string(head.ID)), plain(tape.RunStatus(head.Status).String()), head.LastSeq, plain(head.CreatedAt), holder, left)
	answer, err := ask(ctx, answers, asks, "Type the run's id to purge it: ")
	if err != nil || answer != string(head.ID) {
		return nil, errors.New("the run was not purged: its id was not typed, and there was no --yes")
	}
	return shown, nil
}

// queueWords describe the records in Tape's queues.
var queueWords = map[runstore.IndexName]string{
	tape.IndexPending: "effects that are PENDING", tape.IndexUnknown: "effects that are UNKNOWN", tape.IndexDispatch: "effects to dispatch",
	tape.IndexObligations: "open obligations", tape.IndexStuckObligations: "obligations that are STUCK", tape.IndexTimers: "timers",
}

// work is the work that is left in a run.
type work struct {
	text     string                                  // how many records there are of each kind
	versions map[runstore.RecordKey]runstore.Version // of these records
}

// unsettled describes the records of a run for which tapestore retain would keep it: those in queues, by
// queue.
func unsettled(ctx context.Context, store runstore.RunStore, run runstore.RunID) (*work, error) {
	mover, ok := runstore.As[runstore.Mover](store)
	if !ok {
		return &work{text: "not known, the adapter of the store does not list it"}, nil
	}
	counts, versions := map[string]int{}, map[runstore.RecordKey]runstore.Version{}
	for after := runstore.RecordKey(""); ; {
		page, err := mover.ReadPlaced(ctx, run, after, runstore.MaxPage)
		if err != nil {
			return nil, err
		}
		if len(page.Records) == 0 {
			break
		}
		for _, record := range page.Records {
			for _, place := range record.Index {
				if tape.Settled(place.Index) {
					continue
				}
				word := queueWords[place.Index]
				if word == "" {
					word = "records in the queue " + plain(string(place.Index))
				}
				counts[word]++
				versions[record.Key] = record.Version
			}
			after = record.Key
		}
	}
	var parts []string
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[word], word))
	}
	return &work{cmp.Or(strings.Join(parts, ", "), "none"), versions}, nil
}
