package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
)

func newGCCommand() *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Delete the rows that crashes have left in a store",
		Long: `Delete the rows that crashes have left in a store, and that nothing meets by itself.

They cost storage, and no reader ever sees them, so once a week is often enough. Only Bigtable
leaves such rows; on another engine the command says so and changes nothing. It scans the whole
store, beside any other work, and may be interrupted and repeated.`,
		Example: `  tapestore gc --store bigtable://project/instance/table`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onStore(cmd, url, existing, func(ctx context.Context, store runstore.RunStore, address string) error {
				collector, ok := runstore.As[runstore.GarbageCollector](store)
				if !ok {
					_, err := fmt.Fprintf(cmd.OutOrStdout(), "crashes leave nothing in %s\n", shownURL(address))
					return err
				}
				deleted, err := collector.CollectGarbage(ctx)
				if err != nil {
					return fmt.Errorf("%d rows were deleted before it failed; repeat the command: %w", deleted, err)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d rows deleted\n", deleted)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	return cmd
}
