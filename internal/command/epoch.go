package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
)

// epochs is the state shared by the subcommands of epoch.
type epochs struct {
	inspection
	reason string
	above  int64 // raise until the epoch is above it
	yes    bool
}

func newEpochCommand() *cobra.Command {
	var e epochs
	cmd := &cobra.Command{
		Use:   "epoch",
		Short: "List a store's epochs, or begin a new one after a restore",
		Long: `List a store's epochs, or begin a new one.

An epoch ends every lease that was granted before it: their fences are refused from
then on, and tokens and feed positions continue above all that were given out. Begin
one when the store lost writes that it had acknowledged and could not see that by
itself: an older backup was restored in place, or a replica took over that had lagged.
Clients are then refused with DATA_LOSS (ErrStoreBehind). Most restores are seen and
begin an epoch by themselves; the page of an engine says which are not.

Stop the drivers first, raise the epoch, and start them again.`,
		Example: `  tapestore epoch list --store sqlite:./tape.db
  tapestore epoch raise --store sqlite:./tape.db --reason 'restored the backup of 3 March'
  tapestore epoch raise --store $STORE --above 3 --reason 'restored the backup of 3 March again'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("say what to do: list or raise") },
	}
	f := cmd.PersistentFlags()
	f.StringVar(&e.url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&e.format, "format", "table", "table or json")
	list := &cobra.Command{
		Use: "list", Short: "The epochs of a store, the current one last", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.on(cmd, readOnly, e.list) },
	}
	raise := &cobra.Command{
		Use: "raise", Short: "Begin a new epoch, which ends every lease granted before", Args: cobra.NoArgs,
		Long: `Begin a new epoch, which ends every lease granted before. The reason is stored with
it; epoch list and the server's log show it. Without --reason and --yes the command
asks. On Bigtable and Spanner it takes time in proportion to the number of runs.

The exit status is 0 when the new epoch has begun. Otherwise the message says whether
nothing was changed or whether that is unknown; repeating the command is safe, and at
worst begins one epoch more.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.reason != "" { // check before opening a store
				if err := runstore.CheckReason(e.reason); err != nil {
					return err
				}
			}
			if e.above < 0 || e.above >= int64(runstore.MaxEpoch) {
				return fmt.Errorf("--above is %d; it is from 0 to %d", e.above, runstore.MaxEpoch-1)
			}
			return e.on(cmd, existing, func(ctx context.Context, epocher runstore.EpochManager) error {
				return e.raise(ctx, epocher, bufio.NewReader(cmd.InOrStdin()), cmd.ErrOrStderr())
			})
		},
	}
	raise.Flags().StringVar(&e.reason, "reason", "", "why: what was restored or lost, and who says so")
	raise.Flags().Int64Var(&e.above, "above", 0, "raise until the epoch is above this one, the last of a store that was lost")
	raise.Flags().BoolVar(&e.yes, "yes", false, "do not ask")
	cmd.AddCommand(list, raise)
	return cmd
}

// on opens the store, at a URL that open has changed to create nothing, and calls do.
func (e *epochs) on(cmd *cobra.Command, open func(string) string, do func(context.Context, runstore.EpochManager) error) error {
	if e.format != "table" && e.format != "json" {
		return fmt.Errorf("--format is %q; it is table or json", e.format)
	}
	return onStore(cmd, e.url, open, func(ctx context.Context, store runstore.RunStore, address string) error {
		epocher, ok := runstore.As[runstore.EpochManager](store)
		if !ok {
			return fmt.Errorf("%s has no epochs: its adapter does not implement runstore.EpochManager", shownURL(address))
		}
		e.store, e.url, e.out = store, address, cmd.OutOrStdout()
		return do(ctx, epocher)
	})
}

func (e *epochs) list(ctx context.Context, epocher runstore.EpochManager) error {
	all, err := epocher.Epochs(ctx)
	if err != nil {
		return err
	}
	var rows [][]any
	for _, change := range all {
		rows = append(rows, []any{int64(change.Epoch), change.At, change.Reason})
	}
	return e.show([]string{"EPOCH", "BEGAN", "REASON"}, rows)
}

