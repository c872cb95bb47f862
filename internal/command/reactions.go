package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func newReactionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reactions",
		Short: "Show what reactions have left to do, or move them in the feed after an import",
		Long: `Show what the reactions of a store have left to do, or move them in the feed.

The cursors of reactions are positions in the feed of their store. In another store the events of
imported runs have other positions, so there the reactions would handle the whole history again, with
all its effects, or nothing for a long time. Before an export, stop the drivers and wait until list
shows that nothing is left; then stop the servers. After the import, and before a server starts on the
target, run skip --all.`,
		Example: `  tapestore reactions list --store sqlite:./tape.db
  tapestore reactions skip --all --store postgres://user@host/database
  tapestore reactions replay REACTION_ID --store sqlite:./tape.db`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("say what to do: list, skip or replay") },
	}
	in := inspection{limit: 1} // the list has no pages
	cmd.PersistentFlags().StringVar(&in.url, "store", "", "store URL ["+storeVariable+"]")
	list := in.command("list", "The live reactions, and what they have left to do", cobra.NoArgs, in.reactions)
	list.Flags().StringVar(&in.format, "format", "table", "table or json")
	const locks = `It takes the lease of each shard, so it fails while a server drives one. It may be interrupted and
repeated.`
	var all bool
	skip := &cobra.Command{
		Use: "skip {REACTION_ID… | --all}", Short: "Move reactions to the end of the feed: they handle no event from before",
		Long: `Move the cursors of reactions to the end of the feed: those of the reactions that are named, or with
--all those of all reactions, deregistered ones included. They handle no event that was committed
before. Open tasks stay.

It reads the heads of all runs and the whole feed, and waits until the feed shows the last event of
every run. ` + locks,
		Args: reactionsOrAll(&all),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return moveCursors(cmd, in.url, tape.CursorMove{Reactions: ids})
		},
	}
	replay := &cobra.Command{
		Use: "replay {REACTION_ID… | --all}", Short: "Move reactions to the start of the feed: they handle every event, again if need be",
		Long: `Move the cursors of reactions to the start of the feed: those of the reactions that are named, or with
--all those of all reactions, deregistered ones included. They handle every event of the feed, with
all its effects, also those that they have handled before.

` + locks,
		Args: reactionsOrAll(&all),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return moveCursors(cmd, in.url, tape.CursorMove{Reactions: ids, Replay: true})
		},
	}
	for _, c := range []*cobra.Command{skip, replay} {
		c.Flags().BoolVar(&all, "all", false, "move all reactions, deregistered ones included")
	}
	cmd.AddCommand(list, skip, replay)
	return cmd
}

// reactionsOrAll accepts the ids of reactions, or --all without ids: a list that is empty by mistake, as
// with a variable of a shell that is not set, must not select all reactions.
func reactionsOrAll(all *bool) cobra.PositionalArgs {
	return func(_ *cobra.Command, ids []string) error {
		switch {
		case len(ids) == 0 && !*all:
			return errors.New("say which reactions to move: name them with REACTION_ID…, or give --all for all of them")
		case len(ids) > 0 && *all:
			return errors.New("say which reactions to move either with REACTION_ID… or with --all, not with both")
		}
		return nil
	}
}

// moveCursors moves cursors of reactions in the store that a flag or the environment names.
func moveCursors(cmd *cobra.Command, url string, move tape.CursorMove) error {
	return onStore(cmd, url, existing, func(ctx context.Context, store runstore.RunStore, _ string) error {
		p := newMoveProgress(cmd.ErrOrStderr())
		move.Waiting = p.feed
		done, err := tape.New(store, nil).MoveCursors(ctx, move)
		p.end()
		if err != nil {
			return fmt.Errorf("%d reactions were moved before it failed; repeat the command: %w", done.Reactions, err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "moved %d reactions with %d shards to the position %d\n", done.Reactions, done.Shards, done.Position)
		return err
	})
}

// reactions shows the live reactions and their backlogs.
func (in *inspection) reactions(ctx context.Context, _ []string) error {
	p := newMoveProgress(in.notes)
	all, err := matcher.Backlogs(ctx, tape.New(in.store, nil), p.feed)
	p.end()
	if errors.Is(err, runstore.ErrStoreBehind) {
		return fmt.Errorf("a cursor is after the end of the feed, as after an import: run tapestore reactions skip or replay: %w", err)
	}
	if err != nil {
		return err
	}
	var rows [][]any
	for _, b := range all {
		rows = append(rows, []any{b.Reaction.ID, b.Reaction.Pattern, int64(b.Reaction.Shards), int64(b.Entries), int64(b.Runs)})
	}
	return in.show([]string{"REACTION", "PATTERN", "SHARDS", "ENTRIES LEFT", "RUNS LEFT"}, rows)
}
