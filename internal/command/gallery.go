package command

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance/faultystores"
)

// showGallery prints one line for each broken store. The stores are checked concurrently, because
// some cases wait for time to pass.
func showGallery(cmd *cobra.Command) error {
	stores := faultystores.All()
	lines := make([]string, len(stores))
	var missed atomic.Int32
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, b := range stores {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			caught, err := faultystores.Check(cmd.Context(), b)
			lines[i] = fmt.Sprintf("%s\tcaught by\t%s\n", b.Name, caught)
			if err != nil {
				missed.Add(1)
				lines[i] = fmt.Sprintf("%s\tNOT CAUGHT\t%v\n", b.Name, err)
			}
		})
	}
	wg.Wait()
	tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, strings.Join(lines, ""))
	if err := tw.Flush(); err != nil {
		return err
	}
	if n := missed.Load(); n > 0 {
		return fmt.Errorf("%d broken stores were not caught by the case that names their rule", n)
	}
	return nil
}