// raised is the JSON output of raise.
type raised struct {
	Epoch     int64     `json:"epoch"`
	Was       int64     `json:"was"`
	Began     time.Time `json:"began,omitzero"`
	Reason    string    `json:"reason"`
	FeedAbove int64     `json:"feed_above"`
}

// raise begins a new epoch. Questions go to asks, the result to the output.
func (e *epochs) raise(ctx context.Context, epocher runstore.EpochManager, answers *bufio.Reader, asks io.Writer) error {
	all, err := epocher.Epochs(ctx)
	if err != nil {
		return fmt.Errorf("the epoch was not raised: %w", err)
	}
	var last runstore.EpochChange
	if len(all) > 0 {
		last = all[len(all)-1]
	}
	fmt.Fprintf(asks, "%s is in epoch %d%s. A new epoch ends every lease granted so far.\n", shownURL(e.url), last.Epoch, why(last))
	if e.above > int64(last.Epoch) {
		fmt.Fprintf(asks, "It is raised to %d, above %d; start no driver before.\n", e.above+1, e.above)
	}
	if e.reason == "" {
		if e.reason, err = ask(ctx, answers, asks, "Reason: "); err != nil || e.reason == "" {
			return errors.New("the epoch was not raised: say why with --reason TEXT")
		}
	}
	if !e.yes {
		if answer, err := ask(ctx, answers, asks, "Raise the epoch? (yes/no) "); err != nil || answer != "yes" {
			return errors.New("the epoch was not raised: nobody answered yes, and there was no --yes")
		}
	}
	epoch, err := epocher.RaiseEpoch(ctx, e.reason)
	reached := last.Epoch
	for err == nil && int64(epoch) <= e.above {
		reached = epoch
		epoch, err = epocher.RaiseEpoch(ctx, e.reason)
	}
	switch {
	case err != nil && runstore.OutcomeOf(err) == runstore.NotApplied && reached > last.Epoch:
		return fmt.Errorf("the epoch is %d and was not raised further: repeat the command, and start no driver before it is above %d: %w", reached, e.above, err)
	case err != nil && runstore.OutcomeOf(err) == runstore.NotApplied:
		return fmt.Errorf("the epoch was not raised: %w", err)
	case err != nil:
		return fmt.Errorf("it is unknown whether the epoch was raised, and whether every older lease has ended; see tapestore epoch list "+
			"and raise it again: %w", err)
	}
	done := raised{Epoch: int64(epoch), Was: int64(last.Epoch), Reason: e.reason, FeedAbove: int64(epoch.Floor())}
	if all, err := epocher.Epochs(ctx); err == nil { // the epoch has begun, even if its time cannot be read back
		for _, change := range all {
			if change.Epoch == epoch {
				done.Began = change.At
			}
		}
	}
	if e.format == "json" {
		return e.json(done)
	}
	_, err = fmt.Fprintf(e.out, "epoch %d began%s\nevery lease granted before has ended; feed positions continue above %d\n",
		epoch, why(runstore.EpochChange{Epoch: epoch, At: done.Began, Reason: e.reason}), done.FeedAbove)
	return err
}

// why returns " (2026-03-04 05:06:07.000: reason)", or "" for epoch 0.
func why(change runstore.EpochChange) string {
	if change.Epoch == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s: %s)", plain(change.At), plain(change.Reason))
}

// ask prints a question and returns the line of the answer. It fails if ctx or the input ends
// first.
func ask(ctx context.Context, answers *bufio.Reader, asks io.Writer, question string) (string, error) {
	fmt.Fprint(asks, question)
	line := make(chan string, 1)
	go func() { // a read from a terminal cannot be interrupted
		text, _ := answers.ReadString('\n') // empty at the end of the input
		line <- text
	}()
	select {
	case text := <-line:
		if text == "" {
			fmt.Fprintln(asks)
			return "", io.EOF
		}
		return strings.TrimSpace(text), nil
	case <-ctx.Done():
		fmt.Fprintln(asks)
		return "", ctx.Err()
	}
}
